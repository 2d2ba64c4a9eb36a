"""Reproduce the experiments of the WAIT paper, and measure where WAIT and Nested WAIT win.

Source: R. Ao, G. Luo, D. Simchi-Levi, X. Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with
Memory Constraints", Sections 4.1, 6 and 7. Prints Markdown tables; docs/reproductions/wait.md discusses them.

    python scripts/reproduce/wait.py                    # everything
    python scripts/reproduce/wait.py --only literal     # one section
    python scripts/reproduce/wait.py --quick            # seconds: shows that it runs, the figures mean nothing
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvgym import RequestTable, System, compare, load_hardware, make_batch_time, make_policy, make_workload
from kvgym.errors import ConfigError
from kvgym.experiments.comparison import Comparison, label_of
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.experiments.statistics import Estimate
from kvgym.runner import simulate
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.theory.buffers import memory_bound, memory_by_segments
from kvgym.theory.fluid import (
    batch_memory,
    fcfs_overflow_probability,
    full_batch_time,
    practical_thresholds,
    safe_arrivals,
    stability_load,
    wait_thresholds,
)
from kvgym.theory.nested import nested_thresholds, segment_memory
from kvgym.workloads.classes import ClassStatistics

HARDWARE = "llama2-7b-a100-tp1"
RULES = {"first_token": "decode", "progress_on_evict": "lost", "requeue": "back"}
MULTIPLES = (1.0, 1.05, 1.5, 3.0)
LITERAL = ("wait-low", "wait-high", "wait-nested", "wait-bins-low", "wait-bins-high")
BIN_RATES = (23, 11, 8, 7, 6, 4, 3, 2, 1, 1)
METRICS = ("token_throughput", "e2e_latency_mean", "e2e_latency_p95", "ttft_mean", "evictions", "unfinished")
HEADS = ("output tokens/s", "E2E mean, s", "E2E p95, s", "TTFT mean, s", "evictions", "unfinished")


@dataclass(frozen=True)
class Balanced:
    """A workload at rates for which the fluid equilibrium has whole numbers of requests per stage.

    Attributes:
        preset: name of the workload, whose proportions of rates are kept.
        unit: arrivals of one iteration per unit of the smallest proportion, with the affine model.
        hardware_unit: the same with the calibrated hardware; 0 = not run there.
        proportions: of the classes' rates, whole numbers.
        residences: length of a run with the affine model, in times that the longest request takes at equilibrium.
        hardware_residences: the same with the calibrated hardware.
        most_seeds: seeds at most.
    """

    preset: str
    unit: int
    hardware_unit: int
    proportions: tuple[int, ...]
    residences: float
    hardware_residences: float
    most_seeds: int = 1000


BALANCED = (
    Balanced("wait-low", 313, 5, (1, 1), 10, 300, most_seeds=3),
    Balanced("wait-high", 2, 1, (3, 2, 1), 20, 20),
    Balanced("wait-nested", 1, 1, (1, 2, 4, 8), 20, 20),
    Balanced("wait-bins-low", 1, 0, BIN_RATES, 8, 0, most_seeds=2),
)


def fit_affine(batch_time: BatchTimeModel, capacity: int) -> tuple[float, float, float, float, int]:
    """Return d0, d1 of eq. (1) by least squares over decode batches, median and largest error, and points."""
    grid = [
        (n, c) for n in (1, 2, 4, 8, 16, 32, 64, 96, 128) for c in (32, 64, 128, 256, 512, 1024, 2048, 4032)
    ]
    rows = [(n, c) for n, c in grid if n * (c + 1) <= capacity]
    none = dict.fromkeys(
        ("num_prefills", "prefill_tokens", "prefill_context", "prefill_squares", "prefill_products"), 0
    )
    seconds = np.array([float(batch_time(**none, num_decodes=n, decode_context=n * c)) for n, c in rows])
    tokens = np.array([n * (c + 1) for n, c in rows], dtype=float)
    columns = np.column_stack([np.ones(len(rows)), tokens])
    (d0, d1), *_ = np.linalg.lstsq(columns, seconds, rcond=None)
    error = np.abs((d0 + d1 * tokens) / seconds - 1)
    return float(d0), float(d1), float(np.median(error)), float(error.max()), len(rows)


def rate_at(classes: Sequence[ClassStatistics], memory: float, model: BatchTimeModel) -> float:
    """Return the total rate at which the fluid equilibrium of a batch-time model holds ``memory`` tokens.

    n_j = lambda_j tau(n) in place of eq. (7): with the affine model the inverse of eq. (8).
    """
    total = sum(c.rate for c in classes)
    unit = np.array([c.rate / total for c in classes])
    scale = memory / batch_memory(classes, unit)
    return scale / full_batch_time(classes, scale * unit, model)


def least_equilibrium(classes: Sequence[ClassStatistics], rate: float, model: BatchTimeModel) -> float:
    """Return the KV tokens of the smallest fluid equilibrium at a total rate, by iteration from an empty worker.

    With the affine model there is one equilibrium, M* of eq. (8). Measured batch times rise in steps, so that
    there can be several.
    """
    total = sum(c.rate for c in classes)
    unit = np.array([c.rate / total for c in classes])
    arrivals = 0.0  # of an iteration; batch times do not fall when it grows
    for _ in range(20_000):
        following = rate * full_batch_time(classes, arrivals * unit, model)
        if following <= arrivals * (1 + 1e-9):
            break
        arrivals = following
    return float(batch_memory(classes, arrivals * unit))


def interval(e: Estimate, digits: int = 3) -> str:
    """Return a mean with its 95% interval."""
    if not np.isfinite(e.value):
        return "–"
    mean = number(e.value, digits)
    if not np.isfinite(e.low) or e.low == e.high:
        return mean
    return f"{mean} [{number(e.low, digits)}, {number(e.high, digits)}]"


def number(x: float, digits: int = 3) -> str:
    """Return a number with ``digits`` significant ones, and all those before the decimal point."""
    if not np.isfinite(x):
        return "∞" if x > 0 else "–"
    return f"{x:,.0f}" if abs(x) >= 10 ** (digits - 1) else f"{x:#.{digits}g}".rstrip("0").rstrip(".")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def scenario_of(
    name: str, workload: dict[str, Any], capacity: int, model: dict[str, Any] | None, **rules: Any
) -> Scenario:
    """Return a scenario of the paper's engine; ``model`` None is the calibrated hardware."""
    time = {"hardware": HARDWARE} if model is None else {"batch_time": model}
    content = {"name": name, "summary": name, "workload": workload, "kv_capacity": capacity, **time}
    return Scenario.model_validate({**content, "system": {**RULES, **rules}})


