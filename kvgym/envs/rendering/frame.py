"""The picture of one moment: memory, queue and requests over time on the left, the active set on the right.

It is drawn without a window. Axes, ticks and legends are kept as a background, of which a panel is drawn again
only when it needs other limits; limits change in few, round steps.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from kvgym.envs.rendering.picture import DPI, LOOK, Timeline, draw_bars, rectangles
from kvgym.envs.rendering.scene import IN_QUEUE, Integers, Scene
from kvgym.report.style import GRID, INK, PALETTE

WIDTH, HEIGHT = 800, 600
PROMPT, OUTPUT = PALETTE[0], PALETTE[5]
MAX_BARS = 40
MAX_NAMES = 20
"""Most rows of the active set that carry the number of their request; half as many in the Gantt view."""

PANELS = {
    "memory": ((0.07, 0.685, 0.545, 0.2), (0.0, 0.642, 0.65, 0.93)),
    "queue": ((0.07, 0.49, 0.545, 0.115), (0.0, 0.45, 0.65, 0.642)),
    "gantt": ((0.07, 0.085, 0.545, 0.315), (0.0, 0.0, 0.65, 0.45)),
    "total": ((0.685, 0.835, 0.29, 0.05), (0.65, 0.79, 1.0, 0.93)),
    "bars": ((0.685, 0.085, 0.29, 0.665), (0.65, 0.0, 1.0, 0.79)),
}
"""Of each panel the axes (left, low, width, height) and the part of the picture it fills (left, low, right,
high), as shares of the picture. Nothing of a panel reaches into the part of another."""


def draw_scene(scene: Scene) -> NDArray[np.uint8]:
    """Return a scene as an image, uint8 (HEIGHT, WIDTH, 3); the same scene gives the same bytes."""
    frame: Frame | None = getattr(_KEPT, "frame", None)
    if frame is None:
        frame = _KEPT.frame = Frame()
    return frame.draw(scene)


_KEPT = threading.local()
"""The frame of each thread: setting one up takes several times as long as drawing it."""


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
    """Return round limits of a time axis that shows from ``start`` to ``now``, seconds."""
    width = round_up(1.15 * (now - start))
    step = width / 8
    right = max(math.ceil(now / step - 1e-9) * step, step)
    return max(right - width, 0.0), right


def rows_for(count: int) -> int:
    """Return the rows of axes that show ``count`` of something, at most MAX_BARS."""
    return min(10 * max(-(-count // 10), 1), MAX_BARS)


class Frame:
    """Figure and artists of the picture.

    Attributes:
        timeline: what the left half shows.
        prompt: bars of the active requests' prompts in memory; ``output`` of their generated tokens,
            ``predicted`` of the memory they are predicted to need at the end.
    """

    def __init__(self) -> None:
        """Set up figure and artists."""
        with mpl.rc_context(LOOK):
            self.figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI)
            canvas: Any = FigureCanvasAgg(self.figure)
            canvas.get_renderer()  # makes its buffer of pixels
            self.canvas = canvas
            self.axes = {name: self.figure.add_axes(axes) for name, (axes, _) in PANELS.items()}
            self.timeline = Timeline(self.axes["memory"], self.axes["queue"], self.axes["gantt"])
            bars, total = self.axes["bars"], self.axes["total"]
            self.total_capacity = _set_up_active_set(bars, total)
            self.predicted = draw_bars(bars, "none", linewidths=0.7, edgecolors=GRID)
            self.prompt, self.output = draw_bars(bars, PROMPT), draw_bars(bars, OUTPUT)
            self.total_prompt, self.total_output = draw_bars(total, PROMPT), draw_bars(total, OUTPUT)
            self._set_up_texts()
        self.artists = [
            *self.timeline.artists, self.predicted, self.prompt, self.output, self.total_prompt,
            self.total_output, self.clock, self.counts, self.usage, self.more, *self.names, *self.rows,
        ]  # fmt: skip
        for artist in self.artists:
            artist.set_animated(True)
        self._limits: dict[str, tuple[float, ...]] = {}
        self._background: Any = None

    def _set_up_texts(self) -> None:
        """Set up the texts that change; those beside titles sit on the same line."""
        gantt, bars, total = self.axes["gantt"], self.axes["bars"], self.axes["total"]
        self.clock = self.figure.text(0.02, 0.955, "", fontsize=12, fontweight="bold")
        self.counts = self.figure.text(0.975, 0.957, "", ha="right", fontsize=8.5)
        self.usage = total.text(1.0, 1.28, "", ha="right", transform=total.transAxes)
        self.more = bars.text(1.0, 1.021, "", ha="right", transform=bars.transAxes)
        gantt.set_yticks([])
        self.names, self.rows = (
            [
                ax.text(-0.012, 0, "", ha="right", va="center_baseline", fontsize=7.5,
                        transform=ax.get_yaxis_transform())
                for _ in range(count)
            ]
            for ax, count in ((bars, MAX_NAMES), (gantt, MAX_NAMES // 2))
        )  # fmt: skip

    def draw(self, scene: Scene) -> NDArray[np.uint8]:
        """Return a scene as an image, uint8 (HEIGHT, WIDTH, 3)."""
        with mpl.rc_context(LOOK):
            self._set_limits(scene)
            self.timeline.show(scene)
            _name_rows(self.rows, scene.rows, rows_for(len(scene.rows)))
            self._show_active_set(scene)
            self._show_counts(scene)
            for artist in self.artists:
                self.figure.draw_artist(artist)
        return np.asarray(self.canvas.buffer_rgba())[..., :3].copy()

    def _set_limits(self, scene: Scene) -> None:
        """Put the background up, after drawing the panels again that need other limits."""
        started = scene.spans.start[scene.spans.kind != IN_QUEUE]
        longest = scene.prompt_len + np.maximum(scene.predicted_len, scene.num_output_tokens)
        end, capacity = round_up(scene.clock), float(scene.kv_capacity)
        most = round_up(max(float(scene.waiting.max()), float(scene.active.max()), 4.0) * 1.05)
        window = time_window(float(started.min(initial=scene.clock)), scene.clock)
        rows, bars = rows_for(len(scene.rows)), rows_for(len(scene.active_id))
        widest = round_up(float(longest.max(initial=10)))
        limits: dict[str, tuple[float, ...]] = {
            "memory": (end, capacity), "queue": (end, most), "gantt": (*window, rows), "total": (capacity,),
            "bars": (widest, bars),
        }  # fmt: skip
        pixels = np.asarray(self.canvas.buffer_rgba())
        if self._background is None:
            pixels[:] = 255
        else:
            self.canvas.restore_region(self._background)
        if limits == self._limits:
            return
        self.timeline.set_limits(end, capacity, most, window, rows)
        self.axes["total"].set_xlim(0, 1.05 * capacity)
        self.total_capacity.set_xdata([capacity, capacity])
        self.axes["bars"].set(xlim=(0, widest), ylim=(bars - 0.5, -0.5))
        for name, (_, (left, low, right, high)) in PANELS.items():
            if self._limits.get(name) != limits[name]:
                height = slice(round((1 - high) * HEIGHT), round((1 - low) * HEIGHT))
                pixels[height, round(left * WIDTH) : round(right * WIDTH)] = 255
                self.figure.draw_artist(self.axes[name])
        self._limits = limits
        self._background = self.canvas.copy_from_bbox(self.figure.bbox)

    def _show_active_set(self, scene: Scene) -> None:
        """Show the latest active requests as bars, and all of them together as one."""
        shown = slice(None, -MAX_BARS - 1, -1)
        prompt, output = scene.prompt_kv[shown], scene.output_kv[shown]
        nothing, place = np.zeros(len(prompt)), np.arange(len(prompt))
        predicted = scene.predicted_len[shown]
        to_come = np.where(predicted >= 0, scene.prompt_len[shown] + predicted, 0)
        for bars, left, right in (
            (self.prompt, nothing, prompt),
            (self.output, prompt, prompt + output),
            (self.predicted, nothing, np.maximum(to_come, prompt + output)),
        ):
            bars.set_verts(rectangles(left, right, place, 0.72))  # type: ignore[arg-type]
        _name_rows(self.names, scene.active_id[shown], rows_for(len(scene.active_id)))
        hidden = len(scene.active_id) - len(prompt)
        self.more.set_text(f"+ {hidden:,}" if hidden else "")
        prompts, used = float(scene.prompt_kv.sum()), float(scene.kv_tokens)
        for bars, a, b in ((self.total_prompt, 0.0, prompts), (self.total_output, prompts, used)):
            bars.set_verts(rectangles(np.array([a]), np.array([b]), np.zeros(1), 0.7))  # type: ignore[arg-type]
        self.usage.set_text(f"{scene.kv_tokens:,} / {scene.kv_capacity:,}  ({used / scene.kv_capacity:.0%})")

    def _show_counts(self, scene: Scene) -> None:
        """Write the line on top."""
        self.clock.set_text(f"t = {scene.clock:.2f} s")
        latency = "" if math.isnan(scene.mean_latency) else f"  ·  mean latency {scene.mean_latency:.2f} s"
        self.counts.set_text(
            f"iteration {scene.iteration:,}  ·  {len(scene.queue_id):,} waiting  ·  {len(scene.active_id):,} active"
            f"  ·  {scene.num_finished:,} finished{latency}  ·  {scene.num_evictions:,} evictions"
        )


def _set_up_active_set(bars: Axes, total: Axes) -> Any:
    """Set up the axes of the active requests, one by one and together; returns the line of the capacity."""
    total.set(yticks=[], ylim=(-0.5, 0.5), xticks=[])
    total.grid(visible=False)
    total.set_title("Memory by use")
    bars.set_title("Active requests, latest first")
    bars.set_xlabel("KV tokens")
    bars.set_yticks([])
    bars.grid(axis="y", visible=False)
    bars.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    bars.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    handles = [Patch(color=PROMPT), Patch(color=OUTPUT), Patch(fc="white", ec=GRID, linewidth=0.8)]
    total.legend(
        handles, ["prompt", "generated", "predicted to come"], loc="upper left", bbox_to_anchor=(-0.02, -0.02),
        ncols=3, borderaxespad=0.0, borderpad=0.2, handlelength=1.0, handleheight=0.7, columnspacing=1.0,
        handletextpad=0.4, fontsize=7.5,
    )  # fmt: skip
    return total.axvline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))


def _name_rows(names: list[Text], requests: Integers, rows: int) -> None:
    """Write the numbers of requests beside their rows, of every other or fewer rows where there are many."""
    step = max(rows // len(names), 1)
    for k, name in enumerate(names):
        name.set_y(k * step)
        name.set_text(f"{requests[k * step]}" if k * step < len(requests) else "")
