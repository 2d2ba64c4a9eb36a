"""Calibrated batch times: rates measured under overload, and b̄ by arrival rate."""

from __future__ import annotations

import numpy as np

from harness import print_table
from kvgym.batch_time.hardware import load_hardware
from kvgym.experiments.statistics import mean_interval
from kvgym.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.theory.stability import ESTIMATORS, batch_durations, typical_batch_time
from papers.stab.setting import FCFS, PRINTED, M, Plan, rate_of, replace_workload

HARDWARE = "llama3-8b-a100-tp1"


def print_measured(plan: Plan) -> dict[str, dict[str, float]]:
    """Print rates measured under overload with calibrated batch times against equation (1)."""
    print(f"## Measured rates, batch times of {HARDWARE}\n")
    rows, found = [], {}
    cases = [(name, 1, 8.0, p) for name in (*PRINTED, "stab-8-1") for p in (FCFS, "sarathi:token_budget=512")]
    cases += [("stab-1-1", 8, 40.0, FCFS)]
    for name, workers, rate, policy in cases:
        count = plan.requests if workers == 1 else plan.requests_8
        source = replace_workload(name, rate, count)
        system = calibrated(workers)
        seen = []
        for seed in range(plan.seeds if workers == 1 else max(2, plan.seeds // 3)):
            # As in the paper, b̄ comes from requests of its own, on one worker.
            training = replace_workload(name, 8.0, plan.requests).sample(1000 + seed)
            batches = batch_durations(simulate(calibrated(), training, policy, log=True))
            result = simulate(system, source.sample(seed), policy, log=True)
            row = {e: workers * rate_of(name, typical_batch_time(batches, e)) for e in ESTIMATORS}
            row["b̄"] = typical_batch_time(batches)
            row["measured"] = measured_rate(result, plan.margin)
            row["kv use"] = kv_use(result)
            seen.append(row)
        mean = {key: float(np.mean([row[key] for row in seen])) for key in seen[0]}
        spread = mean_interval([row["measured"] for row in seen])
        label = name.removeprefix("stab-").replace("-", ":") + (" ×8" if workers == 8 else "")
        engine = "chunks of 512" if policy == FCFS else "token budget 512"
        found[f"{label}, {engine}"] = mean
        gaps = (f"{mean[e]:.3f} ({abs(mean[e] / mean['measured'] - 1):.1%})" for e in ESTIMATORS)
        measured = f"{spread.value:.3f} ({spread.low:.3f} – {spread.high:.3f})"
        rows.append((label, engine, f"{mean['b̄']:.4f}", measured, *gaps, f"{mean['kv use']:.3f}"))
    print_table(
        ("ratio", "engine", "median b̄, s", "measured rate", *(f"μ, {e}" for e in ESTIMATORS), "KV use"), rows
    )
    return found


def print_batch_times(plan: Plan) -> None:
    """Print how b̄ depends on the arrival rate (Figures 1 and 5)."""
    print("## Batch times by arrival rate, 1:1\n")
    rows = []
    for rate in (1.0, 2.0, 3.0, 4.0, 5.0, 20.0):
        table = replace_workload("stab-1-1", rate, plan.requests).sample(1000)
        batches = np.sort(batch_durations(simulate(calibrated(), table, FCFS, log=True)))
        shares = (f"{float(np.quantile(batches, q)):.4f}" for q in (0.8, 0.9, 0.99))
        estimates = [typical_batch_time(batches, e) for e in ESTIMATORS]
        rows.append(
            (
                f"{rate:g}",
                *(f"{b:.4f}" for b in estimates),
                *shares,
                f"{rate_of('stab-1-1', estimates[0]):.3f}",
            )
        )
    print_table(("λ, 1/s", *ESTIMATORS, "80 %", "90 %", "99 %", "μ from the median"), rows)


def calibrated(workers: int = 1) -> System:
    """Return one A100 with Llama-3-8B and the paper's memory and rules, or several."""
    hardware = load_hardware(HARDWARE)
    one = System(M, hardware.batch_time(), first_token="uncounted", progress_on_evict="kept")
    return one if workers == 1 else one.replicate(workers)


def measured_rate(result: SimulationResult, margin: int) -> float:
    """Return μ_gpu of Section 5.2: requests finished between the arrivals of the first and last ``margin``-th."""
    arrival, finish = result.table.arrival_time, result.requests["finish_time"]
    start, end = arrival[margin], arrival[-margin]
    return float(((finish >= start) & (finish < end)).sum() / (end - start))


def kv_use(result: SimulationResult) -> float:
    """Return the KV use per batch, as a share of M, over the second half of the arrivals."""
    log, end = result.log, float(result.table.arrival_time[-1])
    assert log is not None
    rows = log[(log["start_time"] > end / 2) & (log["start_time"] < end)]
    return float(rows["kv_tokens"].mean() / M)
