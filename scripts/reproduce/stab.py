"""Reproduce the figures of the stability paper (Section 5, Appendix C), as Markdown tables.

    python scripts/reproduce/stab.py                                     all, a few minutes
    python scripts/reproduce/stab.py --figure docs/images/stab.png       and the picture of the queues
    python scripts/reproduce/stab.py --quick                             seconds, to see that it runs

"A Queueing-Theoretic Framework for Stability Analysis of LLM Inference with KV Cache Memory Constraints".
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware import load_hardware
from kvgym.experiments.scenario import load_scenario
from kvgym.experiments.statistics import Estimate, mean_interval
from kvgym.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.theory.stability import (
    ESTIMATORS,
    batch_durations,
    cumulative_memory,
    implied_batch_time,
    is_overloaded,
    is_stable,
    mean_cumulative_memory_uniform,
    memory_slack,
    provision,
    service_rate,
    typical_batch_time,
)
from kvgym.workloads.workload import Workload

M = 131_000
CHUNK = 512  # prompt tokens per chunk, the schedulers' default; the paper does not print its own
LONGEST = 3200  # largest prompt + output of 1:1; the other ratios end at 3199 and 3200
FCFS, LOOKAHEAD = "work_conserving_fcfs", "work_conserving_fcfs_lookahead"
SINGLE = (FCFS, LOOKAHEAD, "work_conserving_sjf", "work_conserving_sjf_lookahead")
HARDWARE = "llama3-8b-a100-tp1"

# Tables 1, 2 and 4: printed b̄ (s), service rate in theory and as measured (requests per second).
PRINTED = {
    "stab-1-1": (0.0372, 3.226, 3.387),
    "stab-2-1": (0.0430, 4.015, 3.650),
    "stab-1-2": (0.0337, 2.926, 2.969),
}
PRINTED_8_1 = {"trimmed_5": 4.977, "trimmed_10": 5.862}
MEASURED_8_1 = 5.470
PRINTED_8_GPUS = (25.808, 26.710)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """How much to run: seeds, and requests per run on one and on eight workers."""

    seeds: int = 10
    requests: int = 10_000
    requests_8: int = 56_000
    margin: int = 1000  # requests left out at each end where a rate is measured, Section 5.2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small version, for a first look")
    parser.add_argument("--seeds", type=int, help="seeds per figure (default 10)")
    parser.add_argument("--figure", type=Path, help="where to draw the queue lengths (PNG; needs matplotlib)")
    parser.add_argument("--out", type=Path, help="folder for stab.json with the simulated figures")
    args = parser.parse_args(arguments)
    plan = Plan(seeds=2, requests=600, requests_8=2400, margin=100) if args.quick else Plan()
    plan = replace(plan, seeds=args.seeds or plan.seeds)
    print_theory()
    found = {"queues": print_queues(plan), "measured": print_measured(plan)}
    print_batch_times(plan)
    found["provisioning"] = print_provisioning(plan)
    if args.figure is not None:
        draw_queues(plan, args.figure)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found, indent=1, default=lambda e: vars(e)).replace("NaN", "null")
        (args.out / "stab.json").write_text(text + "\n", encoding="utf-8")


# ------------------------------------------------------------ theory


def bounds_of(workload: Workload) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the (lowest, highest) prompt and output lengths of a workload with uniform lengths."""
    lengths: Any = workload.spec.lengths
    return (lengths.prompt.low, lengths.prompt.high), (lengths.output.low, lengths.output.high)


def rate_of(name: str, batch_time: float, chunk: int = CHUNK) -> float:
    """Return μ of one worker of a scenario from equation (1), requests per second."""
    prompt, output = bounds_of(load_scenario(name).make_workload())
    return service_rate(M, batch_time, mean_cumulative_memory_uniform(prompt, output, chunk))