def result_rows(outcome: Comparison, names: dict[str, str], reference: str) -> list[list[str]]:
    """Return a row for each policy: the metrics, and the ratio of throughput to the reference policy's."""
    rows = []
    for name, spec in names.items():
        label = label_of(make_policy(spec))
        cells = [interval(outcome.estimate(label, m)) for m in METRICS]
        ratio = outcome.ratio(label, label_of(make_policy(names[reference])), "token_throughput")
        error = outcome.errors().get(label, "")
        rows.append([name, *cells, interval(ratio)] if not error else [name, error[:140], *[""] * 6])
    return rows


def short_names(specs: Sequence[str]) -> dict[str, str]:
    """Return policy specs under readable names."""
    return {(s if s.startswith(("wait", "nested")) else s.partition(":")[0]): s for s in specs}


def literal(options: argparse.Namespace) -> None:
    """Run the paper's settings at its printed rates: over a horizon of arrivals, and until all are done."""
    d0, d1, *_ = fit_affine(load_hardware(HARDWARE).batch_time(), load_hardware(HARDWARE).kv_capacity)
    names = LITERAL[:1] if options.quick else LITERAL
    loads = []
    for name in names:
        s = load_scenario(name)
        system, classes = s.make_system(), s.make_workload().class_statistics
        rate, affine = sum(c.rate for c in classes), stability_load(classes, d1)
        memory = d0 / d1 * affine / (1 - affine) if affine < 1 else float("nan")
        most = rate_at(classes, system.kv_capacity, system.batch_time)
        cells = [rate, sum(c.rate * c.output_len for c in classes), affine, memory, most, rate / most]
        loads.append([name, *(number(x) for x in cells)])
    print("### Load of the printed rates\n")
    head = (
        "requests/s",
        "output tokens/s",
        "load, affine fit",
        "M* (8)",
        "A100 sustains, requests/s",
        "rate over that",
    )
    table(("scenario", *head), loads)
    classes = make_workload("wait-high").class_statistics
    practical = practical_thresholds(classes, 1024)
    print(
        f"Practical thresholds of wait-high: {'/'.join(map(str, practical))}, M^pi "
        f"{batch_memory(classes, practical):,.0f}; of wait-low: "
        f"{'/'.join(map(str, practical_thresholds(make_workload('wait-low').class_statistics, 128)))}.\n"
    )
    for name in names:
        s = load_scenario(name)
        for reading in ("horizon", "drained"):
            changed = s
            if options.quick:
                changed = s.override(
                    workload={"preset": name, "duration": 0.5}, system={**RULES, "horizon": 0.5}
                )
            elif reading == "drained":
                changed = s.override(workload={"preset": name, "num_requests": 10_000}, system=RULES)
            outcome = compare(changed, seeds=options.seeds)
            print(f"### {name}, {reading}: {outcome.num_requests[0]:,} requests in seed 0\n")
            table(
                ("policy", *HEADS, "throughput / vLLM"), result_rows(outcome, short_names(s.policies), "vllm")
            )


