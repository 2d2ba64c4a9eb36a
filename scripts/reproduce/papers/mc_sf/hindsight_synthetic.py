"""Section 5.1: how far MC-SF is from the hindsight optimum on small random instances."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict
from harness.figures import new_figure, palette
from kvgym.batch_time.models.unit import UnitBatchTime
from kvgym.experiments.statistics import Estimate, mean_interval
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.theory.hindsight.slotted import bound_slotted
from kvgym.theory.hindsight.slotted.replay import replay
from kvgym.workloads.instances import mcsf_instance

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Published(NamedTuple):
    """The ratio of MC-SF to the optimum over 200 trials, and trials in which it is 1.

    For Model 2 that number is not given (``None``), but the best ratio is 1.000.
    """

    mean: float
    largest: float
    optimal: int | None


PUBLISHED = {1: Published(1.005, 1.074, 114), 2: Published(1.047, 1.227, None)}
ARRIVALS = {1: "all at once", 2: "over time"}
SEEDS = 200


class Trial(NamedTuple):
    """An instance: total latencies in slots, and the interval of the least one."""

    memory: int
    requests: int
    mc_sf: int
    lower: int
    upper: int


def play(task: tuple[int, int, float]) -> Trial:
    """Return the trial of a model, a seed and an effort; the schedule found is run through the engine."""
    model, seed, effort = task
    table, memory = mcsf_instance(model, seed)
    n = len(table)
    records = simulate(System(kv_capacity=memory, batch_time=UnitBatchTime()), table, "mc_sf").requests
    total = round(float((records["finish_time"] - table.arrival_time).sum()))
    known = bound_slotted(table, memory, effort=effort, seed=seed, best=records["start_time"])
    assert known.schedule is not None
    run = replay(table, memory, known.schedule).requests
    upper = round(float((run["finish_time"] - table.arrival_time).sum()))
    assert upper == round(known.upper * n)
    return Trial(memory, n, total, round(known.lower * n), upper)


def run(model: int, scale: Scale) -> Outcome:
    """Run one arrival model.

    Each instance's ratio lies between MC-SF's total latency over the best schedule's that was found, and over the
    bound. Refuted is a mean or a maximum below the one that our instances have at least, with the interval over
    instances of the mean; and a number of optimal instances above the number that is not certified to be suboptimal.
    Where the paper only has the best ratio, 1.000, instances of which none is optimal do not reproduce it, but refute
    nothing: its own are others.
    """
    tasks = [(model, seed, scale.pick(1.0, 0.02)) for seed in range(scale.number_of_seeds(SEEDS, 3))]
    trials = scale.do_all(play, tasks)
    least = [t.mc_sf / t.upper for t in trials]
    most = [t.mc_sf / t.lower for t in trials]
    worse = sum(t.mc_sf > t.upper for t in trials)
    optimal = sum(t.mc_sf == t.lower for t in trials)
    low, high = mean_interval(least), mean_interval(most)
    said = PUBLISHED[model]
    findings = [
        _mean(said, low, high, len(trials)),
        Finding(
            claim=f"Model {model}: largest ratio of MC-SF to the optimum",
            published=f"{said.largest:.3f}",
            ours=f"at least {max(least):.3f}, at most {max(most):.3f}",
            verdict=Verdict.REFUTED if max(least) > said.largest else Verdict.CONDITIONS,
            reason="An explicit schedule, run through the engine, shows the lower figure."
            if max(least) > said.largest
            else "The published figure is not excluded: the optima are known up to an interval.",
            condition="as far as the optima are known",
        ),
        _optimal(model, said, worse, optimal, len(trials)),
    ]
    head = ["", "mean", "smallest", "median", "largest"]
    rows = [
        ["at least", *_figures(least)],
        ["at most", *_figures(most)],
        ["bound / best schedule", *_figures([t.lower / t.upper for t in trials])],
    ]
    caption = f"Ratio of MC-SF's total latency to the optimum, {len(trials)} instances."
    data = {"model": model, "least": _round(least), "most": _round(most), "published": said.mean}
    return Outcome(findings=findings, tables=[Table(head, rows, caption)], data=data)


def _mean(said: Published, low: Estimate, high: Estimate, number: int) -> Finding:
    refuted = low.low > said.mean
    return Finding(
        claim="mean ratio of MC-SF to the optimum",
        published=f"{said.mean:.3f}",
        ours=f"at least {low.value:.3f} ({low.low:.3f} – {low.high:.3f}), at most {high.value:.3f}",
        verdict=Verdict.REFUTED if refuted else Verdict.CONDITIONS,
        reason=f"Explicit better schedules for {number} instances of the printed distributions."
        if refuted
        else "The published mean is not excluded: the optima are known up to an interval.",
        condition="as far as the optima are known",
    )


def _optimal(model: int, said: Published, worse: int, optimal: int, number: int) -> Finding:
    possible = number - worse
    verdict = Verdict.CONDITIONS if possible else Verdict.NOT_REPRODUCED
    if said.optimal is not None and possible / number < said.optimal / SEEDS:
        verdict = Verdict.REFUTED
    return Finding(
        claim=f"Model {model}: instances in which MC-SF is optimal",
        published="at least one: the best ratio is 1.000"
        if said.optimal is None
        else f"{said.optimal} of {SEEDS}",
        ours=f"certified optimal {optimal}, certified not optimal {worse}, of {number}",
        verdict=verdict,
        reason=f"A better schedule than MC-SF's is known for {worse} of {number} instances.",
        condition="as far as the optima are known",
    )


def _figures(values: Sequence[float]) -> list[str]:
    return [f"{x:.3f}" for x in (np.mean(values), np.min(values), np.median(values), np.max(values))]


def _round(values: Sequence[float]) -> list[float]:
    return [round(float(x), 4) for x in values]


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw both ends of the ratio as histograms, and the published mean."""
    figure, (axes,) = new_figure()
    most = max(data["most"])
    bins = np.linspace(1.0, max(most, 1.01), 41)
    first, second = palette(2)
    axes.hist(data["least"], bins=bins, color=first, alpha=0.8, label="at least (best schedule found)")
    axes.hist(data["most"], bins=bins, color=second, alpha=0.6, label="at most (bound)")
    axes.axvline(data["published"], color="black", linestyle="--", label="published mean")
    axes.set_xlabel("total latency of MC-SF / optimum")
    axes.set_ylabel("instances")
    axes.legend()
    return figure


EXPERIMENTS = tuple(
    Experiment(
        name=f"section-5-1-model-{model}",
        title=f"MC-SF against the hindsight optimum, requests {ARRIVALS[model]}",
        source=f"Section 5.1, Figure 2 ({side}), Arrival Model {model}",
        run=functools.partial(run, model),
        draw=draw,
        covers=("Figure 2",),
    )
    for model, side in ((1, "left"), (2, "right"))
)
