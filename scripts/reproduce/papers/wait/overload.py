"""Above what memory or time can serve: Propositions 1 and 2, and Remark 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict
from harness.figures import new_figure, palette
from kvgym import System, make_batch_time, make_workload
from kvgym.policies.runner import simulate
from kvgym.theory.fluid import batch_memory, class_load, full_batch_time
from kvgym.workloads.classes import ClassStatistics
from papers.wait.setting import AFFINE, RULES, scenario_of
from papers.wait.tables import fluid_shares, interval, label, number, play

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HORIZONS = (250, 500, 1_000, 2_000, 4_000)
LOADS = (0.8, 1.1)
D0, D1, PROMPT, OUTPUT = 0.5, 0.01, 1, 9  # seconds, seconds per KV token, tokens
EVERY = {
    "fcfs": "fcfs",
    "sarathi": "sarathi:watermark=0.0,token_budget=100000,max_batch_requests=100000",
    "wait": "wait:thresholds=4",
    "mc_sf": "mc_sf",
}


def one(task: tuple[str, float, int, int]) -> float:
    """Return the mean latency of all requests that arrive at equal distances within the horizon."""
    policy, load, horizon, _ = task
    unit = class_load(ClassStatistics("a", 1.0, PROMPT, OUTPUT))
    rate = load / (D1 * unit)
    table = make_workload(
        {
            "classes": [
                {
                    "rate": rate,
                    "prompt": {"kind": "constant", "value": PROMPT},
                    "output": {"kind": "constant", "value": OUTPUT},
                }
            ],
            "duration": horizon,
        }
    ).sample(0)
    arrival = np.arange(len(table)) / rate
    model = make_batch_time({"kind": "affine", "constant": D0, "per_context_token": D1})
    done = simulate(System(1_000_000, model, **RULES), table.replace(arrival_time=arrival), policy).requests
    return float((done["finish_time"] - done["arrival_time"]).mean())


def proposition_1(scale: Scale) -> Outcome:
    """Run a type at loads below and above 1, with memory for everything.

    The k-th completion comes no earlier than the KV tokens of k requests take, so that above 1 the mean latency is at
    least T (load - 1) / 2. Reproduced if that holds for every policy, and below 1 no latency grows with T (exponent
    below 0.2 between the two longest).
    """
    horizons = scale.pick(HORIZONS, HORIZONS[:2])
    tasks = [(p, load, t, 0) for load in LOADS for p in EVERY.values() for t in horizons]
    found = np.array(scale.do_all(one, tasks)).reshape(len(LOADS), len(EVERY), len(horizons))
    least = (LOADS[1] - 1) / 2 * np.array(horizons)
    slopes = np.log(found[0, :, -1] / found[0, :, -2]) / np.log(horizons[-1] / horizons[-2])
    holds = bool((found[1] >= least * (1 - 1e-3)).all() and (slopes < 0.2).all())
    finding = Finding(
        "one type, λ d1 (l' + 1)(l + l'/2) ≥ 1: latency grows as T under every policy",
        "Proposition 1: Ω(T), deterministic arrivals",
        f"at {LOADS[1]:g}: {number(float(found[1, :, -1].min()))} … {number(float(found[1, :, -1].max()))} s at T = "
        f"{horizons[-1]:,}, at least {number(float(least[-1]))} s by the proof; at {LOADS[0]:g}: at most "
        f"{number(float(found[0, :, -1].max()))} s",
        Verdict.REPRODUCED if holds else Verdict.NOT_REPRODUCED,
        "The KV tokens of a request take longer than the time between two, whatever the batches; memory is no "
        "limit here.",
        seeds="–",
    )
    rows = [
        [f"{load:g}", name, *(number(float(x)) for x in found[k, j])]
        for k, load in enumerate(LOADS)
        for j, name in enumerate(EVERY)
    ]
    head = ("load", "policy", *(f"T = {t:,} s" for t in horizons))
    curves = {
        f"{name}, load {load:g}": found[k, j].tolist()
        for k, load in enumerate(LOADS)
        for j, name in enumerate(EVERY)
    }
    return Outcome(
        [finding], [Table(head, rows, "Mean latency, s:")], {"x": list(horizons), "curves": curves}
    )


def draw_1(data: Mapping[str, Any]) -> Figure:
    """Draw the mean latency against the horizon."""
    figure, (axes,) = new_figure()
    styles = [(colour, line) for line in ("--", "-") for colour in palette(len(EVERY))]
    for (name, curve), (colour, line) in zip(data["curves"].items(), styles, strict=True):
        axes.plot(data["x"], curve, linestyle=line, color=colour, marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel="length of the run T, s", ylabel="mean latency, s")
    axes.legend(fontsize=6)
    return figure


SHARES = (0.5, 0.7, 0.9, 1.0)
PER_STAGE = (6, 4, 2)  # whole numbers at equilibrium; scaled down with the memory


def remark_1(scale: Scale) -> Outcome:
    """Run the three types of the high demand with less memory than M*; and no policy exceeds the fluid throughput.

    Remark 1 is reproduced where WAIT has more throughput than both baselines at every C < M*, intervals apart.
    """
    classes, model = make_workload("wait-high").class_statistics, make_batch_time(AFFINE)
    n = np.array(PER_STAGE)
    memory, window = batch_memory(classes, n), full_batch_time(classes, n, model)
    rate, ends = float(n.sum()) / window, [round(c.output_len) for c in classes]
    horizon = 10 * (ends[-1] + 1) * window * scale.pick(1.0, 0.02)
    fluid, limit = float(n @ ends) / window, int(n @ (np.array(ends) + 1))
    workload = {"preset": "wait-high", "rate": rate, "duration": horizon}
    shares, seeds = scale.pick(SHARES, SHARES[:1]), scale.number_of_seeds(5, 1)
    rows, curves, ahead, most = [], dict[str, list[float]](), [], 0.0
    for share in shares:
        s = scenario_of("wait-high", workload, int(np.ceil(share * memory)), AFFINE, horizon=horizon)
        own = "/".join(str(max(1, int(x * share + 1e-9))) for x in n)
        policies = {
            "fcfs": "fcfs",
            "sarathi": f"sarathi:max_batch_requests={limit},token_budget={4 * limit},watermark=0.0",
            "wait": f"wait:thresholds={own}",
        }
        outcome = play(s, policies, seeds, scale)
        part = fluid_shares(outcome, policies, fluid)
        ratios = [
            outcome.ratio(label(policies["wait"]), label(policies[p]), "token_throughput")
            for p in ("fcfs", "sarathi")
        ]
        if share < 1:
            ahead.append((share, ratios))
        most = max(most, *part.values())
        for name, value in part.items():
            curves.setdefault(name, []).append(value)
        evicted = (interval(outcome.estimate(label(p), "evictions")) for p in policies.values())
        rows.append(
            [f"{share:g}", own, *(f"{x:.3f}" for x in part.values()), *map(interval, ratios), *evicted]
        )
    wins = [share for share, ratios in ahead if all(r.low > 1 for r in ratios)]
    span = [r.value for _, ratios in ahead for r in ratios]
    findings = [
        Finding(
            "with C < M* WAIT still outperforms the baselines",
            "Remark 1: outperforms baselines, no figure",
            f"{100 * (min(span) - 1):+.0f} to {100 * (max(span) - 1):+.0f} % output tokens at C = "
            f"{ahead[0][0]:g} to {ahead[-1][0]:g} M*",
            Verdict.REPRODUCED
            if len(wins) == len(ahead)
            else Verdict.CONDITIONS
            if wins
            else Verdict.NOT_REPRODUCED,
            "Thresholds of the equilibrium, scaled down with the memory; FCFS and Sarathi have no limit but the batch.",
            condition="at C = " + ", ".join(f"{share:g} M*" for share in wins),
        ),
        Finding(
            "no policy exceeds the fluid throughput",
            "Proposition 2, C ≥ M*",
            f"at most {most:.3f} of it in these runs",
            Verdict.REPRODUCED if most <= 1.01 else Verdict.REFUTED,
            "Arrivals of a run vary about their mean.",
        ),
    ]
    head = (
        "C / M*", "thresholds", *(f"{p}, of fluid" for p in ("fcfs", "sarathi", "wait")), "WAIT / FCFS",
        "WAIT / Sarathi", *(f"evictions, {p}" for p in ("fcfs", "sarathi", "wait")),
    )  # fmt: skip
    return Outcome(findings, [Table(head, rows)], {"shares": list(shares), "curves": curves})


def draw_remark(data: Mapping[str, Any]) -> Figure:
    """Draw the share of the fluid throughput against the memory."""
    figure, (axes,) = new_figure()
    for (name, curve), colour in zip(data["curves"].items(), palette(3), strict=True):
        axes.plot(data["shares"], curve, color=colour, marker="o", markersize=4, label=name)
    axes.set(ylim=(0, 1.05), xlabel="C / M*", ylabel="throughput / fluid")
    axes.legend(fontsize=8)
    return figure


EXPERIMENTS = (
    Experiment(
        "proposition-1",
        "Proposition 1: more work than time",
        "Section 3.1, Proposition 1",
        proposition_1,
        draw_1,
        covers=("Proposition 1",),
    ),
    Experiment(
        "remark-1",
        "Remark 1: less memory than the equilibrium needs",
        "Section 4, Remark 1; Proposition 2",
        remark_1,
        draw_remark,
        covers=("Remark 1", "Proposition 2"),
    ),
)
