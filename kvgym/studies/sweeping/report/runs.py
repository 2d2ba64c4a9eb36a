"""The runs of a sweep for its report: checked, by policy and point, with estimates over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.experiments.marks import MARKS
from kvgym.experiments.statistics import Estimate, mean_interval
from kvgym.policies.policy import clairvoyant_labels
from kvgym.report.chart import Quantity
from kvgym.report.names import field_name, field_unit, title
from kvgym.report.sections import mark_words
from kvgym.utils.frame import Frame

Value = float | str | None
"""A value of a swept field; None if the field does not apply to a run."""
Point = tuple[Value, ...]
"""A value for each swept field, in their order."""

NOTHING = "–"
DECADE = 10.0
AXIS_RULE = (
    "An axis is logarithmic for a swept field with at least three positive values, if they are spaced by equal ratios "
    "or lie unevenly over more than a decade, and for results that are positive and span more than a decade."
)


@dataclass(frozen=True)
class SweptField:
    """A field of the scenario, or a hyperparameter, that differs between runs.

    Attributes:
        name: name.
        numeric: whether the values are numbers, not categories.
        values: all values; numbers in ascending order, categories in order of appearance.
    """

    name: str
    numeric: bool
    values: tuple[Value, ...]

    @property
    def known(self) -> tuple[Any, ...]:
        """The values without None."""
        return tuple(v for v in self.values if v is not None)

    @property
    def log(self) -> bool:
        """Whether the axis of the field is logarithmic, see :data:`AXIS_RULE`."""
        return self.numeric and wants_log([float(v) for v in self.known])

    @property
    def title(self) -> str:
        """Name for readers, see :func:`~kvgym.report.names.field_name`."""
        return field_name(self.name)

    @property
    def quantity(self) -> Quantity:
        """The field as the quantity of an axis."""
        names = () if self.numeric else self.known
        return Quantity(title(self.title), field_unit(self.name), names)

    def label(self, value: Value) -> str:
        """Return ``name = value``."""
        return f"{self.title} = {written(value)}"


def wants_log(values: Sequence[float]) -> bool:
    """Whether the values of a swept field belong on a logarithmic axis, see :data:`AXIS_RULE`.

    Args:
        values: in ascending order.
    """
    if len(values) < 3 or values[0] <= 0:
        return False
    data = np.asarray(values)
    ratios, steps = data[1:] / data[:-1], np.diff(data)
    if np.allclose(steps, steps[0], rtol=0.05):
        return False
    return bool(np.allclose(ratios, ratios[0], rtol=0.05) or data[-1] / data[0] > DECADE)


def spans_decades(values: Sequence[float]) -> bool:
    """Whether metric values belong on a logarithmic axis: all finite ones positive, over more than a decade."""
    data = np.asarray(values, dtype=np.float64)
    data = data[np.isfinite(data)]
    return bool(len(data) and data.min() > 0 and data.max() / data.min() > DECADE)


def written(value: Value) -> str:
    """Return a value of a field as text."""
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else f"{value:,.10g}"


class SweepRuns:
    """The runs of a sweep.

    Args:
        frame: a row per run: a column for each swept field (numbers, strings or booleans),
            ``policy``, ``seed``, ``error`` ("" if fine) and one per metric.
        fields: names of the swept fields.

    Attributes:
        fields: the swept fields.
        policies: labels, in the order of their first run.
        points: in the order of the fields' values.
        seeds: in ascending order.
        clairvoyant: labels of clairvoyant policies, which are excluded from fronts.

    Raises:
        ConfigError: columns are missing or have another type, a run appears twice, or there are no runs.
    """

    def __init__(self, frame: Frame, fields: Sequence[str]) -> None:
        absent = [name for name in (*fields, "policy", "seed", "error") if name not in frame.columns]
        if absent:
            raise ConfigError(
                f"the runs of the sweep lack {', '.join(absent)}; columns are {', '.join(frame.columns)}"
            )
        if not len(frame):
            raise ConfigError("the sweep has no runs; a report needs at least one")
        if not fields:
            raise ConfigError("the sweep has no fields; name the swept columns")
        columns = {name: _values(name, frame[name]) for name in fields}
        policies = [row["policy"] for row in frame.rows()]
        foreign = _without_foreign(columns, policies)
        self.fields = tuple(_field(name, values) for name, values in columns.items())
        self._rows: dict[tuple[str, Point], dict[int, dict[str, Any]]] = {}
        keys = zip(*columns.values(), strict=True)
        for point, row, repeated in zip(keys, frame.rows(), foreign, strict=True):
            of_seed = self._rows.setdefault((row["policy"], point), {})
            if row["seed"] in of_seed:
                if repeated:  # the same run at another value of another policy's hyperparameter
                    continue
                where = ", ".join(map(SweptField.label, self.fields, point))
                raise ConfigError(f"policy {row['policy']}, {where}, seed {row['seed']} appears twice")
            of_seed[row["seed"]] = row
        self.policies = tuple(dict.fromkeys(policy for policy, _ in self._rows))
        self.points = tuple(sorted({point for _, point in self._rows}, key=self._order))
        self.seeds = tuple(sorted({seed for rows in self._rows.values() for seed in rows}))
        self.clairvoyant = clairvoyant_labels(self.policies)
        self._known: dict[tuple[str, Point, str], Estimate] = {}

    def star(self, policy: str) -> str:
        """Return the suffix of a policy's label: a star if it is clairvoyant."""
        return " *" if policy in self.clairvoyant else ""

    def __len__(self) -> int:
        """Return the number of runs."""
        return sum(map(len, self._rows.values()))

    def _order(self, point: Point) -> tuple[int, ...]:
        return tuple(field.values.index(value) for field, value in zip(self.fields, point, strict=True))

    def has(self, policy: str, point: Point) -> bool:
        """Whether a policy was run at a point."""
        return (policy, point) in self._rows

    def own(self, policy: str, point: Point) -> Point | None:
        """Return a policy's point with the values of a point, without those that do not apply to it; None = not run."""
        for own in self.points:
            if self.has(policy, own) and all(a in (b, None) for a, b in zip(own, point, strict=True)):
                return own
        return None

    def applies(self, policy: str, point: Point) -> bool:
        """Whether a point has a value for just the fields that apply to a policy, as in any of its runs."""
        blank = [v is None for v in point]
        return any(blank == [v is None for v in own] for own in self.points if self.has(policy, own))

    def seeds_of(self, policy: str, point: Point) -> tuple[int, ...]:
        """Return the seeds on which a policy was run at a point."""
        return tuple(sorted(self._rows.get((policy, point), {})))

    def failed(self, policy: str, point: Point) -> bool:
        """Whether any run of a policy at a point failed."""
        return any(row["error"] for row in self._rows.get((policy, point), {}).values())

    def estimate(self, policy: str, point: Point, metric: str) -> Estimate:
        """Return the mean of a metric over seeds with its interval; NaN if a run is missing or failed."""
        key = (policy, point, metric)
        if key not in self._known:
            rows = self._rows.get((policy, point), {})
            values = [np.nan if rows[s]["error"] else rows[s][metric] for s in sorted(rows)]
            self._known[key] = mean_interval([np.nan if v is None else v for v in values])
        return self._known[key]

    def label(self, point: Point) -> str:
        """Return a point as text."""
        return ", ".join(map(SweptField.label, self.fields, point))

    def marks(self, policy: str, point: Point) -> tuple[str, ...]:
        """Return what a reader must know of a policy at a point, in a word or two each."""
        rows = self._rows.get((policy, point), {})
        names = next((row.get("marks") or "" for row in rows.values()), "")
        shown = (mark for mark in MARKS if mark.name in names.split())
        return mark_words(shown, policy in self.clairvoyant)

    def remark(self, policy: str, point: Point) -> str:
        """Return a point as text, with the number of seeds of a policy."""
        count = len(self.seeds_of(policy, point))
        seeds = "failed" if self.failed(policy, point) else f"{count} seed{'s' if count > 1 else ''}"
        return "; ".join((self.label(point), seeds, *self.marks(policy, point)))

    def failures(self) -> list[dict[str, Any]]:
        """Return a row for each point at which a policy failed: policy, point, seeds, total, and first message."""
        found = []
        for (policy, point), rows in self._rows.items():
            seeds = [s for s in sorted(rows) if rows[s]["error"]]
            if seeds:
                message = rows[seeds[0]]["error"]
                found.append(
                    {
                        "policy": policy,
                        "point": self.label(point),
                        "seeds": seeds,
                        "total": len(rows),
                        "message": message,
                    }
                )
        return found


