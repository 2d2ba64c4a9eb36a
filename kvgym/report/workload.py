"""Picture of a workload: arrivals, lengths, sessions, and reuse by size of a prefix cache."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, NullFormatter

from kvgym.report.style import DASHES, INK, PALETTE, styled
from kvgym.workloads.summary import Summary


@styled
def workload_figure(summary: Summary) -> Figure:
    """Draw a workload, one panel for each of its sides; reuse and sessions only where it has them.

    Args:
        summary: the workload.
    """
    panels = [_draw_rate, _draw_lengths]
    if summary.reuse:
        panels.append(_draw_reuse)
    if summary.sessions is not None:
        panels.append(_draw_turns)
    columns = 2
    figure = Figure(figsize=(8, 2.7 * -(-len(panels) // columns)), layout="constrained")
    axes = figure.subplots(-(-len(panels) // columns), columns, squeeze=False).ravel()
    for axis, panel in zip(axes, panels, strict=False):
        panel(axis, summary)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    return figure


def _draw_rate(axis: Axes, summary: Summary) -> None:
    axis.set(title="Arrivals", xlabel="time (s)", ylabel="requests per second", ylim=(0, None))
    if summary.bin_seconds:
        start = float(summary.table.arrival_time[0])
        edges = start + summary.bin_seconds * np.arange(len(summary.rates) + 1)
        axis.stairs(summary.rates, edges, color=PALETTE[0], linewidth=1.5)
        axis.set_ylim(0, 1.05 * float(summary.rates.max()))
    else:
        axis.text(0.5, 0.5, "all at once", transform=axis.transAxes, ha="center", color=INK)


def _draw_lengths(axis: Axes, summary: Summary) -> None:
    axis.set(title="Lengths", xlabel="tokens", ylabel="share of requests below")
    for i, name in enumerate(("prompt", "output")):
        axis.ecdf(getattr(summary.table, f"{name}_len"), color=PALETTE[i], linestyle=DASHES[i], label=name)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.legend()


def _draw_reuse(axis: Axes, summary: Summary) -> None:
    *finite, infinite = summary.reuse
    axis.set(
        title="Reuse, one request after another", xlabel="prefix cache (tokens, LRU)",
        ylabel="prompt tokens that hit (%)",
    )  # fmt: skip
    sizes, shares = [r.capacity or 0 for r in finite], [100 * r.hit_rate for r in finite]
    axis.plot(sizes, shares, color=PALETTE[0], marker="o", markersize=4)
    axis.axhline(100 * infinite.hit_rate, color=INK, linestyle=DASHES[1], linewidth=1.0, label="infinite")
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_ylim(0, max(1.0, 108 * infinite.hit_rate))
    axis.legend(loc="lower right")


def _draw_turns(axis: Axes, summary: Summary) -> None:
    _, turns = np.unique(np.asarray(summary.table.session_id), return_counts=True)
    axis.ecdf(turns, color=PALETTE[0])
    axis.set(title="Sessions", xlabel="turns", ylabel="share of sessions below")
