"""Summary picture of a whole episode of a cluster, drawn with matplotlib."""

from __future__ import annotations

import math
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from kvgym.envs.rendering.picture import (
    BLUE,
    GREEN,
    ORANGE,
    SUMMARY_STYLE,
    draw_bars,
    rectangles_below,
    save_figure,
)
from kvgym.envs.rendering.routing import RoutingCourse
from kvgym.envs.rendering.routing_frame import MAX_NAMES, worker_names
from kvgym.envs.rendering.scene import Floats, Integers
from kvgym.report.style import GRID, INK

LANE = 0.84
"""Height of the lane of a worker; lanes are one unit apart."""

MAX_LINED = 12
"""Upper limit of workers for lines at the upper ends of lanes."""


def name_workers(ax: Axes, role: Integers) -> None:
    """Label the rows of the axes with the workers' names."""
    rows, names = zip(*worker_names(role), strict=True)
    ax.set_yticks(rows, names)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.set_ylim(len(role) - 0.5, -0.5)


def legend_below(ax: Axes, colors: dict[str, str]) -> None:
    """Add a legend below the axes, at their left end."""
    ax.legend(
        [Patch(color=color) for color in colors.values()], list(colors), loc="upper left",
        bbox_to_anchor=(-0.02, -0.085), ncols=len(colors), borderaxespad=0.0, handlelength=1.0, handleheight=0.7,
        columnspacing=1.2, handletextpad=0.4, fontsize=7.5,
    )  # fmt: skip


def course_figure(course: RoutingCourse, title: str) -> Figure:
    """Return the figure of a whole episode: memory, load and number of requests of every worker.

    Args:
        course: the course of the episode.
        title: first line.
    """
    with mpl.rc_context({**SUMMARY_STYLE, "font.size": 9.5, "axes.titlesize": 9.5}):
        figure = Figure(figsize=(10, 8), layout="constrained")
        memory, load, received = figure.subplots(1, 3, width_ratios=(4, 4, 1.5))
        most = max(float(course.unfinished.max()), 1.0)
        _draw_lanes(memory, course, course.kv, BLUE)
        _draw_lanes(load, course, course.unfinished / most, GREEN)
        _draw_lanes(load, course, course.waiting / most, ORANGE)
        memory.set_title("KV memory between batches (full row: capacity)")
        load.set_title(f"Unfinished requests (full row: {most:,.0f})")
        for ax in (memory, load):
            ax.set_xlim(0, course.clock or 1.0)
            ax.set_xlabel("Time (s)")
            ax.xaxis.set_major_locator(MaxNLocator(5))
            name_workers(ax, course.role)
        memory.set_ylabel("Worker")
        load.set_yticks([])
        legend_below(
            load, {"active or on their way" if course.role.any() else "active": GREEN, "waiting": ORANGE}
        )
        _draw_received(received, course)
        latency = "" if math.isnan(course.mean_latency) else f", mean latency {course.mean_latency:.2f} s"
        figure.suptitle(
            f"{title}\n{course.num_finished:,} of {course.num_arrived:,} requests finished{latency}, "
            f"{course.num_evictions:,} evictions, {course.num_iterations:,} iterations in {course.clock:.1f} s, "
            f"peak memory {course.peak:.0%}",
            x=0.01, ha="left", fontsize=10,
        )  # fmt: skip
    return figure


def _draw_lanes(ax: Axes, course: RoutingCourse, shares: Floats, color: str) -> None:
    """Draw a step function with values in [0, 1] in the row of every worker."""
    count = len(shares)
    width = 1.1 if count <= MAX_LINED else 0.6
    areas: list[Any] = []
    for k, share in enumerate(shares):
        low = k + LANE / 2
        (area,) = rectangles_below(course.time, share)
        areas.append(np.column_stack((area[:, 0], low - LANE * area[:, 1])))
        line = np.where(_near_something(share), low - LANE * share, np.nan)
        ax.plot(course.time, line, color=color, linewidth=width, drawstyle="steps-post")
    draw_bars(ax, color, alpha=0.22).set_verts(areas)
    for k in range(count):
        ax.axhline(k + LANE / 2, color=GRID, linewidth=0.5)
        if count <= MAX_LINED:
            ax.axhline(k - LANE / 2, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))


def _near_something(values: Floats) -> NDArray[np.bool_]:
    """Return where a value or a neighbour is not 0, because lines at 0 would cover the bottoms of the rows."""
    padded = np.pad(values, 1)
    return (padded[:-2] > 0) | (values > 0) | (padded[2:] > 0)


def _draw_received(ax: Axes, course: RoutingCourse) -> None:
    """Draw the number of requests that every worker received, in the same rows."""
    count = len(course.received)
    ax.barh(np.arange(count), course.received, height=0.72, color=BLUE, linewidth=0)
    for k in range(0, count, -(-count // MAX_NAMES)):
        ax.annotate(
            f"{course.received[k]:,}", (float(course.received[k]), k), xytext=(3, 0), textcoords="offset points",
            va="center_baseline", fontsize=8,
        )  # fmt: skip
    ax.set_xlim(0, 1.45 * max(float(course.received.max(initial=1)), 1.0))
    ax.set_title("Requests received")
    ax.set_xlabel("Requests")
    ax.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    name_workers(ax, course.role)
    ax.set_yticks([])


def write_course(course: RoutingCourse, title: str, path: Any) -> None:
    """Write :func:`course_figure` as a PNG file."""
    save_figure(course_figure(course, title), path)
