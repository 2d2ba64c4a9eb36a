"""The request table: immutable, validated columns of a run's requests, sorted by arrival."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import WorkloadError, shown
from kvgym.utils.checks import as_array
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.layout import UNKNOWN, WORKLOAD, words

_ABOUT = ("notes", "classes")  # fields that are not columns

_OPTIONAL = {
    "predicted_output_len": ("predicted_len", UNKNOWN),
    "predicted_low": ("predicted_low", UNKNOWN),
    "predicted_high": ("predicted_high", UNKNOWN),
    "class_id": ("class_id", UNKNOWN),
    "priority": ("priority", 0),
    "ttft_slo": ("ttft_slo", np.inf),
    "tbt_slo": ("tbt_slo", np.inf),
}

_ROWS = 4096  # rows written at a time


@dataclass(frozen=True, eq=False)
class RequestTable:
    """Requests of one run; row i is request i, rows are sorted by arrival time (stable).

    The constructor sorts and validates as :meth:`from_columns` does, and raises the same errors.

    Attributes:
        arrival_time: float64 (n,), seconds, ≥ 0, non-decreasing.
        prompt_len: int64 (n,), tokens, ≥ 1.
        output_len: int64 (n,), tokens, ≥ 1; the true length, hidden from policies.
        predicted_output_len: int64 (n,), tokens, ≥ 1, or None without predictions.
        predicted_low: int64 (n,) or None, lower end of a predicted interval.
        predicted_high: int64 (n,) or None, upper end of a predicted interval.
        class_id: int64 (n,), ≥ 0, or None.
        priority: int64 (n,) or None, larger is more important.
        ttft_slo: float64 (n,), seconds, or None.
        tbt_slo: float64 (n,), seconds, or None.
        notes: what was clipped or dropped, one sentence each; shown to the user.
        classes: rates and mean lengths of the classes, if the workload has classes; entry k describes class_id k.
    """

    arrival_time: NDArray[np.float64]
    prompt_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    predicted_output_len: NDArray[np.int64] | None = None
    predicted_low: NDArray[np.int64] | None = None
    predicted_high: NDArray[np.int64] | None = None
    class_id: NDArray[np.int64] | None = None
    priority: NDArray[np.int64] | None = None
    ttft_slo: NDArray[np.float64] | None = None
    tbt_slo: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = field(default=())
    classes: tuple[ClassStatistics, ...] = field(default=())

    def __post_init__(self) -> None:
        """Sort and validate the columns.

        Raises:
            WorkloadError: as for :meth:`from_columns`.
        """
        vars(self).update(vars(RequestTable._of(self.columns(), {}, self.notes, self.classes)))

    @classmethod
    def from_columns(
        cls,
        *,
        notes: tuple[str, ...] = (),
        classes: tuple[ClassStatistics, ...] = (),
        **columns: ArrayLike | None,
    ) -> RequestTable:
        """Build a table from columns: sorts by arrival (stable), converts and validates.

        Args:
            notes: notes of the table.
            classes: classes of the table.
            **columns: the attributes above by name; ``arrival_time``, ``prompt_len`` and ``output_len``
                are required.

        Raises:
            WorkloadError: missing, unknown, ragged or out-of-range columns, with the first bad row.
        """
        return cls._of(columns, {}, notes, classes)

    @classmethod
    def _of(
        cls,
        columns: Mapping[str, ArrayLike | None],
        checked: Mapping[str, NDArray[Any]],
        notes: tuple[str, ...],
        classes: tuple[ClassStatistics, ...],
    ) -> RequestTable:
        """Build a table from new columns (None drops one) and the remaining ones of another table."""
        unknown = sorted(set(columns) - set(_COLUMNS))
        if unknown:
            raise WorkloadError(f"unknown request column {unknown}; valid: {', '.join(_COLUMNS)}")
        merged = {**checked, **columns}
        missing = [n for n in _COLUMNS[:3] if merged.get(n) is None]
        if missing:
            raise WorkloadError(f"request columns missing: {', '.join(missing)}")
        arrays: dict[str, NDArray[Any]] = {}
        n = as_array(merged["arrival_time"], "column arrival_time", WorkloadError).size
        for name in _COLUMNS:
            if merged.get(name) is None:
                continue
            raw = as_array(merged[name], f"column {name}", WorkloadError)
            if raw.shape != (n,):
                raise WorkloadError(f"column {name} has shape {raw.shape}; expected ({n},) like arrival_time")
            arrays[name] = _convert(name, raw) if name in columns else raw
        times = arrays["arrival_time"]
        if (times[1:] < times[:-1]).any():
            order = np.argsort(times, kind="stable")
            arrays = {name: array[order] for name, array in arrays.items()}
        for array in arrays.values():
            array.setflags(write=False)
        low, high = arrays.get("predicted_low"), arrays.get("predicted_high")
        if (low is None) != (high is None) or (low is not None and high is not None and np.any(low > high)):
            raise WorkloadError("predicted_low and predicted_high must come together, low ≤ high")
        class_id = arrays.get("class_id")
        if not isinstance(notes, list | tuple) or not all(isinstance(note, str) for note in notes):
            raise WorkloadError(f"notes = {shown(notes)}; expected strings")
        if not isinstance(classes, list | tuple) or not all(isinstance(c, ClassStatistics) for c in classes):
            raise WorkloadError(
                f"classes = {shown(classes)}; expected an entry of ClassStatistics for each class"
            )
        if classes and class_id is not None and len(class_id) and int(class_id.max()) >= len(classes):
            raise WorkloadError(
                f"class_id {int(class_id.max())} has no entry in classes, which describes {len(classes)}"
            )
        table = object.__new__(cls)  # the constructor would check everything again
        nothing = dict.fromkeys(_COLUMNS)
        vars(table).update({**nothing, **arrays, "notes": tuple(notes), "classes": tuple(classes)})
        return table

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_time)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns that are present, by name."""
        values = {name: getattr(self, name) for name in _COLUMNS}
        return {name: value for name, value in values.items() if value is not None}

    def replace(
        self,
        *,
        notes: tuple[str, ...] | None = None,
        classes: tuple[ClassStatistics, ...] | None = None,
        **columns: ArrayLike | None,
    ) -> RequestTable:
        """Return a table with some columns replaced (None removes an optional one); new columns are validated."""
        return RequestTable._of(
            columns,
            self.columns(),
            self.notes if notes is None else notes,
            self.classes if classes is None else classes,
        )

    def select(self, keep: NDArray[np.bool_] | slice, *notes: str) -> RequestTable:
        """Return the rows under ``keep`` (boolean mask or slice), with ``notes`` appended."""
        return RequestTable.from_columns(
            notes=(*self.notes, *notes),
            classes=self.classes,
            **{name: column[keep] for name, column in self.columns().items()},
        )

    def faster(self, factor: float) -> RequestTable:
        """Return the same requests arriving ``factor`` times as fast; the rates of classes are scaled too."""
        classes = tuple(c.at_rate(factor, speed=factor) for c in self.classes)
        return self.replace(arrival_time=self.arrival_time / factor, classes=classes)

    def to_records(self) -> np.ndarray:
        """Return the table in the simulator's layout, dtype :data:`WORKLOAD`, shape (n,)."""
        table, first = np.empty(len(self), WORKLOAD), np.zeros(1, WORKLOAD)
        columns = {name: getattr(self, name) for name in ("arrival_time", "prompt_len", "output_len")}
        for name, (target, default) in _OPTIONAL.items():
            value = getattr(self, name)
            if value is None:
                first[target] = default
            else:
                columns[target] = value
        # All columns of a block of rows while it is in the processor's cache.
        for start in range(0, len(self), _ROWS):
            rows = table[start : start + _ROWS]
            words(rows)[:] = words(first)
            for target, column in columns.items():
                rows[target] = column[start : start + _ROWS]
        return table


