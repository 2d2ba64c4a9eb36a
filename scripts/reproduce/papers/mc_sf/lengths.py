"""Figure 7: the distributions of prompt and output lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import Experiment, Finding, Outcome, Scale, Verdict
from harness.figures import new_figure, palette
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.statistics import mean_interval
from papers.mc_sf.setting import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED = {"prompts": (40.62, 11.0), "outputs": (85.32, 45.0)}
"""Mean and median, words."""

SHOWN = 400
"""Words; longer ones are not drawn."""


def run(scale: Scale) -> Outcome:
    """Draw 10,000 requests on each of some seeds."""
    workload = build_scenario("mc-sf-high", num_requests=scale.pick(10_000, 1000)).make_workload()
    tables = [workload.sample(seed) for seed in range(scale.number_of_seeds(20))]
    lengths = {"prompts": [t.prompt_len for t in tables], "outputs": [t.output_len for t in tables]}
    findings, data = [], {}
    for what, (mean, median) in PUBLISHED.items():
        means, medians = ([f(found) for found in lengths[what]] for f in (np.mean, np.median))
        ours, middle = mean_interval(means), mean_interval(medians)
        same = abs(ours.value / mean - 1) <= 0.02 and abs(middle.value / median - 1) <= 0.02
        findings.append(
            Finding(
                f"lengths of {what}: mean and median",
                f"{mean} and {median:.0f} words",
                f"{number(ours.value)} ± {number(float(np.std(means)))} and {number(middle.value, 1)}",
                Verdict.CONSTRUCTION if same else Verdict.NOT_REPRODUCED,
                "Lognormal by the published mean and median, prompt and output independent: the "
                "conversations themselves cannot be redistributed, and the paper gives no other figures "
                "of them.",
            )
        )
        counts, edges = np.histogram(lengths[what][0], bins=50, range=(0, SHOWN))
        data[what] = {"counts": counts.tolist(), "edges": edges.tolist()}
    return Outcome(findings, data=data)


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw both histograms, with the published means and medians."""
    figure, panels = new_figure(columns=2)
    for axes, (what, found) in zip(panels, data.items(), strict=True):
        axes.stairs(found["counts"], found["edges"], fill=True, color=palette(1)[0], label="drawn here")
        for value, style, name in zip(PUBLISHED[what], ("-", "--"), ("mean", "median"), strict=True):
            axes.axvline(value, color="black", linestyle=style, linewidth=0.9, label=f"published {name}")
        axes.set(title=what, xlabel="words", ylabel="requests")
        axes.legend(fontsize=8)
    return figure


EXPERIMENT = Experiment(
    name="figure-7",
    title="Figure 7: lengths of prompts and outputs",
    source="Section 5.2, Figure 7",
    run=run,
    draw=draw,
    covers=("Figure 7",),
    cheap=True,
)