def balanced_policies(b: Balanced, n: np.ndarray, ends: Sequence[int], multiple: float) -> dict[str, str]:
    """Return the policies under the same limit of requests in a batch: those of WAIT's full batch."""
    limit = int(n @ (np.array(ends) + 1))
    tails = np.cumsum(n[::-1])[::-1]
    spread = [int(np.floor(x * multiple + 1e-9)) for x in n]
    wide = [int(np.floor(x * multiple + 1e-9)) for x in tails]
    made = {
        "fcfs": "fcfs",
        "vllm": f"vllm:max_batch_requests={limit},max_batch_tokens={4 * limit},watermark=0.0",
        "sarathi": f"sarathi:max_batch_requests={limit},token_budget={4 * limit},watermark=0.0",
        "wait, n*": f"wait:thresholds={'/'.join(map(str, n))}",
        "wait, n* C/M*": f"wait:thresholds={'/'.join(map(str, spread))}",
        "wait, practical": f"wait:rule=practical,batch_limit={limit}",
        "nested, n*": f"nested_wait:thresholds={'/'.join(map(str, tails))}",
        "nested, n* C/M*": f"nested_wait:thresholds={'/'.join(map(str, wide))}",
    }
    if spread == list(n) or len(n) > 4:  # ten types take long
        del made["wait, n* C/M*"], made["nested, n* C/M*"]
    if len(n) > 4:
        del made["wait, practical"]
    return made


