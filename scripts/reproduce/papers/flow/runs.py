"""The settings of Section 4, runs of policies on them, and their formatting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from harness import Scale
from kvgym.errors import LivelockError
from kvgym.experiments.scenario import load_scenario
from kvgym.experiments.statistics import mean_interval
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

METRICS = ("e2e_latency_mean", "e2e_latency_p95", "request_throughput", "token_throughput")
LABELS = ("mean latency", "95 % latency", "requests", "tokens")
EXTRA = ("unfinished", "evictions", "put_back", "overflows", "kv_utilisation")
SLOTS = (1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10_000)
"""Horizons of Figure 1."""
BUDGETS = "flow_control_classes:budgets=4/4/4"
CAPACITY = 16_492
TUNING_SEED = 1000  # searches are done on seeds from here on, never on those that are reported
# Rounds without any new token before a run is a livelock; no request takes more than 60 slots in Section 4.1, a few
# thousand iterations in 4.2.
PATIENCE = {"flow-classes": 1000, "flow-unknown": 1000, "flow-lmsys-10": 20_000, "flow-lmsys-50": 20_000}

Values = Mapping[str, Sequence[float]]


def slotted(name: str, slots: int, seed: int, rate: float = 15.0) -> RequestTable:
    """Return the requests of Section 4.1 that arrive in the first slots.

    Args:
        name: ``flow-classes`` (known lengths) or ``flow-unknown``.
        slots: the horizon T.
        seed: of the requests.
        rate: arrivals per slot, all classes together; the paper's are 15.
    """
    scenario = load_scenario(name)
    workload = {**dict(scenario.workload), "duration": slots, "rate": rate}  # type: ignore[arg-type]
    return scenario.override(workload=workload).make_workload().sample(seed)


def system_of(name: str, horizon: float = np.inf) -> System:
    """Return the system of a scenario, which calls a livelock early, stopped at a horizon in seconds."""
    return replace(load_scenario(name).make_system(), stall_limit=PATIENCE[name], horizon=float(horizon))


def run_slotted(task: tuple[str, str, int, float, int, bool]) -> dict[str, float]:
    """Return the metrics of a run of Section 4.1; NaN where it livelocks.

    Args:
        task: scenario, policy, slots, arrivals per slot, seed, and whether it stops at the last slot.
    """
    name, policy, slots, rate, seed, stopped = task
    return metrics_of(
        system_of(name, slots if stopped else np.inf), slotted(name, slots, seed, rate), policy, seed
    )


def metrics_of(system: System, table: RequestTable, policy: str, seed: int) -> dict[str, float]:
    """Return the metrics of a run; NaN where it livelocks."""
    try:
        return compute_metrics(simulate(system, table, policy, seed=seed), METRICS + EXTRA)
    except LivelockError:
        return dict.fromkeys(METRICS + EXTRA, float("nan"))


def gather(
    scale: Scale, name: str, policies: Sequence[str], slots: Sequence[int], seeds: Sequence[int],
    *, rate: float = 15.0, stopped: bool = False,
) -> dict[tuple[str, int], dict[str, list[float]]]:  # fmt: skip
    """Return the metrics of policies over horizons, a value per seed."""
    tasks = [(name, policy, t, rate, seed, stopped) for policy in policies for t in slots for seed in seeds]
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for task, metrics in zip(tasks, scale.do_all(run_slotted, tasks), strict=True):
        for metric, value in metrics.items():
            found.setdefault((task[1], task[2]), {}).setdefault(metric, []).append(value)
    return found


def mean(values: Sequence[float]) -> float:
    """Return the mean over the runs that did not fail; NaN if all did."""
    done = [value for value in values if not np.isnan(value)]
    return float(np.mean(done)) if done else float("nan")


def interval(values: Sequence[float]) -> str:
    """Return a mean with its 95 % bootstrap interval over the seeds without failure."""
    done = [value for value in values if not np.isnan(value)]
    if not done:
        return "–"
    e = mean_interval(done)
    return number(e.value) if np.isnan(e.low) else f"{number(e.value)} ({number(e.low)} – {number(e.high)})"


def number(value: float) -> str:
    """Return four significant digits with thousands separators; – if not measured."""
    if np.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.4g}"


def rows_of(results: Mapping[str, Values]) -> list[tuple[str, ...]]:
    """Return a row per policy: the four metrics with intervals, and counts of requests."""
    rows = []
    for policy, values in results.items():
        lost = int(np.isnan(values["unfinished"]).sum())
        extra = (number(mean(values[name])) for name in EXTRA)
        figures = (*(interval(values[name]) for name in METRICS), *extra)
        rows.append((f"`{policy}`", *figures, f"{lost} of {len(values['unfinished'])}"))
    return rows


def head_of(unit: str) -> tuple[str, ...]:
    """Return the head of such a table; ``unit`` is ``slots`` or ``s``."""
    per = "s" if unit == "s" else "slot"
    heads = (f"E2E mean, {unit}", f"E2E p95, {unit}", f"requests/{per}", f"tokens/{per}")
    return ("policy", *heads, "unfinished", "evictions", "put back", "overflows", "KV use", "livelocks")


def choose(found: Mapping[str, Values], metric: str = "e2e_latency_mean") -> str:
    """Return the policy of a search with the least mean latency where no run fails; the last where all do."""
    scores = {policy: float(np.mean(values[metric])) for policy, values in found.items()}
    finite = {policy: score for policy, score in scores.items() if not np.isnan(score)}
    return min(finite, key=lambda policy: finite[policy]) if finite else list(found)[-1]


def search_table(found: Mapping[str, Values], what: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return head and row of the table of a search, with the choice in bold."""
    best = choose(found)
    labels = {policy: policy.partition("=")[2].partition(",")[0] for policy in found}
    head = (what, *(f"**{label}**" if policy == best else label for policy, label in labels.items()))
    return head, [
        ("E2E mean", *(number(float(np.mean(values["e2e_latency_mean"]))) for values in found.values()))
    ]
