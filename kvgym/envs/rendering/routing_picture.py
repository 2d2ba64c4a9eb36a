"""Drawing clusters with matplotlib: the workers at one moment, and the summary of a whole episode."""

from __future__ import annotations

import math
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from kvgym.envs.rendering.frame import HEIGHT, WIDTH, round_up
from kvgym.envs.rendering.picture import (
    BLUE,
    DPI,
    GREEN,
    LOOK,
    ORANGE,
    draw_bars,
    rectangles,
    rectangles_below,
)
from kvgym.envs.rendering.routing import ROLES, RoutingCourse, RoutingScene
from kvgym.envs.rendering.scene import Floats, Integers
from kvgym.report.style import GRID, INK

NO_CANDIDATE = "#d0d7de"
"""Colour of the memory of workers the request may not go to."""

MAX_NAMES = 32
"""Most workers whose number is written beside their bar."""

LANE = 0.84
"""Height of the lane of a worker, of which there is one in every unit."""

MAX_LINED = 12
"""Most workers whose lanes show where they end."""


def name_workers(ax: Axes, role: Integers) -> None:
    """Give every worker a row of the axes, with its number and, if it is not mixed, its role."""
    names = [f"{ROLES[kind]} {k}" if kind else f"{k}" for k, kind in enumerate(role)]
    step = -(-len(names) // MAX_NAMES)
    ax.set_yticks(np.arange(len(names))[::step], names[::step])
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.set_ylim(len(names) - 0.5, -0.5)


def legend_below(ax: Axes, colors: dict[str, str]) -> None:
    """Put a legend below the axes, at their left end."""
    ax.legend(
        [Patch(color=color) for color in colors.values()], list(colors), loc="upper left",
        bbox_to_anchor=(-0.02, -0.085), ncols=len(colors), borderaxespad=0.0, handlelength=1.0, handleheight=0.7,
        columnspacing=1.2, handletextpad=0.4, fontsize=7.5,
    )  # fmt: skip


# ---------------------------------------------------------------- one moment


def draw_moment(scene: RoutingScene) -> NDArray[np.uint8]:
    """Return a scene as an image, uint8 (HEIGHT, WIDTH, 3); the same scene gives the same bytes."""
    rows = np.arange(len(scene.role))
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI)
        canvas: Any = FigureCanvasAgg(figure)
        left = 0.09 if not scene.role.any() else 0.105
        memory = figure.add_axes((left, 0.13, 0.49 - left, 0.71))
        queue = figure.add_axes((0.545, 0.13, 0.43, 0.71))
        figure.text(0.02, 0.955, f"t = {scene.clock:.2f} s", fontsize=12, fontweight="bold")
        figure.text(0.02, 0.912, scene.headline(), fontsize=9)
        figure.text(
            0.975, 0.957, f"{scene.waiting.sum():,} waiting  ·  {scene.active.sum():,} active  ·  "
            f"{scene.num_finished:,} finished  ·  {scene.num_evictions:,} evictions", ha="right", fontsize=8.5,
        )  # fmt: skip
        used = scene.kv_tokens / scene.kv_capacity
        _draw_rows(memory, used[scene.candidate], rows[scene.candidate], BLUE)
        _draw_rows(memory, used[~scene.candidate], rows[~scene.candidate], NO_CANDIDATE)
        memory.set_xlim(0, 1)
        memory.xaxis.set_major_formatter(PercentFormatter(1.0))
        memory.set_title("KV memory in use (% of capacity)")
        name_workers(memory, scene.role)
        memory.set_ylabel("Worker")
        others = {} if scene.candidate.all() else {"may not": NO_CANDIDATE}
        legend_below(memory, {"may take the request": BLUE, **others})
        parts = {"active": (scene.active, GREEN), "waiting": (scene.waiting, ORANGE)}
        if scene.role.any():
            parts["on their way"] = (scene.incoming, GRID)
        end = np.zeros(len(rows))
        for count, color in parts.values():
            _draw_rows(queue, end + count, rows, color, start=end)
            end = end + count
        queue.set_xlim(0, round_up(max(1.05 * float(end.max()), 10.0)))
        queue.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        queue.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        queue.set_title("Number of requests")
        name_workers(queue, scene.role)
        queue.set_yticks([])
        legend_below(queue, {name: color for name, (_, color) in parts.items()})
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _draw_rows(ax: Axes, end: Floats, rows: Integers, color: str, start: Floats | None = None) -> None:
    """Draw a bar in some rows of axes, from 0 or from ``start``."""
    bars = draw_bars(ax, color)
    bars.set_verts(rectangles(np.zeros(len(end)) if start is None else start, end, rows, 0.72))  # type: ignore[arg-type]


# ---------------------------------------------------------------- the whole episode


def course_figure(course: RoutingCourse, title: str) -> Figure:
    """Return the figure of a whole episode: memory and load of every worker, and how many requests it got.

    Args:
        course: what became of the episode.
        title: first line.
    """
    with mpl.rc_context({**LOOK, "font.size": 9.5, "axes.titlesize": 9.5}):
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
    """Return where a value or a neighbour is not 0: long lines at 0 would cover the bottoms of the rows."""
    padded = np.pad(values, 1)
    return (padded[:-2] > 0) | (values > 0) | (padded[2:] > 0)


def _draw_received(ax: Axes, course: RoutingCourse) -> None:
    """Draw how many requests came to every worker, in the same rows."""
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
    figure = course_figure(course, title)
    with mpl.rc_context(LOOK):
        figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})