def multiples(options: argparse.Namespace) -> dict[tuple[str, str], list[dict[str, float]]]:
    """Run every setting at rates whose equilibrium has whole thresholds, with C = 1 … 3 M*."""
    hardware = load_hardware(HARDWARE)
    d0, d1, median, worst, points = fit_affine(hardware.batch_time(), hardware.kv_capacity)
    print(
        f"Affine fit over {points} decode batches: d0 = {1e3 * d0:.3f} ms, d1 = {1e6 * d1:.4f} µs per KV token; "
        f"relative error median {median:.1%}, largest {worst:.1%}.\n"
    )
    affine = {"kind": "affine", "constant": d0, "per_context_token": d1}
    shares: dict[tuple[str, str], list[dict[str, float]]] = {}
    for kind in ("affine", "hardware"):
        model = make_batch_time(affine) if kind == "affine" else hardware.batch_time()
        chosen = [b for b in BALANCED if options.preset in (None, b.preset)]
        chosen = [b for b in chosen if kind == "affine" or b.hardware_unit]
        for b in chosen[:1] if options.quick else chosen:
            base = make_workload(b.preset).class_statistics
            n = (b.unit if kind == "affine" else b.hardware_unit) * np.array(b.proportions)
            memory = batch_memory(base, n)
            duration = full_batch_time(base, n, model)
            rate, ends = float(n.sum()) / duration, [round(c.output_len) for c in base]
            load = rate / rate_at(base, 1e9, model)
            residences = b.residences if kind == "affine" else b.hardware_residences
            horizon = residences * (ends[-1] + 1) * duration
            if options.quick:
                horizon /= 10
            fluid = float(n @ ends) / duration
            nested = segment_memory(np.cumsum(n[::-1])[::-1], base[0].prompt_len, ends)
            print(
                f"### {b.preset}, {kind}: {rate:.4g} requests/s, load {load:.3f}, M* = {memory:,.0f}, n* = "
                f"{'/'.join(map(str, n))} ({n @ (np.array(ends) + 1):,} requests), iteration {1e3 * duration:.1f} ms, "
                f"fluid throughput {fluid:,.0f} tokens/s, horizon {horizon:.0f} s; M^pi of nested {nested:,.0f}, least "
                f"equilibrium {least_equilibrium(base, rate, model):,.0f}\n"
            )
            workload = {"preset": b.preset, "rate": rate, "duration": horizon}
            rows = []
            for multiple in MULTIPLES[:1] if options.quick else MULTIPLES:
                s = scenario_of(
                    b.preset,
                    workload,
                    int(np.ceil(multiple * memory)),
                    affine if kind == "affine" else None,
                    horizon=horizon,
                )
                policies = balanced_policies(b, n, ends, multiple)
                outcome = compare(s, list(policies.values()), seeds=min(options.seeds, b.most_seeds))
                found = result_rows(outcome, policies, "fcfs")
                labels = {name: label_of(make_policy(spec)) for name, spec in policies.items()}
                share = {
                    name: outcome.estimate(label, "token_throughput").value / fluid
                    for name, label in labels.items()
                }
                shares.setdefault((b.preset, kind), []).append(share)
                rows += [[f"{multiple:g}", r[0], f"{share[r[0]]:.3f}", *r[1:]] for r in found]
            table(("C/M*", "policy", "share of fluid", *HEADS, "throughput / FCFS"), rows)
    return shares


def low_demand(options: argparse.Namespace) -> None:
    """Run the three types of the high-demand setting far below saturation, with the whole memory."""
    hardware = load_hardware(HARDWARE)
    classes = make_workload("wait-high").class_statistics
    most = rate_at(classes, hardware.kv_capacity, hardware.batch_time())
    rows = []
    for share in (0.5,) if options.quick else (0.1, 0.5, 0.9):
        horizon = 20 if options.quick else 600
        workload = {"preset": "wait-high", "rate": share * most, "duration": horizon}
        s = scenario_of("low", workload, hardware.kv_capacity, None)
        policies = short_names(
            (
                "fcfs",
                "vllm:max_batch_requests=1024",
                "sarathi:token_budget=2048,max_batch_requests=1024",
                "wait",
                "wait:rule=practical,batch_limit=1024",
                "nested_wait",
            )
        )
        known = wait_thresholds(s.make_workload().class_statistics, hardware.batch_time())
        nested = nested_thresholds(
            share * most * np.array([3, 2, 1]) / 6, 20, [100, 200, 300], hardware.batch_time()
        )
        print(
            f"Share {share:g}: thresholds (11) {'/'.join(map(str, known))}, M^pi {batch_memory(classes, known):,.0f}; "
            f"(12) {'/'.join(map(str, nested))}, M^pi {segment_memory(nested, 20, [100, 200, 300]):,.0f}.\n"
        )
        outcome = compare(s, list(policies.values()), seeds=options.seeds)
        rows += [[f"{share:g}", r[0], *r[1:6], r[7]] for r in result_rows(outcome, policies, "vllm")]
    print(f"Share of the rate at which M* = C, {most:.1f} requests/s on this hardware; until all are done.\n")
    table(("share", "policy", *HEADS[:5], "throughput / vLLM"), rows)


def example_table(rate: int, iterations: int) -> RequestTable:
    """Return Example 2: 3 requests about to decode, 6 to be prefilled, then ``rate`` in every iteration."""
    times = [0.0] * 3 + [0.5] * 6 + [k + 0.5 for k in range(1, iterations) for _ in range(rate)]
    ones = np.ones(len(times), np.int64)
    return RequestTable.from_columns(
        arrival_time=np.array(times), prompt_len=ones, output_len=ones, class_id=0 * ones,
        classes=(ClassStatistics("hello", float(rate), 1.0, 1.0),),
    )  # fmt: skip


