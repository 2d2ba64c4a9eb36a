"""Pictures of a moment, and of a whole episode, of a worker or a cluster.

The limits of the axes change in a few round steps, so that a film does not flicker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.rendering.canvas import LARGE, Box, Canvas, Panel, faded, ticks
from kvgym.envs.rendering.scene import (
    IN_QUEUE,
    ROLES,
    SPANS,
    ClusterScene,
    FleetScene,
    Floats,
    Integers,
    Scene,
    WorkerScene,
)
from kvgym.report.chart import Quantity
from kvgym.report.colours import GRID, PALETTE

BLUE, ORANGE, GREEN = PALETTE[:3]
PROMPT, OUTPUT = BLUE, PALETTE[5]
SHADE = faded(BLUE, 0.22)
NO_CANDIDATE = "#d0d7de"
"""Colour of the memory of workers the request may not go to."""

FRAME, SUMMARY = (800, 600), (1000, 800)
"""Width and height of a picture of a moment, and of an episode, pixels."""

MAX_BARS, MAX_NAMES, MAX_WORKERS, MAX_LINED = 40, 14, 32, 12
"""Upper limits of rows of the active set, of requests with a name, of workers with one, and for lines at full rows."""

MEMORY, QUEUE, GANTT = (62, 70, 492, 190), (62, 236, 492, 306), (62, 352, 492, 548)
TOTAL, ACTIVE = (560, 70, 780, 100), (560, 152, 780, 548)
"""Axes in the picture of a moment of a worker."""

FLEET = (62, 70, 780, 232), (62, 286, 780, 390), (62, 444, 780, 548)
"""Axes in the picture of a moment of a fleet."""

CLUSTER_MEMORY, CLUSTER_REQUESTS = (84, 96, 392, 522), (436, 96, 780, 522)
"""Axes in the picture of a moment of a cluster."""


def draw(scene: Scene) -> NDArray[np.uint8]:
    """Return the picture of a moment, uint8 (600, 800, 3); the same scene gives the same bytes."""
    canvas = Canvas(*FRAME)
    canvas.text(16, 25, f"t = {scene.clock:.2f} s", size=LARGE)
    counts = (
        f"{scene.total('iteration'):,} iterations",
        f"{scene.total('num_waiting'):,} waiting",
        f"{scene.total('num_active'):,} active",
        f"{scene.num_finished:,} finished{scene.latency}",
        f"{scene.total('total_evicted'):,} evictions",
    )
    canvas.text(FRAME[0] - 20, 27, "  ·  ".join(counts), align=1.0)
    if isinstance(scene, WorkerScene):
        _draw_past(canvas, scene, (MEMORY, QUEUE), round_up(scene.clock))
        started = scene.spans.start[scene.spans.kind != IN_QUEUE]
        window = time_window(float(started.min(initial=scene.clock)), scene.clock)
        _draw_requests(canvas, scene, GANTT, window, rows_for(len(scene.rows)))
        _draw_total(canvas, scene)
        _draw_active_set(canvas, scene)
    elif isinstance(scene, ClusterScene):
        canvas.text(16, 54, scene.choice.headline())
        _draw_workers(canvas, scene)
    elif isinstance(scene, FleetScene):
        _draw_fleet(canvas, scene, FLEET)
    return canvas.pixels()


def draw_summary(scene: Scene, title: str) -> NDArray[np.uint8]:
    """Return the picture of a whole episode, uint8 (800, 1000, 3).

    Args:
        scene: its end, a whole scene.
        title: first line.
    """
    canvas = Canvas(*SUMMARY)
    end = float(scene.time[-1])
    peak = float((scene.workers["peak_kv_tokens"] / scene.kv_capacity).max())
    canvas.text(16, 22, title, size=15)
    canvas.text(
        16, 44,
        f"{scene.num_finished:,} of {scene.num_arrived:,} requests finished{scene.latency}, "
        f"{scene.total('total_evicted'):,} evictions, {scene.total('iteration'):,} iterations in {end:.1f} s, "
        f"peak memory {peak:.0%}",
    )  # fmt: skip
    if isinstance(scene, WorkerScene):
        _draw_past(canvas, scene, ((72, 92, 980, 252), (72, 300, 980, 402)), end or 1.0)
        _draw_requests(canvas, scene, (72, 450, 980, 748), (0.0, end or 1.0), max(len(scene.rows), 1))
    elif isinstance(scene, ClusterScene):
        _draw_course(canvas, scene, end or 1.0)
    elif isinstance(scene, FleetScene):
        _draw_fleet(canvas, scene, ((72, 92, 980, 332), (72, 386, 980, 540), (72, 594, 980, 748)))
    return canvas.pixels()


# ---------------------------------------------------------------- axes


def round_up(value: float) -> float:
    """Return the next of 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for step in (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8):
        if value <= step * power * (1 + 1e-9):
            return step * power
    return 10.0 * power


