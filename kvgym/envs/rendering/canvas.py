"""Drawing with Pillow: text, bars, step functions and axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from kvgym.envs.rendering.scene import Floats
from kvgym.report.colours import GRID, INK

TEXT, LARGE = 12, 18
"""Sizes of the font for texts and for headings, pixels."""

TITLE = 13
"""Pixels from the middle of a title to the top of its axes."""

SQUARE = 9
"""Width and height of the squares of a legend, pixels."""

Ends = tuple[float, float]
Box = tuple[int, int, int, int]
"""Left, top, right and bottom end, pixels; right and bottom are exclusive."""


def faded(color: str, strength: float) -> str:
    """Return a colour mixed with white; ``strength`` is its share."""
    red, green, blue = (round(255 - strength * (255 - part)) for part in ImageColor.getrgb(color)[:3])
    return f"#{red:02x}{green:02x}{blue:02x}"


FAINT = faded(GRID, 0.3)


@lru_cache(maxsize=8)
def _font(size: int) -> Any:
    """Return Pillow's own font in a size in pixels."""
    return ImageFont.load_default(size)


@lru_cache(maxsize=4096)
def _letters(text: str, size: int) -> Image.Image:
    """Return the opacity of a text, in twice the height of the font.

    Texts of a film recur, so they are kept. Opacity has few levels, so that an animation needs few colours.
    """
    mask = Image.new("L", (max(math.ceil(_font(size).getlength(text)), 1), 2 * size))
    ImageDraw.Draw(mask).text((0, size), text, fill=255, font=_font(size), anchor="lm")
    return mask.point([round(5 * level / 255) * 51 for level in range(256)])


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
    """A white image to draw on; coordinates are pixels from the left and from the top.

    Attributes:
        image: the image.
    """

    def __init__(self, width: int, height: int) -> None:
        """Create a white image."""
        self.image = Image.new("RGB", (width, height), "white")
        self.draw = ImageDraw.Draw(self.image)

    def pixels(self) -> NDArray[np.uint8]:
        """Return a copy of the image, uint8 (height, width, 3)."""
        return np.array(self.image)

    def fill(self, left: int, top: int, right: int, bottom: int, color: str) -> None:
        """Fill a rectangle; ``right`` and ``bottom`` are exclusive."""
        if left < right and top < bottom:
            self.draw.rectangle((left, top, right - 1, bottom - 1), fill=color)

    def text(self, x: float, y: float, text: str, *, size: int = TEXT, align: float = 0.0) -> int:
        """Write a line of text, clipped to the image.

        Args:
            x: left end of the text with ``align`` 0, its middle with 0.5, its right end with 1.
            y: its middle.
            text: the line.
            size: size of the font, pixels.
            align: see ``x``.

        Returns:
            The width of the text, pixels.
        """
        mask = _letters(text, size)
        self.image.paste(INK, (round(x - align * mask.width), round(y) - size), mask)
        return mask.width

    def legend(self, x: float, y: float, names: Iterable[tuple[str, str]], *, right: bool = False) -> None:
        """Write names on one line, each after a square of its colour.

        Args:
            x: left end of the line, or its right end.
            y: its middle.
            names: names and colours.
            right: whether ``x`` is the right end.
        """
        entries, left, top = list(names), round(x), round(y) - SQUARE // 2
        if right:
            left -= sum(SQUARE + 17 + _letters(name, TEXT).width for name, _ in entries) - 12
        for name, color in entries:
            self.draw.rectangle((left, top, left + SQUARE - 1, top + SQUARE - 1), fill=color, outline=GRID)
            left += SQUARE + 17 + self.text(left + SQUARE + 5, y, name)