def examples(options: argparse.Namespace) -> None:
    """Examples 1 and 2 and the instance of Proposition 3: exact figures, and long runs near C = M*."""
    iterations = 200 if options.quick else 20_000
    pair = (ClassStatistics("1", 1.0, 1.0, 1.0), ClassStatistics("2", 1.0, 1.0, 2.0))
    print(
        f"Proposition 3: overflow probability {fcfs_overflow_probability(pair, [1, 1]):.4f}, "
        f"safe pairs {safe_arrivals(pair, [1, 1])}.\n"
    )
    unit = make_batch_time({"kind": "unit"})
    start = example_table(4, iterations)
    rows = []
    for policy in ("fcfs", "wait:thresholds=4,drain=False", "sarathi:watermark=0.0"):
        system = System(kv_capacity=12, batch_time=unit, horizon=float(iterations), **RULES)
        done = simulate(system, start, policy).worker[0]
        finished, gone = int(done["total_finished"]), int(done["total_evicted"])
        rows.append([policy.partition(":")[0], f"{finished / iterations:.3f}", f"{gone / iterations:.3f}"])
    table(
        (
            "Example 2 as printed (4 arrivals in every iteration)",
            "completions/iteration",
            "evictions/iteration",
        ),
        rows,
    )
    rows = []
    for name, outputs, per_stage, capacities in (
        ("Example 2", (1,), 4, (12, 13, 14, 18)),
        ("Proposition 3", (1, 2), 1, (9, 10, 11, 14)),
    ):
        classes = [
            {
                "rate": per_stage,
                "prompt": {"kind": "constant", "value": 1},
                "output": {"kind": "constant", "value": o},
            }
            for o in outputs
        ]
        policies = {
            "fcfs": "fcfs",
            "wait, n*": f"wait:thresholds={per_stage}",
            "sarathi": "sarathi:watermark=0.0",
        }
        best = per_stage * sum(outputs)
        for d1 in (0.0, 0.05):
            memory = capacities[0]
            model = {"kind": "affine", "constant": 1 - d1 * memory, "per_context_token": d1}
            for capacity in capacities:
                workload = {"classes": classes, "duration": iterations}
                s = scenario_of(name, workload, capacity, model, horizon=iterations)
                outcome = compare(s, list(policies.values()), seeds=options.seeds)
                cells = [name, f"{d1:g}", f"{capacity} ({capacity / memory:.3g} M*)"]
                for spec in policies.values():
                    label = label_of(make_policy(spec))
                    cells.append(f"{outcome.estimate(label, 'token_throughput').value / best:.3f}")
                cells += [number(outcome.estimate("fcfs", "evictions").value / iterations)]
                rows.append(cells)
    head = ("instance, Poisson arrivals", "d1", "C", *(f"{p}, share of fluid" for p in policies))
    table((*head, "FCFS evictions per second"), rows)