_COLUMNS = tuple(f.name for f in fields(RequestTable) if f.name not in _ABOUT)


def _convert(name: str, raw: NDArray[Any]) -> NDArray[Any]:
    """Convert one column to its dtype and check its range."""
    times = name in ("arrival_time", "ttft_slo", "tbt_slo")
    least = -(2**31) if name == "priority" else (0 if name == "class_id" else 1)
    if not times and raw.dtype == np.int64 and raw.size and raw.min() >= least and raw.max() < 2**31:
        return raw.copy()  # valid without a check of every number
    numbers = _numbers(raw)
    if times:
        bad = np.isnan(numbers) | (numbers < 0) | (np.isinf(numbers) & (name == "arrival_time"))
        expected = "seconds ≥ 0"
    else:
        bad = ~((least <= numbers) & (numbers < 2**31) & (numbers == np.floor(numbers)))
        expected = f"a whole number {'from -2^31' if name == 'priority' else f'≥ {least}'} below 2^31"
    if bad.any():
        row = int(np.argmax(bad))
        raise WorkloadError(f"column {name}, row {row}: {shown(raw[row])}; expected {expected}")
    return numbers if times else numbers.astype(np.int64)


def _numbers(raw: NDArray[Any]) -> NDArray[np.float64]:
    """Return a column as float64; NaN for anything but a number (strings, booleans and times are not)."""
    if raw.dtype.kind in "iuf":
        return raw.astype(np.float64)
    numbers = np.full(len(raw), np.nan)
    if raw.dtype.kind == "O":
        for row, value in enumerate(raw.tolist()):
            if not isinstance(value, str | bytes | bool | np.bool_):
                with contextlib.suppress(TypeError, ValueError, OverflowError):
                    numbers[row] = float(value)
    return numbers
