"""Queues in slotted time, below and above the rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness import do_all, print_table
from kvgym.experiments.scenario import load_scenario
from kvgym.experiments.statistics import Estimate, mean_interval
from kvgym.runner import SimulationResult, simulate
from kvgym.theory.stability import cumulative_memory, is_overloaded, is_stable
from papers.stab.setting import CHUNK, PRINTED, SINGLE, SLACK, M, Plan, rate_of

Floats = NDArray[np.float64]


def print_queues(plan: Plan) -> dict[str, dict[str, Estimate]]:
    """Print the growth of the queue at 0.9 μ(1 − δ) and at 1.1 μ."""
    print("## Queues below and above the rate, batches of constant length\n")
    rows, found = [], {}
    for name in (*PRINTED, "stab-8-gpus"):
        workers = 8 if name == "stab-8-gpus" else 1
        base = "stab-1-1" if workers == 8 else name
        service = workers * rate_of(base, PRINTED[base][0])
        for label, rate in (("0.9 μ(1−δ)", 0.9 * service * (1 - SLACK)), ("1.1 μ", 1.1 * service)):
            assert is_stable(rate, service, SLACK) != is_overloaded(rate, service)
            for policy in SINGLE if workers == 1 else SINGLE[:2]:
                count = plan.requests if workers == 1 else plan.requests_8
                runs = do_all(QueueRun(name, policy, rate, count), range(plan.seeds), plan.where)
                e = estimates(runs)
                found[f"{name} {label} {policy}"] = e
                # Between Theorem 1 and what the proof of Theorem 2 guarantees of the use of memory.
                least, most = rate - service, rate - service * (1 - SLACK)
                growth = f"{least:+.3f} … {most:+.3f}" if rate > service else "0"
                sizes = (f"{e['mean'].value:.1f}", f"{max(r['max'] for r in runs):.0f}")
                use = (f"{e['kv use'].value:.3f}", share(e["below"].value))
                kind = policy.removeprefix("work_conserving_").replace("_", ", ")
                slopes = (signed(e["slope"]), signed(e["work slope"]), growth)
                rows.append((name, label, f"{rate:.3f}", kind, *slopes, *sizes, *use))
    head = (
        "scenario",
        "load",
        "λ, 1/s",
        "scheduler",
        "slope of waiting, 1/s",
        "slope of waiting work, 1/s",
        "theory",
        "mean waiting",
        "most waiting",
        "KV use",
        "below (1−δ)M",
    )
    print_table(head, rows)
    return found


class QueueRun(NamedTuple):
    """Runs a scenario at a rate; called with a seed."""

    name: str
    policy: str
    rate: float
    requests: int

    def __call__(self, seed: int) -> dict[str, float]:
        """Return the slopes and sizes of the queue."""
        result = run_queue(self.name, self.policy, self.rate, seed, self.requests)
        return queue_figures(result, (1 - SLACK) * M)


def run_queue(name: str, policy: str, rate: float, seed: int, requests: int) -> SimulationResult:
    """Run a scenario at an arrival rate."""
    scenario = load_scenario(name)
    source: dict[str, Any] = {"preset": "stab-1-1", "rate": rate, "num_requests": requests}
    if name in PRINTED:
        source["preset"] = name
    table = scenario.override(workload=source).make_workload().sample(seed)
    return simulate(scenario.make_system(), table, policy, router=scenario.make_router(), seed=seed, log=True)


def queue_figures(result: SimulationResult, limit: float) -> dict[str, float]:
    """Return slopes and sizes of the queue while requests arrive, the first fifth left out.

    Args:
        result: a run with its log.
        limit: (1 − δ)M, tokens.
    """
    end = float(result.table.arrival_time[-1])
    times = np.linspace(0.2 * end, end, 2000)
    count = waiting_work(result, times)
    work = cumulative_memory(result.table.prompt_len, result.table.output_len, CHUNK).astype(np.float64)
    log = result.log
    assert log is not None
    rows = log[(log["start_time"] > 0.2 * end) & (log["start_time"] < end)]
    queued = rows[rows["num_waiting"] > 0]
    return {
        "slope": float(np.polyfit(times, count, 1)[0]),
        "work slope": float(np.polyfit(times, waiting_work(result, times, work), 1)[0] / work.mean()),
        "mean": float(count.mean()),
        "max": float(count.max()),
        "kv use": float(rows["kv_tokens"].mean() / M),
        "below": float((queued["kv_tokens"] < limit).mean()) if len(queued) else float("nan"),
    }


def waiting_work(result: SimulationResult, times: Floats, work: Floats | None = None) -> Floats:
    """Return the requests that have arrived and not been started at each time, or the sum of their work."""
    arrival, start = result.table.arrival_time, result.requests["start_time"]
    weight = np.ones(len(arrival)) if work is None else work
    total = np.zeros(len(times))
    for moments, sign in ((arrival, 1.0), (start, -1.0)):
        order = np.argsort(moments)  # NaN, never started, comes last and is never reached
        sums = np.concatenate([[0.0], np.cumsum(weight[order])])
        total += sign * sums[np.searchsorted(moments[order], times, side="right")]
    return total


def estimates(runs: Sequence[dict[str, float]]) -> dict[str, Estimate]:
    """Return each figure of the queue with its interval over runs."""
    return {key: mean_interval([run[key] for run in runs]) for key in runs[0]}


def signed(e: Estimate) -> str:
    """Return a slope with its 95 % interval over seeds."""
    return f"{e.value:+.4f} ({e.low:+.4f} – {e.high:+.4f})"


def share(value: float) -> str:
    """Return a share in per cent, – for none."""
    return "–" if np.isnan(value) else f"{value:.0%}"
