"""Picture of one moment: memory, queue and requests over time on the left, the active set on the right.

The limits of the axes change in a few round steps, so that a film does not flicker.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.rendering.canvas import LARGE, LINE, TITLE, WIDTH, Canvas, Panel, color_of, ticks
from kvgym.envs.rendering.scene import IN_QUEUE, SPANS, Integers, Scene
from kvgym.report.colours import PALETTE

BLUE, ORANGE, GREEN = (color_of(text) for text in PALETTE[:3])
SHADE = color_of(PALETTE[0], 0.22)
PROMPT, OUTPUT = BLUE, color_of(PALETTE[5])
WHITE = (255, 255, 255)

MAX_BARS = 40
MAX_NAMES = 14
"""Upper limits of rows of the active set, and of rows labelled with the number of their request."""

MEMORY = (60, 70, 492, 190)
QUEUE = (60, 236, 492, 306)
GANTT = (60, 352, 492, 548)
TOTAL = (560, 70, 780, 100)
ACTIVE = (560, 152, 780, 548)
"""Left, top, right and bottom end of the axes, pixels."""


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


def draw_scene(scene: Scene) -> NDArray[np.uint8]:
    """Return a scene as an image, uint8 (600, 800, 3); the same scene gives the same bytes."""
    canvas = Canvas()
    latency = "" if math.isnan(scene.mean_latency) else f"  ·  mean latency {scene.mean_latency:.2f} s"
    headline(
        canvas,
        scene.clock,
        f"iteration {scene.iteration:,}  ·  {len(scene.queue_id):,} waiting  ·  {len(scene.active_id):,} active"
        f"  ·  {scene.num_finished:,} finished{latency}  ·  {scene.num_evictions:,} evictions",
    )
    _draw_past(canvas, scene)
    _draw_requests(canvas, scene)
    _draw_total(canvas, scene)
    _draw_active_set(canvas, scene)
    return canvas.pixels


def headline(canvas: Canvas, clock: float, counts: str) -> None:
    """Write the line on top."""
    canvas.text(16, 18, f"t = {clock:.2f} s", size=LARGE)
    canvas.text(WIDTH - 20, 23, counts, align=1.0)


def _draw_past(canvas: Canvas, scene: Scene) -> None:
    """Draw memory in use, and the numbers of waiting and active requests, over time."""
    end, capacity = round_up(scene.clock), float(scene.kv_capacity)
    most = round_up(max(float(scene.waiting.max()), float(scene.active.max()), 4.0) * 1.05)
    memory = Panel(
        canvas, MEMORY, (0, end), (0, 1.12 * capacity), "KV memory in use (tokens), and its capacity"
    )
    memory.axes(ticks(0, end, 6), ticks(0, 1.12 * capacity, 5, whole=True))
    memory.steps(scene.time, scene.kv, BLUE, area=SHADE)
    memory.limit(y=capacity)
    queue = Panel(canvas, QUEUE, (0, end), (0, most), "Number of requests")
    queue.axes(ticks(0, end, 6), ticks(0, most, 4, whole=True))
    queue.legend([("waiting", ORANGE), ("active", BLUE)])
    queue.steps(scene.time, scene.waiting, ORANGE)
    queue.steps(scene.time, scene.active, BLUE)


def _draw_requests(canvas: Canvas, scene: Scene) -> None:
    """Draw the history of the chosen requests."""
    spans, rows = scene.spans, rows_for(len(scene.rows))
    started = spans.start[spans.kind != IN_QUEUE]
    window = time_window(float(started.min(initial=scene.clock)), scene.clock)
    panel = Panel(canvas, GANTT, window, (rows - 0.5, -0.5), "Requests")
    panel.axes(ticks(*window, 6))
    panel.legend([(name, color_of(color)) for name, color, _ in SPANS.values()])
    panel.below("Time (s)")
    for kind, (_, color, height) in SPANS.items():
        of_kind = spans.kind == kind
        panel.bars(spans.start[of_kind], spans.end[of_kind], spans.row[of_kind], height, color_of(color))
    _name_rows(panel, scene.rows, rows)


def _draw_total(canvas: Canvas, scene: Scene) -> None:
    """Draw the memory of all active requests as one bar."""
    capacity, used = float(scene.kv_capacity), float(scene.kv_tokens)
    prompts = min(float(scene.prompt_kv.sum()), used)  # requests may share memory
    panel = Panel(canvas, TOTAL, (0, 1.05 * capacity), (-0.5, 0.5), "Memory")
    right, top = TOTAL[2], TOTAL[1] - TITLE
    share = f"{scene.kv_tokens:,} / {scene.kv_capacity:,}  ({used / capacity:.0%})"
    canvas.text(right, top, share, align=1.0)
    panel.bars(0.0, prompts, 0.0, 0.7, PROMPT)
    panel.bars(prompts, used, 0.0, 0.7, OUTPUT)
    panel.axes()
    panel.limit(x=capacity)
    names = [("prompt", PROMPT), ("generated", OUTPUT), ("to come", WHITE)]
    canvas.legend(TOTAL[0], TOTAL[3] + 8, names)


def _draw_active_set(canvas: Canvas, scene: Scene) -> None:
    """Draw the latest active requests as bars, with the memory they are predicted to need at their end."""
    longest = scene.prompt_len + np.maximum(scene.predicted_len, scene.num_output_tokens)
    widest, rows = round_up(float(longest.max(initial=10))), rows_for(len(scene.active_id))
    shown = slice(None, -MAX_BARS - 1, -1)
    prompt, output, predicted = scene.prompt_kv[shown], scene.output_kv[shown], scene.predicted_len[shown]
    panel = Panel(canvas, ACTIVE, (0, widest), (rows - 0.5, -0.5), "Active requests, latest first")
    panel.axes(ticks(0, widest, 5, whole=True))
    panel.below("KV tokens")
    hidden = len(scene.active_id) - len(prompt)
    canvas.text(ACTIVE[2], ACTIVE[1] - TITLE, f"+ {hidden:,}" if hidden else "", align=1.0)
    nothing, place = np.zeros(len(prompt)), np.arange(len(prompt))
    to_come = np.where(predicted >= 0, scene.prompt_len[shown] + predicted, 0)
    panel.bars(nothing, prompt, place, 0.72, PROMPT)
    panel.bars(prompt, prompt + output, place, 0.72, OUTPUT)
    panel.bars(prompt + output, to_come, place, 0.72, LINE, hollow=True)
    _name_rows(panel, scene.active_id[shown], rows)


def _name_rows(panel: Panel, requests: Integers, rows: int) -> None:
    """Write the numbers of requests beside their rows; skip rows if there are many."""
    step = max(-(-rows // MAX_NAMES), 1)
    panel.name_rows((k, f"{requests[k]}") for k in range(0, len(requests), step))
