"""Figures of a page as numbers: what its script draws, and shows under the pointer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvgym.report.colours import PALETTE

Kind = Literal["steps", "points", "bars", "cells", "boxes"]
DIGITS = 6
"""Significant digits of the numbers in a page, far more than a figure can show."""
DASHES = ("", "4 1.5", "1.2 1.2", "5 1.5 1.2 1.5")
"""Dash patterns in widths of the line."""
MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.5-3.5h7v7h-7z",
    "M0-4.5L4.5 4h-9z",
    "M0-5l5 5l-5 5l-5-5z",
)
"""SVG paths around 0, one per dash pattern, in the same order."""


class LineStyle(NamedTuple):
    """Style of a policy in all figures; the marker is for points, and for lines if colours do not suffice."""

    color: str
    dashes: str
    marker: str


def policy_styles(policies: Sequence[str]) -> dict[str, LineStyle]:
    """Return colour, dashes and marker of each policy by its index; all different up to 28 policies."""
    turns = [divmod(i, len(PALETTE)) for i in range(len(policies))]
    return {
        p: LineStyle(PALETTE[i], DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)])
        for p, (turn, i) in zip(policies, turns, strict=True)
    }


class Quantity(NamedTuple):
    """A quantity shown by an axis or a colour.

    Attributes:
        label: name.
        unit: unit, "" for none.
        names: names of the categories at 0, 1, 2, …; empty for numbers.
    """

    label: str
    unit: str = ""
    names: tuple[str, ...] = ()


class Axis(NamedTuple):
    """An axis or a colour scale.

    Attributes:
        quantity: what it shows.
        low: value at the left or lower end.
        high: value at the other end; below ``low``, the axis runs downwards.
        log: whether it is logarithmic.
        ticks: preferred ticks; else, or if they do not fit, round numbers.
        start: the part that is shown at first, if readers can choose the part.
    """

    quantity: Quantity
    low: float
    high: float
    log: bool = False
    ticks: tuple[float, ...] = ()
    start: tuple[float, float] | None = None

    @classmethod
    def over(cls, quantity: Quantity, values: Iterable[float], *, log: bool = False) -> Axis:
        """Return an axis on which all values lie: from 0, or around the positive ones if it is logarithmic."""
        known = [v for v in values if np.isfinite(v) and (v > 0 or not log)]
        if log and known:
            room = max(max(known) / min(known), 2.0) ** 0.06
            return cls(quantity, min(known) / room, max(known) * room, log=True)
        low, high = min([0.0, *known]), max([0.0, *known])
        return cls(quantity, 1.06 * low, 1.06 * high if high > low else 1.0)

    @classmethod
    def named(cls, quantity: Quantity) -> Axis:
        """Return an axis of categories."""
        return cls(quantity, -0.5, len(quantity.names) - 0.5)

    def data(self) -> dict[str, Any]:
        """Return the quantity and the scale, JSON-able."""
        ends = {"low": _rounded(self.low), "high": _rounded(self.high), "log": self.log}
        start = self.start and [_rounded(v) for v in self.start]
        return self.quantity._asdict() | ends | {"ticks": [_rounded(v) for v in self.ticks], "start": start}


@dataclass(frozen=True)
class Series:
    """Numbers in a panel.

    Attributes:
        name: name for readers.
        policy: policy, which determines its style and hides it; None for none.
        kind: ``"steps"`` (y is valid from each x on), ``"points"``, ``"bars"`` (of length x at the heights y),
            ``"cells"`` (z at x, y) or ``"boxes"`` (from x to ``x_end``, around y).
        values: numbers by name, all of one length: ``x``, ``y``, ``z``, and the ends of their intervals ``x_low``,
            ``x_high``, ``y_low``, ``y_high``, ``z_low``, ``z_high``; NaN for none.
        text: a remark for each number, or none.
        look: how it is drawn, JSON-able: ``color`` without a policy (named in a legend if it is filled), ``alpha``;
            ``width`` of lines, 0 for none, and for points ``line``, whether one joins them; ``size`` of markers, 0 for
            none, and whether they are a ``ring``; for steps ``fill``, the opacity of the area, and the heights ``base``
            on which steps stand as columns; for bars ``dots``, further values; for bars and cells ``notes``, a text for
            each; for boxes ``tall``, their height; and ``quiet``, for what is drawn without values under the pointer.
        also: further policies of a joint line, which is hidden if all of them are.
    """

    name: str
    policy: str | None
    kind: Kind
    values: Mapping[str, ArrayLike]
    text: Sequence[str] = ()
    look: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def data(self, policies: Sequence[str]) -> dict[str, Any]:
        """Return the numbers, JSON-able; None for those that JSON does not support."""
        columns = {name: np.atleast_1d(np.asarray(v, np.float64)) for name, v in self.values.items()}
        return {
            "name": self.name,
            "policy": None if self.policy is None else policies.index(self.policy),
            "kind": self.kind,
            "text": list(self.text),
            **({"also": [policies.index(p) for p in self.also]} if self.also else {}),
            **{name: [_rounded(v) for v in column.tolist()] for name, column in columns.items()},
            **self.look,
        }


@dataclass(frozen=True)
class Panel:
    """Axes and what is drawn in them.

    Attributes:
        x: horizontal axis.
        y: vertical axis.
        series: the numbers.
        height: height of the axes; the figure is 400 wide, and its text 9.5 high.
        title: heading.
        z: colour scale.
        rules: dashed lines: ``"x"`` or ``"y"``, the value there, and a text next to it.
        image: address of a picture that fills the axes.
    """

    x: Axis
    y: Axis
    series: Sequence[Series]
    height: float = 185.0
    title: str = ""
    z: Axis | None = None
    rules: Sequence[tuple[str, float, str]] = ()
    image: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure: panels in rows, from left to right."""

    panels: Sequence[Panel]
    columns: int = 1

    def data(self, policies: Sequence[str], label: str) -> dict[str, Any]:
        """Return what the page's script draws, JSON-able.

        Args:
            policies: all policies of the page, in order.
            label: description for screen readers.
        """
        panels = [
            {
                "title": p.title, "height": p.height, "x": p.x.data(), "y": p.y.data(),
                "z": p.z and p.z.data(), "rules": [(axis, _rounded(v), text) for axis, v, text in p.rules],
                "image": p.image, "series": [s.data(policies) for s in p.series],
            }
            for p in self.panels
        ]  # fmt: skip
        return {"label": label, "columns": self.columns, "panels": panels}


def _rounded(value: float) -> float | None:
    if not np.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short
