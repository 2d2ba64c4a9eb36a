"""The picture of the queues."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from harness import save_figure
from kvgym.report.style import INK, PALETTE, STYLE
from papers.stab.queues import run_queue, waiting_work
from papers.stab.setting import SINGLE, SLACK, Plan, rate_of


def draw_queues(plan: Plan, path: Path) -> None:
    """Draw the number of waiting requests over time, one and eight workers (as in Figures 2 and 4)."""
    cases = (
        ("stab-1-1", 1, plan.requests, "one worker"),
        ("stab-8-gpus", 8, plan.requests_8, "eight workers"),
    )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.6), layout="constrained")
        axes = figure.subplots(2, 2)
        for column, (name, workers, requests, title) in enumerate(cases):
            service = workers * rate_of("stab-1-1", 0.0372)
            for row, (factor, load) in enumerate(((1.1, "1.1 μ"), (0.9 * (1 - SLACK), "0.9 μ(1−δ)"))):
                ax, last = axes[row, column], 0.0
                for color, policy, what in zip(PALETTE, SINGLE[:2], ("swap", "look-ahead"), strict=False):
                    result = run_queue(name, policy, factor * service, 0, requests)
                    last = float(result.table.arrival_time[-1])
                    times = np.linspace(0, last, 400)
                    ax.plot(times, waiting_work(result, times), color=color, linewidth=1, label=what)
                if factor > 1:
                    ax.plot(
                        (0, last),
                        (0, 0.1 * service * last),
                        ":",
                        color=INK,
                        linewidth=0.9,
                        label="slope λ − μ",
                    )
                ax.set(
                    title=f"{title}, λ = {load} = {factor * service:.2f}/s", xlim=(0, None), ylim=(0, None)
                )
            axes[1, column].set_xlabel("time (s)")
        for row in range(2):
            axes[row, 0].set_ylabel("requests waiting")
        axes[0, 0].legend(loc="upper left", fontsize=8)
        save_figure(figure, path, dpi=110)
