"""Figures 8 and 11: memory in use over time under MC-SF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import Experiment, Finding, Outcome, Scale, Verdict
from harness.figures import new_figure, palette
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import compare
from kvgym.experiments.statistics import mean_interval
from papers.mc_sf.setting import DEMANDS, MC_SF, interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 400
"""Of a drawn line at most."""


def measure(task: tuple[str, int, int]) -> dict[str, Any]:
    """Return the course of the memory for a demand, a number of requests and a seed.

    Returns:
        ``time`` in seconds and ``memory`` as share of M, the highest of each stretch; ``peak``, the highest of all;
        ``use``, the time average; ``queued``, that while requests wait, NaN if none does; ``waiting``, the share of
        time in which they do; ``most``, the share of that time in which more than half of M is in use.
    """
    demand, num_requests, seed = task
    scenario = build_scenario(DEMANDS[demand][0], num_requests=num_requests)
    result = compare(scenario, [MC_SF], seeds=[seed], keep_examples=True).examples[MC_SF]
    log = result.log
    assert log is not None
    share = log["kv_tokens"] / result.system.kv_capacity
    lasts, waits = log["end_time"] - log["start_time"], log["num_waiting"] > 0
    stretches = np.array_split(np.arange(len(log)), min(POINTS, len(log)))
    return {
        "time": [float(log["start_time"][rows[0]]) for rows in stretches],
        "memory": [float(share[rows].max()) for rows in stretches],
        "peak": float(share.max()),
        "use": float(np.average(share, weights=lasts)),
        "queued": float(share[waits] @ lasts[waits] / lasts[waits].sum()) if waits.any() else float("nan"),
        "most": float(lasts[waits & (share > 0.5)].sum() / max(lasts[waits].sum(), 1e-12)),
        "waiting": float(lasts[waits].sum() / lasts.sum()),
    }


def run(scale: Scale) -> Outcome:
    """Follow the memory at both demands.

    Most of the memory counts as in use where more than half of it is for 90 % of the time in which requests wait, with
    conditions where it is on average; close to full is a time average of 90 % or more.
    """
    num_requests, seeds = scale.pick(10_000, 1500), scale.number_of_seeds(10)
    tasks = [(demand, num_requests, seed) for demand in DEMANDS for seed in range(seeds)]
    found = dict(zip(tasks, scale.do_all(measure, tasks), strict=True))
    mine = {demand: [found[task] for task in tasks if task[0] == demand] for demand in DEMANDS}
    peak = max(one["peak"] for one in found.values())
    findings = [
        Finding(
            "MC-SF never exceeds M",
            "consistently within M",
            f"at most {peak:.1%} of M in {len(tasks)} runs",
            Verdict.CONSTRUCTION if peak <= 1 else Verdict.NOT_REPRODUCED,
            "The engine rejects a batch above M. With exact predictions (5) rules it out, whatever the batch times.",
        )
    ]
    queued, most = (mean_interval([one[k] for one in mine["high"]]) for k in ("queued", "most"))
    findings.append(
        Finding(
            "high demand: most of the memory is in use",
            "consistently utilises most of the available memory",
            f"{interval(queued)} of M while requests wait, more than half for {most.value:.0%} of that time",
            Verdict.REPRODUCED
            if most.value >= 0.9
            else Verdict.CONDITIONS
            if queued.low > 0.5
            else Verdict.NOT_REPRODUCED,
            "Shortest first starts outputs of one length together, which grow and end together. So memory is a "
            "sawtooth, deeper for longer outputs.",
            condition="on average while requests wait, not at every moment",
        )
    )
    use, queued, waiting = (
        mean_interval([one[k] for one in mine["low"]]) for k in ("use", "queued", "waiting")
    )
    findings.append(
        Finding(
            "low demand: memory is close to full",
            "close to full utilisation",
            f"{interval(use)} of M over time; {interval(queued)} while requests wait, {waiting.value:.0%} of the time",
            Verdict.REPRODUCED if use.low >= 0.9 else Verdict.NOT_REPRODUCED,
            "10 per second are below the service rate here, so memory is not always needed.",
        )
    )
    return Outcome(findings, data={d: {k: mine[d][0][k] for k in ("time", "memory")} for d in DEMANDS})


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the first seed of each demand."""
    figure, panels = new_figure(columns=2)
    for axes, (demand, one) in zip(panels, data.items(), strict=True):
        axes.plot(one["time"], one["memory"], color=palette(1)[0], linewidth=0.8)
        axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
        axes.set(
            title=f"{demand} demand, {DEMANDS[demand][1]}", xlabel="time (s)", ylabel="memory in use / M"
        )
        axes.set_ylim(0, 1.08)
    return figure


EXPERIMENT = Experiment(
    name="memory",
    title="Figures 8 and 11: memory over time",
    source="Section 5.2.1, Figures 8 and 11",
    run=run,
    draw=draw,
    covers=("Figure 8", "Figure 11"),
    cheap=True,
)
