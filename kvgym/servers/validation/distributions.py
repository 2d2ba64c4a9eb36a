"""Figure of observed and simulated latency distributions; needs the extra ``kvgym[pictures]``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from kvgym.report.style import DASHES, INK, PALETTE, styled, text_of
from kvgym.servers.validation.replay import METRICS, Replay

_TITLES = {"ttft": "TTFT (s)", "tbt": "TBT, mean by request (s)", "e2e_latency": "End to end (s)"}


@styled
def distribution_figure(replays: Mapping[str, Replay]) -> Figure:
    """Draw for every metric the share of requests below a latency, and simulated against observed quantiles.

    Args:
        replays: replays of one log, by label.
    """
    figure = Figure(figsize=(8, 5.4), layout="constrained")
    axes = figure.subplots(2, len(METRICS))
    first = next(iter(replays.values()))
    shares = np.linspace(0.005, 0.995, 199)
    for (top, bottom), metric in zip(axes.T, METRICS, strict=True):
        observed, _ = first.pairs(metric)
        top.set_title(_TITLES[metric])
        if not len(observed):
            top.set_visible(False)
            bottom.set_visible(False)
            continue
        top.ecdf(observed, color=INK, linewidth=2.2, label="observed")
        ends = [float(observed.min()), float(observed.max())]
        bottom.plot(ends, ends, color=INK, linewidth=1.0)
        for i, (label, replay) in enumerate(replays.items()):
            values, (known, simulated) = replay.simulated(metric), replay.pairs(metric)
            style = {"color": PALETTE[i], "linestyle": DASHES[i], "label": text_of(label)}
            top.ecdf(values[np.isfinite(values)], **style)
            bottom.plot(np.quantile(known, shares), np.quantile(simulated, shares), **style)
        top.set_xlim(left=0)
        bottom.set_xlabel("observed quantile (s)")
    axes[0, 0].set_ylabel("Share of requests")
    axes[1, 0].set_ylabel("simulated quantile (s)")
    handles, labels = axes[0, -1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))
    return figure
