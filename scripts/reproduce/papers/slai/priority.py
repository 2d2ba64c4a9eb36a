"""Figure 10: prompts of paying users first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict, new_figure, palette
from kvgym.experiments.scenario import load_scenario
from kvgym.experiments.statistics import ratio_interval
from papers.slai.measurements import Measurements
from papers.slai.setting import DYNAMIC, FCFS, NAMES, PAPER_RATES, PAYING_FIRST, PEAK, SPF, VLLM
from papers.slai.texts import change, mean_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES = ("paying", "free")
SHOWN = (VLLM, FCFS, SPF, DYNAMIC, PAYING_FIRST)


def run(scale: Scale) -> Outcome:
    """Compare the mean TTFT by class; reproduced is a small gain, at most a quarter, at the highest rate."""
    rates = scale.pick(PAPER_RATES, (1.0, PEAK))
    data = Measurements(load_scenario("slai-5"), SHOWN, rates, scale, 10)
    rows = []
    for rate in rates:
        for name in CLASSES:
            means = [data.values(p, rate, f"ttft_mean_{name}") for p in SHOWN]
            rows.append([f"{rate:g}", name, *(mean_text(x) for x in means), change(means[-1], means[-2])])
    values = {p: data.values(p, PEAK, "ttft_mean_paying") for p in SHOWN}
    free = [data.values(p, PEAK, "ttft_mean_free") for p in (PAYING_FIRST, DYNAMIC)]
    small = ratio_interval(values[PAYING_FIRST], values[DYNAMIC]).value > 0.75
    findings = [
        Finding(
            f"paying users' mean TTFT with their prompts first, at {PEAK:g}/s",
            "lower than free users', the improvement relatively small",
            f"{mean_text(values[DYNAMIC])} → {mean_text(values[PAYING_FIRST])} s, "
            f"{change(values[PAYING_FIRST], values[DYNAMIC])}; free users {change(*free)}",
            Verdict.REPRODUCED if small else Verdict.NOT_REPRODUCED,
            ""
            if small
            else f"{PEAK:g}/s is at saturation here, where the queue is long: small as published up to 0.8/s",
        )
    ]
    head = ["requests/s", "class", *(NAMES[p] for p in SHOWN), "change by priority"]
    drawn = {p: {name: data.means(p, f"ttft_mean_{name}") for name in CLASSES} for p in SHOWN}
    return Outcome(findings, [Table(head, rows, "Mean TTFT, s:")], {"rates": list(rates), "means": drawn})


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the mean TTFT of both classes against the rate."""
    figure, panels = new_figure(2)
    for axes, name in zip(panels, CLASSES, strict=True):
        for (policy, means), colour in zip(data["means"].items(), palette(len(SHOWN)), strict=True):
            axes.plot(data["rates"], means[name], color=colour, marker=".", label=NAMES[policy])
        axes.set(yscale="log", xlabel="requests per second", ylabel=f"mean TTFT of {name} users, s")
    panels[0].legend(fontsize=8)
    return figure


PRIORITY = Experiment(
    "figure-10",
    "Paying users first",
    "Appendix F.2, Figure 10",
    run,
    draw,
    covers=("Figure 10a", "Figure 10b"),
)
