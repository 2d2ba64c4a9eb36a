"""Picture of one moment of a cluster: memory and requests of every worker."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.rendering.canvas import LINE, Canvas, Panel, color_of, ticks
from kvgym.envs.rendering.frame import BLUE, GREEN, ORANGE, headline, round_up
from kvgym.envs.rendering.routing import ROLES, RoutingScene

NO_CANDIDATE = color_of("#d0d7de")
"""Colour of the memory of workers the request may not go to."""

MAX_NAMES = 32
"""Upper limit of workers with a label beside their bar."""

MEMORY = (84, 96, 392, 522)
QUEUE = (436, 96, 780, 522)
"""Left, top, right and bottom end of the axes, pixels."""


def worker_names(role: NDArray[np.int64]) -> list[tuple[int, str]]:
    """Return workers and their names, at most MAX_NAMES: the number, after the role if that is not mixed."""
    names = [f"{ROLES[kind]} {k}" if kind else f"{k}" for k, kind in enumerate(role)]
    return list(enumerate(names))[:: -(-len(names) // MAX_NAMES)]


def draw_moment(scene: RoutingScene) -> NDArray[np.uint8]:
    """Return a scene as an image, uint8 (600, 800, 3); the same scene gives the same bytes."""
    canvas = Canvas()
    headline(
        canvas,
        scene.clock,
        f"{scene.waiting.sum():,} waiting  ·  {scene.active.sum():,} active  ·  "
        f"{scene.num_finished:,} finished  ·  {scene.num_evictions:,} evictions",
    )
    canvas.text(16, 48, scene.headline())
    _draw_memory(canvas, scene)
    _draw_requests(canvas, scene)
    return canvas.pixels


def _draw_memory(canvas: Canvas, scene: RoutingScene) -> None:
    """Draw the memory in use of every worker, and the candidates of the request."""
    count, used = len(scene.role), 100 * scene.kv_tokens / scene.kv_capacity
    panel = Panel(
        canvas, MEMORY, (0, 100), (count - 0.5, -0.5), "KV memory in use (% of capacity), by worker"
    )
    panel.axes(ticks(0, 100, 6), unit="%")
    rows, there = np.arange(count), scene.candidate
    for which, color in ((there, BLUE), (~there, NO_CANDIDATE)):
        panel.bars(np.zeros(which.sum()), used[which], rows[which], 0.72, color)
    panel.name_rows(worker_names(scene.role))
    others = [] if there.all() else [("may not", NO_CANDIDATE)]
    canvas.legend(MEMORY[0], MEMORY[3] + 32, [("may take the request", BLUE), *others])


def _draw_requests(canvas: Canvas, scene: RoutingScene) -> None:
    """Draw the number of requests on every worker."""
    count = len(scene.role)
    parts = [("active", scene.active, GREEN), ("waiting", scene.waiting, ORANGE)]
    if scene.role.any():
        parts.append(("on their way", scene.incoming, LINE))
    ends = np.cumsum([np.zeros(count), *(number for _, number, _ in parts)], axis=0)
    most = round_up(max(1.05 * float(ends[-1].max()), 10.0))
    panel = Panel(canvas, QUEUE, (0, most), (count - 0.5, -0.5), "Number of requests")
    panel.axes(ticks(0, most, 6, whole=True))
    for k, (_, _, color) in enumerate(parts):
        panel.bars(ends[k], ends[k + 1], np.arange(count), 0.72, color)
    canvas.legend(QUEUE[0], QUEUE[3] + 32, [(name, color) for name, _, color in parts])