def segments(options: argparse.Namespace) -> None:
    """The memory bound (17) against the number of segments, Figures 16 to 18."""
    hardware = load_hardware(HARDWARE)
    d0, d1, *_ = fit_affine(hardware.batch_time(), hardware.kv_capacity)
    shares = np.repeat(np.array(BIN_RATES) / sum(BIN_RATES) / 50, 50)
    for name, prompt_len, lengths, n, rates in (
        ("m = 4, 15/14/12/8", 10, (20, 40, 80, 160), (15, 14, 12, 8), (20, 40, 80, 160)),
        ("m = 4, 8/8/7/5", 10, (20, 40, 80, 160), (8, 8, 7, 5), (20, 40, 80, 160)),
        ("ten bins, one each", 60, range(50, 501, 50), (1,) * 10, BIN_RATES),
        ("ten bins, 66/43/…/1", 60, range(50, 501, 50), (66, 43, 32, 24, 17, 11, 7, 4, 2, 1), BIN_RATES),
    ):
        bound = memory_bound(n, prompt_len, lengths, rates, 201, 0.1)
        print(f"{name}: M^pi = {bound.batch:,.0f} tokens, bound (14) {number(bound.total)}.\n")
    counts = (5, 10) if options.quick else (1, 2, 4, 5, 10, 20, 25, 50, 100)
    rows = []
    for total, horizon, delta in (
        (50, 200, 0.1),
        (50, 200, 1e-5),
        (500, 200, 0.1),
        (500, 200, 1e-5),
        (50, 20, 1e-3),
        (50, 2000, 1e-3),
    ):
        faster = 1 if total == 50 else 5  # this GPU cannot sustain 500 requests/s of these lengths
        model = make_batch_time({"kind": "affine", "constant": d0 / faster, "per_context_token": d1 / faster})
        totals = {}
        for part in ("batch", "queues", "buffer", "total"):
            row = [f"{total}", f"{horizon}", f"{delta:g}", part]
            for count in counts:
                try:
                    bound = memory_by_segments(total * shares, 62, [count], model, horizon + 1, delta)[0]
                except ConfigError:  # so few segments that no thresholds satisfy (16)
                    row.append("none")
                    continue
                totals[count] = bound.total
                row.append(number(getattr(bound, part) / 1e3))
            rows.append([*row, f"{min(totals, key=lambda c: totals[c])}" if part == "total" else ""])
    table(("rate", "T", "δ", "thousand tokens", *(f"L={c}" for c in counts), "least at"), rows)


def lmsys(options: argparse.Namespace) -> None:
    """The real-lengths setting: the printed thresholds, thresholds that fit the memory, and the baselines."""
    s = load_scenario("wait-lmsys")
    if options.quick:
        s = s.override(workload={**dict(s.workload), "num_requests": 200})  # type: ignore[arg-type]
    outcome = compare(s, seeds=min(options.seeds, 3))
    table(("policy", *HEADS, "throughput / vLLM"), result_rows(outcome, short_names(s.policies), "vllm"))


def draw(shares: dict[tuple[str, str], list[dict[str, float]]], path: Path) -> None:
    """Draw the share of the fluid throughput against C / M*."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    presets = list(dict.fromkeys(preset for preset, _ in shares))
    figure, axes = plt.subplots(
        2, len(presets), figsize=(3.1 * len(presets), 5.6), sharey=True, squeeze=False
    )
    lines = ("fcfs", "vllm", "sarathi", "wait, n*", "wait, n* C/M*", "nested, n*")
    for (preset, kind), rows in shares.items():
        axis = axes[("affine", "hardware").index(kind), presets.index(preset)]
        for name, style in zip(lines, ("C7-s", "C1-^", "C2-v", "C0-o", "C0--o", "C3-D"), strict=True):
            points = [(m, row[name]) for m, row in zip(MULTIPLES, rows, strict=False) if name in row]
            axis.plot(*zip(*points, strict=True) if points else ([], []), style, label=name, markersize=4)
        axis.set(title=f"{preset}, {kind}", xscale="log", ylim=(0, 1.05))
        axis.set_xticks(MULTIPLES, [f"{m:g}" for m in MULTIPLES], minor=False)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    for axis in axes.flat:
        axis.set_visible(axis.has_data())
        axis.set_xlabel("C / M*")
    for axis in axes[:, 0]:
        axis.set_ylabel("throughput / fluid")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=len(lines), frameon=False
    )
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


SECTIONS = {
    "multiples": multiples,
    "literal": literal,
    "low_demand": low_demand,
    "lmsys": lmsys,
    "examples": examples,
    "segments": segments,
}


def main() -> None:
    """Run the sections asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", choices=list(SECTIONS), action="append", help="run this section (repeatable)"
    )
    parser.add_argument("--seeds", type=int, default=5, help="seeds of every comparison")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument(
        "--preset", choices=[b.preset for b in BALANCED], help="of the section multiples: only this"
    )
    parser.add_argument("--image", type=Path, help="draw throughput against C / M* into this file")
    options = parser.parse_args()
    if options.quick:
        options.seeds = 2
    for name in options.only or SECTIONS:
        print(f"## {name}\n", flush=True)
        result = SECTIONS[name](options)
        if result is not None and options.image:
            draw(result, options.image)


if __name__ == "__main__":
    main()