def print_theory() -> None:
    """Print the rates of Tables 1, 3 and 4 from equation (1)."""
    print("## The printed rates from equation (1)\n")
    rows = []
    for name, (batch_time, printed, _) in PRINTED.items():
        prompt, output = bounds_of(load_scenario(name).make_workload())
        by_chunk = [rate_of(name, batch_time, chunk) for chunk in (128, 256, CHUNK, 4096)]
        lengths = np.arange(prompt[0], prompt[1] + 1)
        ratio = {"stab-1-1": 1.0, "stab-2-1": 0.5, "stab-1-2": 2.0}[name]
        tied = cumulative_memory(lengths, np.maximum((lengths * ratio).astype(np.int64), 1), CHUNK).mean()
        rows.append(
            (
                name.removeprefix("stab-").replace("-", ":"),
                f"{batch_time:.4f}",
                f"{printed:.3f}",
                *(f"{rate:.3f} ({rate / printed - 1:+.1%})" for rate in by_chunk),
                f"{service_rate(M, batch_time, tied):.3f}",
            )
        )
    head = (
        "ratio",
        "b̄, s",
        "printed",
        "chunk 128",
        "256",
        str(CHUNK),
        "whole prompts",
        "output = ratio × prompt",
    )
    print_table(head, rows)
    printed = PRINTED["stab-1-1"][1]
    print(f"Eight workers: 8 × {printed} = {8 * printed:.3f} (printed {PRINTED_8_GPUS[0]}); ", end="")
    print(
        f"8 × {rate_of('stab-1-1', 0.0372):.3f} = {8 * rate_of('stab-1-1', 0.0372):.3f} with chunks of {CHUNK}.\n"
    )
    prompt, output = bounds_of(load_scenario("stab-8-1").make_workload())
    mean = mean_cumulative_memory_uniform(prompt, output, CHUNK)
    implied = {name: implied_batch_time(M, rate, mean) for name, rate in PRINTED_8_1.items()}
    print(f"8:1 prints rates but no batch times; with prompts {prompt} and outputs {output} they follow from")
    print(
        ", ".join(f"b̄ = {b:.4f} s ({name}, rate {PRINTED_8_1[name]})" for name, b in implied.items()) + ".\n"
    )
    print(f"δ = {memory_slack(M, LONGEST):.4f}.\n")


# ------------------------------------------------------------ queues in slotted time


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


def run_queue(name: str, policy: str, rate: float, seed: int, requests: int) -> SimulationResult:
    """Run a scenario at an arrival rate."""
    scenario = load_scenario(name)
    source: dict[str, Any] = {"preset": "stab-1-1", "rate": rate, "num_requests": requests}
    if name in PRINTED:
        source["preset"] = name
    table = scenario.override(workload=source).make_workload().sample(seed)
    return simulate(scenario.make_system(), table, policy, router=scenario.make_router(), seed=seed, log=True)


def print_queues(plan: Plan) -> dict[str, dict[str, Estimate]]:
    """Print the growth of the queue at 0.9 μ(1 − δ) and at 1.1 μ."""
    print("## Queues below and above the rate, batches of constant length\n")
    slack = memory_slack(M, LONGEST)
    rows, found = [], {}
    for name in (*PRINTED, "stab-8-gpus"):
        workers = 8 if name == "stab-8-gpus" else 1
        base = "stab-1-1" if workers == 8 else name
        service = workers * rate_of(base, PRINTED[base][0])
        for label, rate in (("0.9 μ(1−δ)", 0.9 * service * (1 - slack)), ("1.1 μ", 1.1 * service)):
            assert is_stable(rate, service, slack) != is_overloaded(rate, service)
            for policy in SINGLE if workers == 1 else SINGLE[:2]:
                count = plan.requests if workers == 1 else plan.requests_8
                runs = [
                    queue_figures(run_queue(name, policy, rate, seed, count), (1 - slack) * M)
                    for seed in range(plan.seeds)
                ]
                e = {key: mean_interval([r[key] for r in runs]) for key in runs[0]}
                found[f"{name} {label} {policy}"] = e
                # Between Theorem 1 and what the proof of Theorem 2 guarantees of the use of memory.
                least, most = rate - service, rate - service * (1 - slack)
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


# ------------------------------------------------------------ calibrated batch times


def measured_rate(result: SimulationResult, margin: int) -> float:
    """Return μ_gpu of Section 5.2: requests finished between the arrivals of the first and last ``margin``-th."""
    arrival, finish = result.table.arrival_time, result.requests["finish_time"]
    start, end = arrival[margin], arrival[-margin]
    return float(((finish >= start) & (finish < end)).sum() / (end - start))


def calibrated(workers: int = 1) -> System:
    """Return one A100 with Llama-3-8B and the paper's memory and rules, or several."""
    hardware = load_hardware(HARDWARE)
    one = System(M, hardware.batch_time(), first_token="uncounted", progress_on_evict="kept")
    return one if workers == 1 else one.replicate(workers)


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


