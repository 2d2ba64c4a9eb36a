"""Figures 9, 10, 12 and 13: latency against the margin α and the clearing probability β, at both demands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict
from harness.figures import new_figure, palette
from papers.mc_sf.setting import DEMANDS, LATENCY, number, play

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHAS = (0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3)
BETAS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)

BEST_ALPHA = {"high": (0.15, 0.25), "low": (0.10, 0.25)}
"""The range of α that minimises latency, with β = 0.1 and 0.2 (Appendix C, on Figures 9 and 12)."""

BEST_BETA = {"high": (0.05, 0.25), "low": (0.05, 0.20)}
"""The range of β in which the algorithm performs well, with α = 0.1 and 0.2 (on Figures 10 and 13)."""

PUBLISHED_ALPHAS = (0.1, 0.2)
"""Of Figures 10 and 13."""

FIGURES = {
    "alpha": {"high": "Figure 9", "low": "Figure 12"},
    "beta": {"high": "Figure 10", "low": "Figure 13"},
}

WORSE = 1.25
"""Degradation counts as significant from this ratio on; a livelock counts as degradation."""


def means(
    demand: str, points: Sequence[tuple[float, float]], num_requests: int, seeds: int, scale: Scale
) -> NDArray[np.float64]:
    """Return the mean latency over seeds of each (α, β), shape (points,), infinite where a seed livelocks."""
    specs = [f"alpha_beta:alpha={alpha},beta={beta}" for alpha, beta in points]
    first = play(demand, specs, num_requests, 1, scale)
    # A livelock takes by far the longest to find; one is enough.
    ending = [spec for spec in specs if np.isfinite(first.values(spec, LATENCY)).all()]
    found = play(demand, ending, num_requests, seeds, scale) if ending else first
    latency = {spec: np.nan_to_num(found.values(spec, LATENCY), nan=np.inf).mean() for spec in ending}
    return np.array([latency.get(spec, np.inf) for spec in specs])


def run_alpha(scale: Scale) -> Outcome:
    """Vary α at β = 0.1 and 0.2."""
    alphas = list(scale.pick(ALPHAS, (0.05, 0.1, 0.2)))
    findings, lines = [], {}
    for demand in DEMANDS:
        for beta in (0.1, 0.2):
            points = [(alpha, beta) for alpha in alphas]
            latency = means(demand, points, *_size(scale), scale)
            lines[f"{demand}, β = {beta}"] = latency
            findings += _findings_alpha(demand, beta, np.array(alphas), latency)
    return _outcome(findings, "α", alphas, lines)


def _findings_alpha(
    demand: str, beta: float, alphas: NDArray[np.float64], latency: NDArray[np.float64]
) -> list[Finding]:
    """Return the findings of a line.

    The published range is reproduced where the best α lies in it; degradation below 0.1, where the smallest α takes
    a quarter longer than the best, or livelocks.
    """
    (low, high), best = BEST_ALPHA[demand], alphas[np.argmin(latency)]
    where = f"{FIGURES['alpha'][demand]}, β = {beta}"
    edge = latency[0] / latency.min()
    worse = alphas[(latency > WORSE * latency.min()) & (alphas < best)]
    return [
        Finding(
            f"{where}: best α",
            f"{low} to {high}",
            f"{best} ({number(latency.min())} s)",
            Verdict.REPRODUCED if low <= best <= high else Verdict.NOT_REPRODUCED,
            "A smaller margin avoids overflow here, so a wide one costs more than it saves.",
        ),
        Finding(
            f"{where}: α below 0.1",
            "significantly worse",
            f"{_times(edge)} at α = {alphas[0]}"
            + (f"; a quarter or more up to α = {worse.max()}" if len(worse) else ""),
            Verdict.REPRODUCED if len(worse) and worse.max() >= 0.08 else Verdict.CONDITIONS if edge >= WORSE
            else Verdict.NOT_REPRODUCED,
            "The collapse occurs, at smaller α than published: memory overflows and is cleared without end."
            if edge >= WORSE else "",
            condition=f"for α up to {worse.max() if len(worse) else alphas[0]}"),
    ]  # fmt: skip


def run_beta(scale: Scale) -> Outcome:
    """Vary β at the published α = 0.1 and 0.2, and at 0.05, where memory does overflow here."""
    betas = list(scale.pick(BETAS, (0.05, 0.2)))
    findings, lines = [], {}
    for demand in DEMANDS:
        for alpha in (0.05, *PUBLISHED_ALPHAS):
            latency = means(demand, [(alpha, beta) for beta in betas], *_size(scale), scale)
            lines[f"{demand}, α = {alpha}"] = latency
            if alpha in PUBLISHED_ALPHAS:
                findings.append(_finding_beta(demand, alpha, np.array(betas), latency))
    return _outcome(findings, "β", betas, lines)


def _finding_beta(
    demand: str, alpha: float, betas: NDArray[np.float64], latency: NDArray[np.float64]
) -> Finding:
    """Return the finding of a line.

    It is reproduced where every β in the published range stays within 5 % of the best and both smaller and larger
    ones do worse by more; with conditions, where the range does well and one side does no worse. Where neither does
    worse the range says nothing, and nothing is reproduced.
    """
    low, high = BEST_BETA[demand]
    inside = (betas >= low) & (betas <= high)
    ratio = latency / latency.min()
    well = bool((ratio[inside] <= 1.05).all())
    sides = [bool((ratio[side] > 1.05).any()) for side in (betas < low, betas > high)]
    shown = {True: "worse", False: "no worse"}
    verdict = Verdict.NOT_REPRODUCED
    if well and any(sides):
        verdict = Verdict.REPRODUCED if all(sides) else Verdict.CONDITIONS
    return Finding(
        f"{FIGURES['beta'][demand]}, α = {alpha}: range of β",
        f"good from {low} to {high}, worse on both sides",
        f"within {_times(float(ratio[inside].max()))} the best in that range; smaller β {shown[sides[0]]}, larger "
        f"β {shown[sides[1]]} ({_times(float(ratio[-1]))} at {betas[-1]})",
        verdict,
        "Memory never overflows here with this margin: β does nothing." if float(np.ptp(latency)) == 0
        else "An empty iteration takes no time with these batch times, so coins are tossed until just "
        "enough is cleared: a small β costs nothing." if not sides[0] else "",
        condition=f"on one side of the range: a {'smaller' if sides[0] else 'larger'} β is worse",
    )  # fmt: skip


def _size(scale: Scale) -> tuple[int, int]:
    return scale.pick(10_000, 500), scale.number_of_seeds(5, 1)


def _times(ratio: float) -> str:
    return "livelock" if np.isinf(ratio) else f"{number(ratio)} times"


def _outcome(
    findings: list[Finding], name: str, values: list[float], lines: Mapping[str, NDArray[np.float64]]
) -> Outcome:
    rows = [(str(x), *(number(line[k]) for line in lines.values())) for k, x in enumerate(values)]
    caption = "Mean latency in seconds; a dash where a seed livelocks:"
    table = Table((name, *lines), rows, caption)
    kept = {label: [float(x) if np.isfinite(x) else None for x in line] for label, line in lines.items()}
    return Outcome(findings, [table], {"name": name, "values": values, "lines": kept})


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw a panel for each demand, with the published range shaded."""
    figure, panels = new_figure(columns=2)
    ranges = BEST_ALPHA if data["name"] == "α" else BEST_BETA
    for axes, demand in zip(panels, DEMANDS, strict=True):
        mine = {label: line for label, line in data["lines"].items() if label.startswith(demand)}
        for color, (label, line) in zip(palette(len(mine)), mine.items(), strict=True):
            points = [(x, y) for x, y in zip(data["values"], line, strict=True) if y is not None]
            axes.plot(
                *zip(*points, strict=True), color=color, marker="o", markersize=3, label=label.split(", ")[1]
            )
        axes.axvspan(*ranges[demand], color="black", alpha=0.08, label="published as best")
        axes.set(title=f"{demand} demand", xlabel=data["name"], ylabel="mean latency (s)", yscale="log")
        axes.legend(fontsize=8)
    return figure


EXPERIMENTS = (
    Experiment(
        name="alpha",
        title="Figures 9 and 12: the margin α",
        source="Appendix C, Figures 9 and 12",
        run=run_alpha,
        draw=draw,
        covers=("Figure 9", "Figure 12"),
    ),
    Experiment(
        name="beta",
        title="Figures 10 and 13: the clearing probability β",
        source="Appendix C, Figures 10 and 13",
        run=run_beta,
        draw=draw,
        covers=("Figure 10", "Figure 13"),
    ),
)
