"""Summary picture of a whole episode, drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from kvgym.envs.rendering.scene import SPANS, Floats, Integers, Scene
from kvgym.report.style import INK, PALETTE, STYLE

BLUE, ORANGE, GREEN = PALETTE[:3]

SUMMARY_STYLE: Any = {**STYLE, "font.size": 8, "axes.titlesize": 8.5, "font.sans-serif": ["DejaVu Sans"]}

DPI = 100
MAX_THICK_ROWS = 100
"""With more rows, the bars of waiting requests are as high as the others, because thinner ones would vanish."""


def rectangles(left: Floats, right: Floats, middle: Floats | Integers, height: float) -> Floats:
    """Return the corners of horizontal bars, float64 (m, 4, 2)."""
    low, high = middle - height / 2, middle + height / 2
    x = np.stack((left, right, right, left), axis=1)
    return np.stack((x, np.stack((low, low, high, high), axis=1)), axis=2)


def draw_bars(ax: Axes, color: str, **options: Any) -> PolyCollection:
    """Add an empty collection of bars to axes."""
    bars = PolyCollection([], facecolors=color, **{"linewidths": 0, "snap": False, **options})
    ax.add_collection(bars, autolim=False)
    return bars


class Timeline:
    """KV memory against capacity, queue length and the Gantt view, each in its axes.

    Attributes:
        memory: axes of the KV memory.
        queue: axes of the numbers of requests.
        gantt: axes of the requests.
        kv: the line of KV tokens; ``waiting`` and ``active`` are the lines of the queue.
        spans: the bars of the Gantt view, by kind.
    """

    def __init__(self, memory: Axes, queue: Axes, gantt: Axes) -> None:
        """Add titles, lines, bars and legends to the axes."""
        self.memory, self.queue, self.gantt = memory, queue, gantt
        (self.kv,) = memory.plot([], [], color=BLUE, linewidth=1.1, drawstyle="steps-post")
        self.area = draw_bars(memory, BLUE, alpha=0.22)
        self.capacity = memory.axhline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
        memory.set_title("KV memory in use (tokens), and its capacity")
        (self.waiting,) = queue.plot([], [], color=ORANGE, linewidth=1.2, drawstyle="steps-post")
        (self.active,) = queue.plot([], [], color=BLUE, linewidth=1.2, drawstyle="steps-post")
        queue.set_title("Number of requests")
        self.spans = {kind: draw_bars(gantt, color) for kind, (_, color, _) in SPANS.items()}
        gantt.grid(axis="y", visible=False)
        gantt.set_title("Requests")
        gantt.set_xlabel("Time (s)")
        for ax in (memory, queue):
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        lines = [Line2D([], [], color=color, linewidth=2) for color in (ORANGE, BLUE)]
        _legend(queue, lines, ["waiting", "active"])
        names, colors, _ = zip(*SPANS.values(), strict=True)
        _legend(gantt, [Patch(color=color) for color in colors], names)

    def set_limits(
        self, end: float, capacity: float, most: float, window: tuple[float, float], rows: int
    ) -> None:
        """Set the limits of the axes.

        Args:
            end: right end of the time axis of memory and queue, seconds.
            capacity: tokens.
            most: upper end of the axis of the queue.
            window: left and right end of the time axis of the Gantt view, seconds.
            rows: rows of the Gantt view.
        """
        self.memory.set(xlim=(0, end), ylim=(0, 1.12 * capacity))
        self.capacity.set_ydata([capacity, capacity])
        self.queue.set(xlim=(0, end), ylim=(0, most))
        self.gantt.set(xlim=window, ylim=(rows - 0.5, -0.5))

    def show(self, scene: Scene) -> None:
        """Show the data of a scene."""
        self.kv.set_data(scene.time, scene.kv)
        self.area.set_verts(rectangles_below(scene.time, scene.kv))
        self.waiting.set_data(scene.time, scene.waiting)
        self.active.set_data(scene.time, scene.active)
        spans = scene.spans
        for kind, bars in self.spans.items():
            of_kind = spans.kind == kind
            height = 1.0 if len(scene.rows) > MAX_THICK_ROWS else SPANS[kind][2]
            corners = rectangles(spans.start[of_kind], spans.end[of_kind], spans.row[of_kind], height)
            bars.set_verts(corners)  # type: ignore[arg-type]


def rectangles_below(time: Floats, values: Floats) -> Any:
    """Return the outline of the area below a step function, one polygon."""
    x = np.concatenate((np.repeat(time, 2)[1:], [time[-1], time[0]]))
    y = np.concatenate((np.repeat(values, 2)[:-1], [0.0, 0.0]))
    return [np.column_stack((x, y))]


def _legend(ax: Axes, handles: list[Any], names: Sequence[str]) -> None:
    """Add a legend on the line of the title, at its right end."""
    ax.legend(
        handles, names, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(names), borderaxespad=0.0,
        borderpad=0.5, handlelength=1.0, handleheight=0.7, columnspacing=1.0, handletextpad=0.4, fontsize=7.5,
    )  # fmt: skip


def summary_figure(scene: Scene, title: str) -> Figure:
    """Return the figure of a whole episode: KV memory, queue, and all requests.

    Args:
        scene: the end of the episode, with all requests.
        title: first line.
    """
    with mpl.rc_context({**SUMMARY_STYLE, "font.size": 9.5, "axes.titlesize": 10}):
        figure = Figure(figsize=(10, 8), layout="constrained")
        memory, queue, gantt = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1.3, 4))
        timeline = Timeline(memory, queue, gantt)
        end = scene.clock or 1.0
        most = max(float(scene.waiting.max()), float(scene.active.max()), 4.0) * 1.08
        timeline.set_limits(end, scene.kv_capacity, most, (0.0, end), max(len(scene.rows), 1))
        timeline.show(scene)
        gantt.set_ylabel("Requests in order of arrival")
        latency = "" if math.isnan(scene.mean_latency) else f", mean latency {scene.mean_latency:.2f} s"
        figure.suptitle(
            f"{title}\n{scene.num_finished:,} of {len(scene.rows):,} requests finished{latency}, "
            f"{scene.num_evictions:,} evictions, {scene.iteration:,} iterations in {scene.clock:.1f} s, "
            f"peak memory {scene.peak_kv_tokens:,} of {scene.kv_capacity:,} tokens",
            x=0.01, ha="left", fontsize=10,
        )  # fmt: skip
    return figure


def write_summary(scene: Scene, title: str, path: Any) -> None:
    """Write :func:`summary_figure` as a PNG file."""
    save_figure(summary_figure(scene, title), path)


def save_figure(figure: Figure, path: Any) -> None:
    """Write a figure as a PNG file."""
    with mpl.rc_context(SUMMARY_STYLE):
        figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})