def time_window(start: float, now: float) -> tuple[float, float]:
    """Return round limits of a time axis from ``start`` to ``now``, seconds."""
    width = round_up(1.15 * (now - start))
    step = width / 8
    right = max(math.ceil(now / step - 1e-9) * step, step)
    return max(right - width, 0.0), right


def rows_for(count: int) -> int:
    """Return the number of rows of axes with ``count`` bars, at most MAX_BARS."""
    return min(10 * max(-(-count // 10), 1), MAX_BARS)


def _name_requests(panel: Panel, requests: Integers, rows: int) -> None:
    """Write the numbers of requests to the left of their rows; skip rows if there are many."""
    step = max(-(-rows // MAX_NAMES), 1)
    panel.name_rows((k, f"{requests[k]}") for k in range(0, len(requests), step))


def _name_workers(panel: Panel, scene: Scene) -> None:
    """Write the workers' numbers, after their roles if those differ, to the left of their rows, MAX_WORKERS at most."""
    names = [f"{ROLES[kind]} {k}" if kind else f"{k}" for k, kind in enumerate(scene.workers["role"])]
    panel.name_rows(list(enumerate(names))[:: -(-len(names) // MAX_WORKERS)])


# ---------------------------------------------------------------- one worker


def _draw_past(canvas: Canvas, scene: WorkerScene, boxes: tuple[Box, Box], end: float) -> None:
    """Draw memory in use, and the numbers of waiting and active requests, from the start to ``end``."""
    (kv,), (waiting,), active = scene.kv, scene.waiting, (scene.unfinished - scene.waiting)[0]
    capacity = float(scene.kv_capacity[0])
    most = round_up(max(float(waiting.max()), float(active.max()), 4.0) * 1.05)
    memory = Panel(
        canvas, boxes[0], (0, end), (0, 1.12 * capacity), "KV memory in use (tokens), and its capacity"
    )
    memory.axes(ticks(0, end, 6), ticks(0, 1.12 * capacity, 5, whole=True))
    memory.steps(scene.time, kv, BLUE, area=SHADE)
    memory.limit(y=capacity)
    queue = Panel(canvas, boxes[1], (0, end), (0, most), "Number of requests")
    queue.axes(ticks(0, end, 6), ticks(0, most, 4, whole=True))
    queue.legend([("waiting", ORANGE), ("active", BLUE)])
    queue.steps(scene.time, waiting, ORANGE)
    queue.steps(scene.time, active, BLUE)


def _draw_requests(
    canvas: Canvas, scene: WorkerScene, box: Box, window: tuple[float, float], rows: int
) -> None:
    """Draw the history of the chosen requests within a window of time, seconds."""
    spans = scene.spans
    panel = Panel(canvas, box, window, (rows - 0.5, -0.5), "Requests")
    panel.axes(ticks(*window, 6))
    panel.legend([(name, color) for name, color, _ in SPANS.values()])
    panel.below("Time (s)")
    for kind, (_, color, height) in SPANS.items():
        of_kind = spans.kind == kind
        thick = 1.0 if rows > 100 else height  # thinner ones would vanish
        panel.bars(spans.start[of_kind], spans.end[of_kind], spans.row[of_kind], thick, color)
    _name_requests(panel, scene.rows, rows)


def _draw_total(canvas: Canvas, scene: WorkerScene) -> None:
    """Draw the memory of all active requests as one bar."""
    capacity, used = float(scene.kv_capacity[0]), float(scene.total("kv_allocated"))
    prompts = min(float(scene.active.prompt_kv.sum()), used)  # requests may share memory
    panel = Panel(canvas, TOTAL, (0, 1.05 * capacity), (-0.5, 0.5), "Memory")
    panel.note(f"{used:,.0f} / {capacity:,.0f}  ({used / capacity:.0%})")
    panel.bars(0.0, prompts, 0.0, 0.7, PROMPT)
    panel.bars(prompts, used, 0.0, 0.7, OUTPUT)
    panel.axes()
    panel.limit(x=capacity)
    names = [("prompt", PROMPT), ("generated", OUTPUT), ("to come", "white")]
    canvas.legend(TOTAL[0], TOTAL[3] + 13, names)


def _draw_active_set(canvas: Canvas, scene: WorkerScene) -> None:
    """Draw the latest active requests as bars, with the memory they are predicted to need at their end."""
    active = scene.active
    longest = active.prompt_len + np.maximum(active.predicted_len, active.num_output_tokens)
    widest, rows = round_up(float(longest.max(initial=10))), rows_for(len(active))
    shown = slice(None, -MAX_BARS - 1, -1)
    prompt, held = active.prompt_kv[shown], active.kv_tokens[shown]
    predicted = active.predicted_len[shown]
    panel = Panel(canvas, ACTIVE, (0, widest), (rows - 0.5, -0.5), "Active requests, latest first")
    panel.axes(ticks(0, widest, 5, whole=True))
    panel.below("KV tokens")
    hidden = len(active) - len(prompt)
    panel.note(f"+ {hidden:,}" if hidden else "")
    nothing, place = np.zeros(len(prompt)), np.arange(len(prompt))
    to_come = np.where(predicted >= 0, active.prompt_len[shown] + predicted, 0)
    panel.bars(nothing, prompt, place, 0.72, PROMPT)
    panel.bars(prompt, held, place, 0.72, OUTPUT)
    panel.bars(held, to_come, place, 0.72, GRID, hollow=True)
    _name_requests(panel, active.request_id[shown], rows)


# ---------------------------------------------------------------- a cluster


def _draw_workers(canvas: Canvas, scene: ClusterScene) -> None:
    """Draw the memory in use and the number of requests of every worker, and the candidates of the request."""
    workers, there, count = scene.workers, scene.choice.candidate, len(scene.workers)
    rows, lanes = np.arange(count), (count - 0.5, -0.5)
    used = 100 * workers["kv_allocated"] / scene.kv_capacity
    panel = Panel(canvas, CLUSTER_MEMORY, (0, 100), lanes, "KV memory in use (% of capacity), by worker")
    panel.axes(ticks(0, 100, 6), unit="%")
    for which, color in ((there, BLUE), (~there, NO_CANDIDATE)):
        panel.bars(np.zeros(which.sum()), used[which], rows[which], 0.72, color)
    _name_workers(panel, scene)
    others = [] if there.all() else [("may not", NO_CANDIDATE)]
    canvas.legend(CLUSTER_MEMORY[0], CLUSTER_MEMORY[3] + 36, [("may take the request", BLUE), *others])

    parts = [("active", workers["num_active"], GREEN), ("waiting", workers["num_waiting"], ORANGE)]
    if workers["role"].any():
        parts.append(("on their way", scene.choice.incoming, GRID))
    ends = np.cumsum([np.zeros(count), *(number for _, number, _ in parts)], axis=0)
    most = round_up(max(1.05 * float(ends[-1].max()), 10.0))
    panel = Panel(canvas, CLUSTER_REQUESTS, (0, most), lanes, "Number of requests")
    panel.axes(ticks(0, most, 6, whole=True))
    for k, (_, _, color) in enumerate(parts):
        panel.bars(ends[k], ends[k + 1], rows, 0.72, color)
    canvas.legend(CLUSTER_REQUESTS[0], CLUSTER_REQUESTS[3] + 36, [(name, color) for name, _, color in parts])


def _draw_course(canvas: Canvas, scene: ClusterScene, end: float) -> None:
    """Draw memory and load of every worker over time, and the requests it received."""
    most, count = max(float(scene.unfinished.max()), 1.0), len(scene.workers)
    lanes, received = (count - 0.5, -0.5), scene.workers["total_routed"]
    memory = Panel(
        canvas,
        (84, 92, 446, 728),
        (0, end),
        lanes,
        "KV memory between batches, by worker (full row: capacity)",
    )
    load = Panel(canvas, (466, 92, 828, 728), (0, end), lanes, f"Unfinished requests (full row: {most:,.0f})")
    for panel in (memory, load):
        panel.axes(ticks(0, end, 5))
        panel.below("Time (s)")
    for k in range(count):
        _draw_lane(memory, scene.time, scene.kv[k] / scene.kv_capacity[k], k, BLUE)
        _draw_lane(load, scene.time, scene.unfinished[k] / most, k, GREEN)
        _draw_lane(load, scene.time, scene.waiting[k] / most, k, ORANGE)
    _name_workers(memory, scene)
    active = "active or on their way" if scene.workers["role"].any() else "active"
    canvas.legend(466, 780, [(active, GREEN), ("waiting", ORANGE)])
    widest = 1.75 * max(float(received.max()), 1.0)  # leaves room for the numbers
    bars = Panel(canvas, (848, 92, 985, 728), (0, widest), lanes, "Requests received")
    bars.axes(ticks(0, widest, 3, whole=True))
    bars.bars(np.zeros(count), received, np.arange(count), 0.72, BLUE)
    for k in range(0, count, -(-count // MAX_WORKERS)):
        canvas.text(bars.box[2], int(bars.y(k)), f"{received[k]:,}", align=1.0)


def _draw_lane(panel: Panel, time: Floats, shares: Floats, k: int, color: str) -> None:
    """Draw a step function with values from 0 to 1 in row ``k``, over a line at 0."""
    left, _, right, _ = panel.box
    top, bottom = int(panel.y(k - 0.42)), int(panel.y(k + 0.42))
    lane = Panel(panel.canvas, (left + 1, top, right, bottom), panel.ends[0], (0.0, 1.0))
    seen = np.where(shares > 0, np.maximum(shares, 1 / (bottom - top)), 0.0)
    lane.steps(time, seen, color, area=faded(color, 0.22), thick=1)
    panel.canvas.fill(left + 1, bottom, right + 1, bottom + 1, faded(GRID, 0.5))
    if panel.ends[1][0] < MAX_LINED:
        lane.limit(y=1.0)


# ---------------------------------------------------------------- a fleet


def _draw_fleet(canvas: Canvas, scene: FleetScene, boxes: Sequence[Box]) -> None:
    """Draw the panels that reports have of a fleet: steps, filled or as lines, and dashed limits."""
    for k, (panel, box) in enumerate(zip(scene.panels, boxes, strict=True)):
        (left, right), (low, high) = (panel.x.low, panel.x.high), (panel.y.low, panel.y.high)
        axes = Panel(canvas, box, (left, right), (low, high), label_of(panel.y.quantity))
        axes.axes(ticks(left, right, 8), ticks(low, high, 4))
        names = []
        for series in reversed(panel.series):  # bands stand on each other: the lowest is drawn last
            color, fill = str(series.look["color"]), float(series.look.get("fill", 0.0))
            x, y = (np.asarray(series.values[name], np.float64) for name in ("x", "y"))
            known = np.isfinite(y)
            names.append((series.name, faded(color, fill) if fill else color))
            if fill and known.any():
                axes.steps(x[known], y[known], faded(color, fill), area=faded(color, fill), thick=1)
        for series in panel.series:
            x, y = (np.asarray(series.values[name], np.float64) for name in ("x", "y"))
            known = np.isfinite(y)
            if not series.look.get("fill") and known.any():
                axes.steps(x[known], y[known], str(series.look["color"]))
        axes.legend(names[::-1])
        for _, value, _ in panel.rules:
            axes.limit(y=value)
        if k == len(boxes) - 1:
            axes.below("Time (s)")


def label_of(quantity: Quantity) -> str:
    """Return the name of a quantity with its unit."""
    return f"{quantity.label} ({quantity.unit})" if quantity.unit else quantity.label
