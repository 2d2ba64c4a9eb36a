"""Small comparisons: an agent with few weights, a short scenario, and rows written by hand."""

from compare_agents.benchmark import Outcome
from compare_agents.store import Entry, Row

from kvgym.agents.evolution.model import EvolvedModel
from kvgym.experiments.scenario import load_scenario


def save_agent(path, **weights):
    """Write an agent of weights of ``ranked``; return its name for command lines."""
    EvolvedModel("ranked", {}, weights or {"waiting": 1.0}, {"name": path.stem}).save(path)
    return str(path)


def small(kind="noisy", rate=40.0, count=30, **changes):
    """Return a scenario of a second or so of arrivals, with little memory."""
    predictions = {
        "noisy": {"kind": "noisy", "epsilon": 0.5},
        "interval": {"kind": "interval", "bounds": [1, 2048]},
    }
    workload = {
        "preset": "lmsys", "num_requests": count, "rate": rate, "predictions": predictions.get(kind, {"kind": kind}),
    }  # fmt: skip
    return load_scenario("a100-llama2-70b").override(workload=workload, **{"kv_capacity": 3000, **changes})


def row_of(entries, metric="e2e_latency_mean", task="latency", **row):
    """Return a row of (group, label, values); text in place of values is the error of a failed run."""
    made = [
        Entry(group, label, Outcome(label, error=v) if isinstance(v, str) else Outcome(label, tuple(v)))
        for group, label, v in entries
    ]
    return Row(task, row or {"lengths": "unknown", "requests/s": "20"}, metric, 30, tuple(made))