def _values(name: str, column: NDArray[Any]) -> list[Value]:
    """Return a column's values: numbers unchanged, booleans as text, NaN as None."""
    values = column.tolist()
    kind = column.dtype.kind
    if kind in "iuf":
        return [None if v is None or v != v else (int(v) if float(v).is_integer() else v) for v in values]
    if kind == "b":
        return [None if v is None else str(v).lower() for v in values]
    if kind in "OU":
        return [None if v is None else str(v) for v in values]
    raise ConfigError(f"swept field {name} holds {column.dtype}; expected numbers, strings or booleans")


def _without_foreign(columns: dict[str, list[Value]], policies: Sequence[str]) -> list[bool]:
    """Remove hyperparameters of other policies from the values; return the rows from which one was removed."""
    bases = [policy.partition(":")[0] for policy in policies]
    changed = [False] * len(policies)
    for name, values in columns.items():
        owner = name.partition(".")[0]
        if "." not in name or owner not in bases:
            continue
        for row, base in enumerate(bases):
            if base != owner:
                values[row], changed[row] = None, True
    return changed


def _field(name: str, values: list[Value]) -> SweptField:
    known: list[Any] = [v for v in dict.fromkeys(values) if v is not None]
    numeric = bool(known) and not isinstance(known[0], str)
    none = [None] if None in values else []
    return SweptField(name, numeric, (*(sorted(known) if numeric else known), *none))