class Panel:
    """Axes on a canvas; their content is clipped to them.

    Args:
        canvas: the canvas.
        box: the area of the axes.
        x: values at the left and the right end.
        y: values at the bottom and the top.
        title: text above the axes.
    """

    def __init__(self, canvas: Canvas, box: Box, x: Ends, y: Ends, title: str = "") -> None:
        """Write the title."""
        self.canvas, self.box, self.ends = canvas, box, (x, y)
        canvas.text(box[0], box[1] - TITLE, title)

    def x(self, values: ArrayLike) -> Any:
        """Return the positions of values, pixels from the left of the canvas."""
        return _between(values, self.ends[0], self.box[0], self.box[2])

    def y(self, values: ArrayLike) -> Any:
        """Return the positions of values, pixels from the top of the canvas."""
        return _between(values, self.ends[1], self.box[3], self.box[1])

    # ------------------------------------------------------------ axes

    def axes(self, x_ticks: Iterable[float] = (), y_ticks: Iterable[float] = (), *, unit: str = "") -> None:
        """Draw grid, axes and tick labels; ``unit`` is a suffix of the labels of the x axis."""
        left, top, right, bottom = self.box
        for value in x_ticks:
            at = int(self.x(value))
            self.canvas.fill(at, top, at + 1, bottom + 4, FAINT)
            self.canvas.text(at, bottom + 11, f"{value:,.10g}{unit}", align=0.5)
        for value in y_ticks:
            at = int(self.y(value))
            self.canvas.fill(left - 3, at, right, at + 1, FAINT)
            self.canvas.text(left - 6, at, f"{value:,.10g}", align=1.0)
        self.canvas.fill(left, top, left + 1, bottom + 1, INK)
        self.canvas.fill(left, bottom, right, bottom + 1, INK)

    def below(self, text: str) -> None:
        """Write the label of the x axis."""
        self.canvas.text((self.box[0] + self.box[2]) / 2, self.box[3] + 27, text, align=0.5)

    def note(self, text: str) -> None:
        """Write text on the line of the title, at its right end."""
        self.canvas.text(self.box[2], self.box[1] - TITLE, text, align=1.0)

    def legend(self, names: Iterable[tuple[str, str]]) -> None:
        """Write a legend on the line of the title, at its right end."""
        self.canvas.legend(self.box[2], self.box[1] - TITLE, names, right=True)

    def name_rows(self, names: Iterable[tuple[float, str]]) -> None:
        """Write names to the left of rows, each given with the middle of its row."""
        for middle, name in names:
            self.canvas.text(self.box[0] - 5, int(self.y(middle)), name, align=1.0)

    # ------------------------------------------------------------ contents

    def bars(
        self,
        left: ArrayLike,
        right: ArrayLike,
        middle: ArrayLike,
        height: float,
        color: str,
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
            hollow: draw only their outlines.
        """
        a, b, middles = (np.atleast_1d(np.asarray(v, np.float64)) for v in (left, right, middle))
        keep = b > a
        x0, x1 = self.x(a[keep]), self.x(b[keep]) - 1
        y0, y1 = np.sort((self.y(middles[keep] - height / 2), self.y(middles[keep] + height / 2)), axis=0)
        corners = np.column_stack((x0, y0, np.maximum(x1, x0), np.maximum(y1 - 1, y0)))
        style: dict[str, Any] = {"outline" if hollow else "fill": color}
        for corner in corners.tolist():
            self.canvas.draw.rectangle(corner, **style)

    def steps(
        self, time: Floats, values: Floats, color: str, *, area: str | None = None, thick: int = 2
    ) -> None:
        """Draw a step function that keeps each value until the next time.

        Args:
            time: float64 (s,), ascending.
            values: float64 (s,).
            color: colour of the line.
            area: colour of the area below it, None = no area.
            thick: pixels.
        """
        x, y, bottom = np.repeat(self.x(time), 2)[1:], np.repeat(self.y(values), 2)[:-1], self.box[3]
        points = np.column_stack((x, y)).ravel().tolist()
        if area is not None:
            self.canvas.draw.polygon([int(x[0]), bottom, *points, int(x[-1]), bottom], fill=area)
        self.canvas.draw.line(points, fill=color, width=thick)

    def limit(self, *, x: float | None = None, y: float | None = None) -> None:
        """Draw a dashed line at a value of one axis."""
        left, top, right, bottom = self.box
        if x is not None:
            at = int(self.x(x))
            for k in range(top, bottom, 6):
                self.canvas.fill(at, k, at + 1, min(k + 4, bottom), INK)
        if y is not None:
            at = int(self.y(y))
            for k in range(left, right, 6):
                self.canvas.fill(k, at, min(k + 4, right), at + 1, INK)


def _between(values: ArrayLike, ends: Ends, low: int, high: int) -> NDArray[np.int64]:
    """Map values linearly from ``ends`` to whole numbers from ``low`` to ``high``, clipped."""
    share = (np.asarray(values, np.float64) - ends[0]) / (ends[1] - ends[0])
    return np.rint(low + np.clip(share, 0.0, 1.0) * (high - low)).astype(np.int64)
