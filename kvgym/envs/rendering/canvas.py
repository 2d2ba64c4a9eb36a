"""Drawing with NumPy: rectangles, steps, text and axes on a canvas of pixels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.envs.rendering.glyphs import CAPITAL, text_mask
from kvgym.envs.rendering.scene import Floats, Integers
from kvgym.report.colours import GRID, INK

WIDTH, HEIGHT = 800, 600
"""Pixels of a picture."""

TITLE, LARGE = 19, 14
"""Pixels from the top of a title to its axes; height of the capital letters of a heading."""

Color = tuple[int, int, int]
Ends = tuple[float, float]


def color_of(text: str, strength: float = 1.0) -> Color:
    """Return ``"#rrggbb"`` as red, green and blue, mixed with white where ``strength`` is below 1."""
    red, green, blue = (round(255 - strength * (255 - int(text[k : k + 2], 16))) for k in (1, 3, 5))
    return red, green, blue


BLACK, LINE, FAINT = color_of(INK), color_of(GRID), color_of(GRID, 0.3)


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return round numbers in a range, in steps of 1, 2, 2.5 or 5 times a power of ten.

    Args:
        low: lower end.
        high: upper end.
        most: maximal number of ticks, at least 2.
        whole: whole numbers only.
    """
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    choices = [k * step * ten for ten in (1, 10, 100) for k in (1, 2, 2.5, 5)]
    if whole:
        choices = [1.0, *(k for k in choices if k > 1 and k == round(k))]
    for step in choices:
        inside = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        if len(inside) <= most:
            break
    return [k * step for k in inside]