def kv_use(result: SimulationResult) -> float:
    """Return the KV use per batch, as a share of M, over the second half of the arrivals."""
    log, end = result.log, float(result.table.arrival_time[-1])
    assert log is not None
    rows = log[(log["start_time"] > end / 2) & (log["start_time"] < end)]
    return float(rows["kv_tokens"].mean() / M)


def replace_workload(name: str, rate: float, requests: int) -> Workload:
    """Return the workload of a scenario at another rate and length."""
    source = load_scenario(name).workload
    fields = {"preset": source} if isinstance(source, str) else dict(source)
    return (
        load_scenario(name)
        .override(workload={**fields, "rate": rate, "num_requests": requests})
        .make_workload()
    )


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


# ------------------------------------------------------------ provisioning


def print_provisioning(plan: Plan) -> dict[str, dict[str, Estimate]]:
    """Print how many workers a load of 24 requests per second needs, and what one fewer does."""
    print("## Provisioning, 1:1, 24 requests per second\n")
    service, slack, rate = rate_of("stab-1-1", 0.0372), memory_slack(M, LONGEST), 24.0
    counts = {
        "⌈λ/μ⌉": provision(rate, service),
        "⌈λ/(0.9 μ)⌉": provision(rate, service, utilisation=0.9),
        "λ < nμ(1−δ)": provision(rate, service, slack=slack),
    }
    print(f"μ = {service:.3f}: " + ", ".join(f"{rule} gives {n}" for rule, n in counts.items()) + ".\n")
    enough = counts["⌈λ/μ⌉"]
    rows, found = [], {}
    one = load_scenario("stab-1-1").make_system()
    for workers in (enough - 1, enough, enough + 1):
        runs = []
        for seed in range(plan.seeds):
            table = replace_workload("stab-1-1", rate, plan.requests_8).sample(seed)
            result = simulate(one.replicate(workers), table, FCFS, router="round_robin", log=True)
            runs.append(queue_figures(result, (1 - slack) * M))
        e = {key: mean_interval([r[key] for r in runs]) for key in runs[0]}
        found[str(workers)] = e
        load = f"{rate / (workers * service):.3f}"
        worst = f"{max(r['max'] for r in runs):.0f}"
        rows.append((str(workers), load, signed(e["slope"]), f"{e['mean'].value:.1f}", worst))
    print_table(("workers", "λ/(nμ)", "slope of waiting, 1/s", "mean waiting", "most waiting"), rows)
    return found


# ------------------------------------------------------------ output


def draw_queues(plan: Plan, path: Path) -> None:
    """Draw the number of waiting requests over time, one and eight workers (as in Figures 2 and 4)."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from kvgym.report.plots import INK, PALETTE, STYLE

    slack = memory_slack(M, LONGEST)
    cases = (
        ("stab-1-1", 1, plan.requests, "one worker"),
        ("stab-8-gpus", 8, plan.requests_8, "eight workers"),
    )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.6), layout="constrained")
        axes = figure.subplots(2, 2)
        for column, (name, workers, requests, title) in enumerate(cases):
            service = workers * rate_of("stab-1-1", 0.0372)
            for row, (factor, load) in enumerate(((1.1, "1.1 μ"), (0.9 * (1 - slack), "0.9 μ(1−δ)"))):
                ax, last = axes[row, column], 0.0
                for color, policy, what in zip(PALETTE, SINGLE[:2], ("swap", "look-ahead"), strict=False):
                    result = run_queue(name, policy, factor * service, 0, requests)
                    last = float(result.table.arrival_time[-1])
                    times = np.linspace(0, last, 400)
                    ax.plot(times, waiting_work(result, times), color=color, linewidth=1, label=what)
                if factor > 1:
                    ax.plot(
                        (0, last),
                        (0, 0.1 * service * last),
                        ":",
                        color=INK,
                        linewidth=0.9,
                        label="slope λ − μ",
                    )
                ax.set(
                    title=f"{title}, λ = {load} = {factor * service:.2f}/s", xlim=(0, None), ylim=(0, None)
                )
            axes[1, column].set_xlabel("time (s)")
        for row in range(2):
            axes[row, 0].set_ylabel("requests waiting")
        axes[0, 0].legend(loc="upper left", fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)


def signed(e: Estimate) -> str:
    """Return a slope with its 95 % interval over seeds."""
    return f"{e.value:+.4f} ({e.low:+.4f} – {e.high:+.4f})"


def share(value: float) -> str:
    """Return a share in per cent, – for none."""
    return "–" if np.isnan(value) else f"{value:.0%}"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(row) + " |")
    print()


if __name__ == "__main__":
    main()
