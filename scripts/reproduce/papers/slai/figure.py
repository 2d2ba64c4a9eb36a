"""The figure: three panels against the request rate."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.figure import Figure

from kvgym.experiments.statistics import mean_interval
from kvgym.report.style import PALETTE, STYLE
from papers.slai.measurements import Measurements
from papers.slai.setting import COMPARED, DYNAMIC, FCFS, NAMES, SPF, TTFT_BOUND


def draw(data: Measurements) -> Figure:
    """Return median TTFT, P99 TBT and the paying users within their objective, against the rate."""
    panels = (
        ("ttft_median", "Median TTFT, s", (TTFT_BOUND,)),
        ("tbt_p99", "P99 TBT of all tokens, s", (0.1, 0.5)),
        ("tbt_met_paying", "Paying requests, all gaps ≤ 0.1 s", ()),
    )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        for axes, (column, title, bounds) in zip(figure.subplots(1, 3), panels, strict=True):
            for k, policy in enumerate(COMPARED):
                estimates = [mean_interval(values) for values in data.curve(policy, column)]
                dashes = "-" if policy in ("vllm", FCFS, SPF, DYNAMIC) else (0, (2, 2))
                line = {"color": PALETTE[k], "linestyle": dashes, "label": NAMES[policy]}
                axes.plot(data.rates, [e.value for e in estimates], **line)
                bounds_of = [e.low for e in estimates], [e.high for e in estimates]
                axes.fill_between(data.rates, *bounds_of, color=PALETTE[k], alpha=0.15, linewidth=0)
            for bound in bounds:
                axes.axhline(bound, color="#57606a", linewidth=0.8, linestyle=":")
            axes.set(title=title, xlabel="requests per second")
            if column == "ttft_median":
                axes.set_yscale("log")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(COMPARED), fontsize=8.5)
    return figure
