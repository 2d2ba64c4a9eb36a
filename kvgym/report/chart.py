"""Figures that record which artists belong to which policy, and the numbers behind them.

A page hides the artists of policies that a reader deselects, and shows the numbers under the pointer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

Kind = Literal["steps", "points", "bars", "cells"]
GID = "policy-"
"""Prefix of the group ids of artists; the index of the policy follows, see :meth:`Chart.assign`."""
DIGITS = 6
"""Significant digits of the numbers in a page, far more than a figure can show."""


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


@dataclass(frozen=True)
class Series:
    """Numbers in a panel.

    Attributes:
        name: name for readers.
        policy: policy, None for none.
        kind: ``"steps"`` (y is valid from each x on), ``"points"``, ``"bars"`` (of length x at the heights y) or
            ``"cells"`` (z at x, y).
        values: numbers by name, all of one length: ``x``, ``y``, ``z``, and the ends of their intervals ``x_low``,
            ``x_high``, ``y_low``, ``y_high``, ``z_low``, ``z_high``; NaN for none.
        text: a remark for each number, or none.
    """

    name: str
    policy: str | None
    kind: Kind
    values: Mapping[str, Sequence[float]]
    text: tuple[str, ...] = ()


@dataclass
class Panel:
    """Axes, their quantities and their series."""

    axes: Axes
    x: Quantity
    y: Quantity
    z: Quantity | None = None
    title: str = ""
    series: list[Series] = field(default_factory=list)


class Chart(Figure):
    """A figure for a page.

    Args:
        policies: all policies of the page, in order, also those not in this figure.
        kwargs: arguments of :class:`matplotlib.figure.Figure`.
    """

    def __init__(self, policies: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.policies = tuple(policies)
        self.panels: dict[Axes, Panel] = {}
        self._artists = 0

    def panel(self, axes: Axes, x: Quantity, y: Quantity, z: Quantity | None = None, title: str = "") -> None:
        """Declare the quantities of axes, before :meth:`record`.

        Args:
            axes: axes of this figure.
            x: quantity of the horizontal axis.
            y: quantity of the vertical axis.
            z: quantity shown by colour.
            title: title of the panel.
        """
        self.panels[axes] = Panel(axes, x, y, z, title)

    def assign(self, policy: str, artists: Iterable[Artist]) -> None:
        """Assign artists to a policy: a page hides them with it."""
        for artist in artists:
            artist.set_gid(f"{GID}{self.policies.index(policy)}.{self._artists}")
            self._artists += 1

    def record(
        self,
        axes: Axes,
        policy: str | None,
        kind: Kind,
        values: Mapping[str, ArrayLike],
        *,
        artists: Iterable[Artist] = (),
        name: str = "",
        text: Sequence[str] = (),
    ) -> None:
        """Record numbers shown in axes, and assign their artists to the policy.

        Args:
            axes: axes with a :meth:`panel`.
            policy: policy of the numbers; None = none, always shown.
            kind: see :class:`Series`.
            values: numbers by name, see :class:`Series`.
            artists: artists that draw them.
            name: name for readers; default: the policy.
            text: a remark for each number.
        """
        columns = {k: np.atleast_1d(np.asarray(v, dtype=np.float64)).tolist() for k, v in values.items()}
        series = Series(name or policy or "", policy, kind, columns, tuple(text))
        self.panels[axes].series.append(series)
        if policy is not None:
            self.assign(policy, artists)

    def data(self, width: float, height: float) -> list[dict[str, Any]]:
        """Return the contents of the panels, JSON-able; the figure must have been drawn.

        Args:
            width: width of the picture, in its own units.
            height: height of the picture.

        Returns:
            For each panel ``box`` (left, top, right and bottom of its axes in the picture's units), ``title``, the
            quantities ``x``, ``y`` and ``z`` (label, unit, names; for axes also ``low``, ``high`` and ``log``), and
            ``series`` (name, policy as its index or None, kind, text, values).
        """
        return [self._panel(p, width, height) for p in self.panels.values()]

    def _panel(self, panel: Panel, width: float, height: float) -> dict[str, Any]:
        box = panel.axes.get_position()
        edges = (box.x0 * width, (1 - box.y1) * height, box.x1 * width, (1 - box.y0) * height)
        scales = {"x": panel.axes.get_xscale(), "y": panel.axes.get_yscale()}
        limits = {"x": panel.axes.get_xlim(), "y": panel.axes.get_ylim()}
        found: dict[str, Any] = {"box": _short(edges), "title": panel.title}
        for name, quantity in (("x", panel.x), ("y", panel.y)):
            low, high = _short(limits[name])
            found[name] = quantity._asdict() | {"low": low, "high": high, "log": scales[name] == "log"}
        if panel.z is not None:
            found["z"] = panel.z._asdict()
        found["series"] = [
            {
                "name": s.name,
                "policy": None if s.policy is None else self.policies.index(s.policy),
                "kind": s.kind,
                "text": list(s.text),
                **{name: _short(values) for name, values in s.values.items()},
            }
            for s in panel.series
        ]
        return found


def _short(values: Iterable[float]) -> list[float | None]:
    """Return rounded numbers, None for those that JSON does not support."""
    return [_rounded(float(v)) for v in values]


def _rounded(value: float) -> float | None:
    if not np.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short
