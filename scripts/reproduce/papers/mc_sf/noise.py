"""Figure 5: latency with wrong predictions, under each reading for requests that outlive theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict
from harness.figures import new_figure, palette
from kvgym.experiments.statistics import mean_interval, ratio_interval
from papers.mc_sf.setting import LATENCY, interval, play

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = (0.2, 0.5, 0.8)
ALPHA = 0.1
"""The protection margin of Section 5.2.2."""


class Reading(NamedTuple):
    """A way to read Section 5.2.2.

    Attributes:
        text: its description.
        predictions: the predictions, with ε to be filled in.
        overrun: the memory that MC-SF counts for a request that has outlived its prediction.
        alpha: the margin.
    """

    text: str
    predictions: str
    overrun: str
    alpha: float


READINGS = {
    "literal": Reading("(5) as printed, α = 0.1", "noisy:epsilon={}", "ignore", ALPHA),
    "literal, α = 0.3": Reading("(5) as printed, α = 0.3", "noisy:epsilon={}", "ignore", 0.3),
    "extended": Reading("outlived requests count their next iteration, α = 0.1", "noisy:epsilon={}", "extend", ALPHA),
    "extended, α = 0.2": Reading("outlived requests count their next iteration, α = 0.2",
                                 "noisy:epsilon={}", "extend", 0.2),
    "above": Reading("no prediction below the truth: uniform on (o, (1 + ε)o), α = 0.1",
                     "interval:epsilon={},point=high", "ignore", ALPHA),
}  # fmt: skip
"""Which of them work is the question; the last has the õ ≥ o of Sections 2 and 4."""

Values = dict[str, NDArray[np.float64]]


def run(scale: Scale) -> Outcome:
    """Run MC-SF and MC-Benchmark with the margin, and FCFS, which needs no predictions, on 1,000 requests at 50/s.

    A reading works where every seed ends, at every ε.
    """
    seeds = scale.number_of_seeds(20)
    latency: dict[str, dict[float, Values]] = {}
    for name, reading in READINGS.items():
        latency[name] = {}
        for epsilon in EPSILONS:
            options = f"protection={reading.alpha},overrun={reading.overrun}"
            specs = {"MC-SF": f"mc_sf:{options}", "MC-Benchmark": f"mc_benchmark:{options}", "FCFS": "fcfs"}
            predictions = reading.predictions.format(epsilon)
            found = play("high", list(specs.values()), 1000, seeds, scale, predictions=predictions)
            latency[name][epsilon] = {label: found.values(spec, LATENCY) for label, spec in specs.items()}
    exact = play("high", ["mc_sf"], 1000, seeds, scale).values("mc_sf", LATENCY)
    rows = [
        (READINGS[name].text, f"{epsilon}", _ends(values["MC-SF"]), _mean(values["MC-SF"]),
         _ends(values["MC-Benchmark"]), _ratio(values, "MC-Benchmark"), _ratio(values, "FCFS"))
        for name, each in latency.items() for epsilon, values in each.items()
    ]  # fmt: skip
    head = (
        "reading", "ε", "seeds on which MC-SF ends", "its mean latency on these, s", "MC-Benchmark ends",
        "MC-Benchmark / MC-SF", "FCFS / MC-SF",
    )  # fmt: skip
    caption = (
        f"{seeds} seeds; with exact predictions and no margin MC-SF takes {interval(mean_interval(exact))} s:"
    )
    lines = {
        name: {label: [_finite_mean(each[e][label]) for e in EPSILONS] for label in ("MC-SF", "FCFS")}
        for name, each in latency.items()
    }
    return Outcome(_findings(latency), [Table(head, rows, caption)], {"epsilons": EPSILONS, "lines": lines})


def _findings(latency: Mapping[str, Mapping[float, Values]]) -> list[Finding]:
    literal, extended = latency["literal"], latency["extended"]
    working = [name for name, each in latency.items() if all(_all_end(v["MC-SF"]) for v in each.values())]
    most = extended[EPSILONS[-1]]
    rising = [float(np.nanmean(extended[e]["MC-SF"])) for e in EPSILONS]
    better = all(_compared(values, "FCFS").low > 1 for values in extended.values())
    return [
        Finding(
            "a margin of 0.1 prevents instability, (5) as printed",
            "up to ε = 0.8",
            "MC-SF ends on " + ", ".join(_ends(literal[e]["MC-SF"]) for e in EPSILONS) + " seeds",
            Verdict.REPRODUCED if "literal" in working else Verdict.NOT_REPRODUCED,
            "A request that outlives its prediction counts nothing in (5), so its memory is promised "
            "twice; the same set overflows, is cleared and admitted again forever.",
        ),
        Finding(
            "the same, if outlived requests count their next iteration",
            "up to ε = 0.8",
            "MC-SF ends on " + ", ".join(_ends(extended[e]["MC-SF"]) for e in EPSILONS) + " seeds",
            Verdict.REPRODUCED if "extended" in working else Verdict.CONDITIONS,
            f"Works on every seed at every ε: {'; '.join(READINGS[name].text for name in working) or 'none'}.",
            condition="with twice the published margin, or without predictions below the truth"),
        Finding(
            "larger errors mean higher latency",
            "as expected",
            " < ".join(f"{x:.2f}" for x in rising) + " s" if rising == sorted(rising)
            else ", ".join(f"{x:.2f}" for x in rising) + " s",
            Verdict.CONDITIONS if rising == sorted(rising) else Verdict.NOT_REPRODUCED,
            condition="if outlived requests count their next iteration, over the seeds that end"),
        Finding(
            "at ε = 0.8 MC-SF is well ahead of FCFS",
            "significantly lower latency",
            f"FCFS takes {interval(_compared(most, 'FCFS'))} times, MC-Benchmark "
            f"{interval(_compared(most, 'MC-Benchmark'))} times as long",
            Verdict.CONDITIONS if better else Verdict.NOT_REPRODUCED,
            condition="if outlived requests count their next iteration, over the seeds that end"),
    ]  # fmt: skip


def _all_end(values: NDArray[np.float64]) -> bool:
    return bool(np.isfinite(values).all())


def _ends(values: NDArray[np.float64]) -> str:
    return f"{np.isfinite(values).sum()} of {len(values)}"


def _finite_mean(values: NDArray[np.float64]) -> float | None:
    return float(np.nanmean(values)) if np.isfinite(values).any() else None


def _mean(values: NDArray[np.float64]) -> str:
    return interval(mean_interval(values[np.isfinite(values)])) if np.isfinite(values).any() else "–"


def _compared(values: Values, other: str) -> Any:
    """Return the ratio of another policy's latency to MC-SF's, over the seeds on which both end."""
    both = np.isfinite(values[other]) & np.isfinite(values["MC-SF"])
    return ratio_interval(values[other][both], values["MC-SF"][both])


def _ratio(values: Values, other: str) -> str:
    both = np.isfinite(values[other]) & np.isfinite(values["MC-SF"])
    return interval(_compared(values, other)) if both.any() else "–"


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw latency against ε for the readings that end on some seed."""
    figure, (axes,) = new_figure(panel=(6.5, 3.4))
    lines = data["lines"]
    for color, (name, each) in zip(palette(len(lines)), lines.items(), strict=True):
        points = [(x, y) for x, y in zip(data["epsilons"], each["MC-SF"], strict=True) if y is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, marker="o", label=READINGS[name].text)
    axes.plot(data["epsilons"], lines["literal"]["FCFS"], color="black", linestyle="--", label="FCFS")
    axes.set(xlabel="ε", ylabel="MC-SF: mean of seeds that end (s)")
    axes.legend(fontsize=8)
    return figure


EXPERIMENT = Experiment(
    name="figure-5",
    title="Figure 5: wrong predictions",
    source="Section 5.2.2, Figure 5",
    run=run,
    draw=draw,
    covers=("Figure 5",),
    cheap=True,
)