class Canvas:
    """White pixels to draw on; coordinates are pixels from the left and from the top.

    Attributes:
        pixels: uint8 (height, width, 3).
    """

    def __init__(self, width: int = WIDTH, height: int = HEIGHT) -> None:
        """Create a white canvas."""
        self.pixels: NDArray[np.uint8] = np.full((height, width, 3), 255, np.uint8)

    def fill(self, left: int, top: int, right: int, bottom: int, color: Color) -> None:
        """Fill a rectangle; ``right`` and ``bottom`` are exclusive."""
        self.pixels[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = color

    def text(
        self, x: float, y: float, text: str, color: Color = BLACK, *, size: int = CAPITAL, align: float = 0.0
    ) -> int:
        """Write a line of text, clipped to the canvas.

        Args:
            x: left end of the text with ``align`` 0, its middle with 0.5, its right end with 1.
            y: upper end of its capital letters.
            text: the line.
            color: colour of the letters.
            size: height of its capital letters, pixels.
            align: see ``x``.

        Returns:
            The width of the text, pixels.
        """
        mask = text_mask(text, size)
        left, top = max(round(x - align * mask.shape[1]), 0), max(round(y), 0)
        place = self.pixels[top : top + mask.shape[0], left : left + mask.shape[1]]
        opacity = mask[: place.shape[0], : place.shape[1], None]
        place[:] = np.rint(place * (1 - opacity) + opacity * np.array(color))
        return mask.shape[1]

    def legend(self, x: float, y: float, names: Iterable[tuple[str, Color]], *, align: float = 0.0) -> None:
        """Write names on one line, each after a square of its colour; arguments as for :meth:`text`."""
        entries = list(names)
        width = sum(text_mask(name).shape[1] + CAPITAL + 17 for name, _ in entries) - 12
        left = round(x - align * width)
        for name, color in entries:
            self.fill(left, round(y), left + CAPITAL, round(y) + CAPITAL, LINE)
            self.fill(left + 1, round(y) + 1, left + CAPITAL - 1, round(y) + CAPITAL - 1, color)
            left += CAPITAL + 5
            left += self.text(left, y, name) + 12


class Panel:
    """Axes on a canvas; their content is clipped to them.

    Args:
        canvas: the canvas.
        box: left, top, right and bottom end, pixels.
        x: values at the left and the right end.
        y: values at the bottom and the top.
        title: text above the axes.
    """

    def __init__(
        self, canvas: Canvas, box: tuple[int, int, int, int], x: Ends, y: Ends, title: str = ""
    ) -> None:
        """Write the title."""
        self.canvas, self.box, self._x, self._y = canvas, box, x, y
        canvas.text(box[0], box[1] - TITLE, title)

    def x(self, values: ArrayLike) -> Integers:
        """Return the positions of values, pixels from the left of the canvas."""
        return _between(values, self._x, self.box[0], self.box[2])

    def y(self, values: ArrayLike) -> Integers:
        """Return the positions of values, pixels from the top of the canvas."""
        return _between(values, self._y, self.box[3], self.box[1])

    # ------------------------------------------------------------ axes

    def axes(self, x_ticks: Iterable[float] = (), y_ticks: Iterable[float] = (), *, unit: str = "") -> None:
        """Draw grid, axes and tick labels; ``unit`` is a suffix of the labels of the x axis."""
        left, top, right, bottom = self.box
        for value in x_ticks:
            at = int(self.x(value))
            self.canvas.fill(at, top, at + 1, bottom + 4, FAINT)
            self.canvas.text(at, bottom + 6, f"{value:,.10g}{unit}", align=0.5)
        for value in y_ticks:
            at = int(self.y(value))
            self.canvas.fill(left - 3, at, right, at + 1, FAINT)
            self.canvas.text(left - 6, at - CAPITAL // 2, f"{value:,.10g}", align=1.0)
        self.canvas.fill(left, top, left + 1, bottom + 1, BLACK)
        self.canvas.fill(left, bottom, right, bottom + 1, BLACK)

    def below(self, text: str) -> None:
        """Write the label of the x axis."""
        self.canvas.text((self.box[0] + self.box[2]) / 2, self.box[3] + 22, text, align=0.5)

    def name_rows(self, names: Iterable[tuple[float, str]]) -> None:
        """Write names to the left of rows, each given with the middle of its row."""
        for middle, name in names:
            self.canvas.text(self.box[0] - 5, int(self.y(middle)) - CAPITAL // 2, name, align=1.0)

    def legend(self, names: Iterable[tuple[str, Color]]) -> None:
        """Write a legend on the line of the title, at its right end."""
        self.canvas.legend(self.box[2], self.box[1] - TITLE, names, align=1.0)

    # ------------------------------------------------------------ contents

    def bars(
        self,
        left: ArrayLike,
        right: ArrayLike,
        middle: ArrayLike,
        height: float,
        color: Color,
        *,
        hollow: bool = False,
    ) -> None:
        """Draw horizontal bars; bars of positive length are at least a pixel long.

        Args:
            left: left ends, (m,) or one number, like the next two.
            right: right ends.
            middle: the middles of their rows.
            height: height of each, in rows.
            color: colour of each.
            hollow: draw only their top, bottom and right sides.
        """
        a, b, middles = (np.atleast_1d(np.asarray(v, np.float64)) for v in (left, right, middle))
        keep = b > a
        x0, x1 = self.x(a[keep]), self.x(b[keep])
        y0, y1 = np.sort((self.y(middles[keep] - height / 2), self.y(middles[keep] + height / 2)), axis=0)
        ends = (x0, y0, np.maximum(x1, x0 + 1), np.maximum(y1, y0 + 1))
        for x, y, right_end, bottom in zip(*(end.tolist() for end in ends), strict=True):
            if not hollow:
                self.canvas.fill(x, y, right_end, bottom, color)
                continue
            self.canvas.fill(x, y, right_end, y + 1, color)
            self.canvas.fill(x, bottom - 1, right_end, bottom, color)
            self.canvas.fill(right_end - 1, y, right_end, bottom, color)

    def steps(self, time: Floats, values: Floats, color: Color, *, area: Color | None = None) -> None:
        """Draw a step function that keeps each value until the next time, two pixels thick.

        Args:
            time: float64 (s,), ascending.
            values: float64 (s,).
            color: colour of the line.
            area: colour of the area below it, None = no area.
        """
        x, y, above, bottom = self.x(time), self.y(values), max(self.box[1] - 1, 0), self.box[3]
        x = np.minimum(x, self.box[2] - 1)
        columns = np.arange(x[0], x[-1] + 1)
        # In a column, the line covers the value at its left end and all values that start in it.
        first = np.searchsorted(x, columns)
        before = y[np.maximum(first - 1, 0)]
        own = np.diff(np.append(first, len(x))) > 0
        at = np.minimum(first, len(x) - 1)
        top = np.where(own, np.minimum(np.minimum.reduceat(y, at), before), before)
        low = np.where(own, np.maximum(np.maximum.reduceat(y, at), before), before)
        place = self.canvas.pixels[above:bottom, columns[0] : columns[-1] + 1]
        rows = np.arange(above, bottom)[:, None]
        if area is not None:
            place[rows > low] = area
        place[(rows >= top - 1) & (rows <= low)] = color

    def limit(self, *, x: float | None = None, y: float | None = None) -> None:
        """Draw a dashed line at a value of one axis."""
        left, top, right, bottom = self.box
        if x is not None:
            at = int(self.x(x))
            for k in range(top, bottom, 6):
                self.canvas.fill(at, k, at + 1, min(k + 4, bottom), BLACK)
        if y is not None:
            at = int(self.y(y))
            for k in range(left, right, 6):
                self.canvas.fill(k, at, min(k + 4, right), at + 1, BLACK)


def _between(values: ArrayLike, ends: Ends, low: int, high: int) -> Any:
    """Map values linearly from ``ends`` to whole numbers from ``low`` to ``high``, clipped."""
    share = (np.asarray(values, np.float64) - ends[0]) / (ends[1] - ends[0])
    return np.rint(low + np.clip(share, 0.0, 1.0) * (high - low)).astype(np.int64)
