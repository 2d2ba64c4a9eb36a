"""The request table: one run's requests, frozen, sorted by arrival, validated once."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import WorkloadError
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.layout import UNKNOWN, WORKLOAD

_ABOUT = ("notes", "classes")  # what the table says of itself; everything else is a column

_OPTIONAL = {
    "predicted_output_len": ("predicted_len", UNKNOWN),
    "predicted_low": ("predicted_low", UNKNOWN),
    "predicted_high": ("predicted_high", UNKNOWN),
    "class_id": ("class_id", UNKNOWN),
    "priority": ("priority", 0),
    "ttft_slo": ("ttft_slo", np.inf),
    "tbt_slo": ("tbt_slo", np.inf),
}


@dataclass(frozen=True, eq=False)
class RequestTable:
    """Requests of one run; row i is request i, rows are sorted by arrival time (stable).

    Use :meth:`from_columns`, which sorts and validates.

    Attributes:
        arrival_time: float64 (n,), seconds, ≥ 0, non-decreasing.
        prompt_len: int64 (n,), tokens, ≥ 1.
        output_len: int64 (n,), tokens, ≥ 1; the true length, hidden from policies.
        predicted_output_len: int64 (n,), tokens, ≥ 1, or None where nothing is predicted.
        predicted_low: int64 (n,) or None, lower end of a predicted interval.
        predicted_high: int64 (n,) or None, upper end of a predicted interval.
        class_id: int64 (n,), ≥ 0, or None.
        priority: int64 (n,) or None, larger is more important.
        ttft_slo: float64 (n,), seconds, or None.
        tbt_slo: float64 (n,), seconds, or None.
        notes: what was clipped or dropped on the way, one sentence each; shown to the user.
        classes: rates and mean lengths of the classes, where the workload has classes; entry k describes
            class_id k.
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
            notes: carried over to the table.
            classes: carried over to the table.
            **columns: the attributes above by name; ``arrival_time``, ``prompt_len`` and ``output_len``
                are required.

        Raises:
            WorkloadError: missing, unknown, ragged or out-of-range columns, with the first bad row.
        """
        names = [f.name for f in fields(cls) if f.name not in _ABOUT]
        unknown = sorted(set(columns) - set(names))
        if unknown:
            raise WorkloadError(f"unknown request column {unknown}; valid: {', '.join(names)}")
        missing = [n for n in names[:3] if columns.get(n) is None]
        if missing:
            raise WorkloadError(f"request columns missing: {', '.join(missing)}")
        arrays: dict[str, NDArray[Any]] = {}
        n = len(np.asarray(columns["arrival_time"]))
        for name in names:
            if columns.get(name) is None:
                continue
            raw = np.asarray(columns[name])
            if raw.shape != (n,):
                raise WorkloadError(f"column {name} has shape {raw.shape}; expected ({n},) like arrival_time")
            arrays[name] = _convert(name, raw)
        order = np.argsort(arrays["arrival_time"], kind="stable")
        for name, array in arrays.items():
            arrays[name] = array[order]
            arrays[name].setflags(write=False)
        low, high = arrays.get("predicted_low"), arrays.get("predicted_high")
        if (low is None) != (high is None) or (low is not None and high is not None and np.any(low > high)):
            raise WorkloadError("predicted_low and predicted_high must come together, low ≤ high")
        class_id = arrays.get("class_id")
        if classes and class_id is not None and len(class_id) and int(class_id.max()) >= len(classes):
            raise WorkloadError(
                f"class_id {int(class_id.max())} has no entry in classes, which describes {len(classes)}"
            )
        return cls(**arrays, notes=tuple(notes), classes=tuple(classes))

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_time)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns that are present, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _ABOUT}
        return {name: value for name, value in values.items() if value is not None}

    def replace(
        self,
        *,
        notes: tuple[str, ...] | None = None,
        classes: tuple[ClassStatistics, ...] | None = None,
        **columns: ArrayLike | None,
    ) -> RequestTable:
        """Return a table with some columns replaced (None removes an optional one) and revalidated."""
        return RequestTable.from_columns(
            notes=self.notes if notes is None else notes,
            classes=self.classes if classes is None else classes,
            **{**self.columns(), **columns},
        )

    def select(self, keep: NDArray[np.bool_] | slice, *notes: str) -> RequestTable:
        """Return the rows under ``keep`` (boolean mask or slice), with ``notes`` appended."""
        return RequestTable.from_columns(
            notes=(*self.notes, *notes),
            classes=self.classes,
            **{name: column[keep] for name, column in self.columns().items()},
        )

    def faster(self, factor: float) -> RequestTable:
        """Return the same requests arriving ``factor`` times as fast; the rates of the classes follow."""
        classes = tuple(c.at_rate(factor, speed=factor) for c in self.classes)
        return self.replace(arrival_time=self.arrival_time / factor, classes=classes)

    def to_records(self) -> np.ndarray:
        """Return the table in the simulator's layout, dtype :data:`WORKLOAD`, shape (n,)."""
        table = np.zeros(len(self), WORKLOAD)
        for name in ("arrival_time", "prompt_len", "output_len"):
            table[name] = getattr(self, name)
        for name, (target, default) in _OPTIONAL.items():
            value = getattr(self, name)
            table[target] = default if value is None else value
        return table


def _convert(name: str, raw: NDArray[Any]) -> NDArray[Any]:
    """Convert one column to its dtype and check its range."""
    if name in ("arrival_time", "ttft_slo", "tbt_slo"):
        try:
            times = raw.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise WorkloadError(f"column {name} must hold numbers of seconds: {error}") from None
        finite = np.isfinite(times) if name == "arrival_time" else ~np.isnan(times)
        bad = ~finite | (times < 0)
        if bad.any():
            row = int(np.argmax(bad))
            raise WorkloadError(f"column {name}, row {row}: {raw[row]!r}; expected seconds ≥ 0")
        return times
    try:
        numbers = raw.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"column {name} must hold whole numbers: {error}") from None
    least = -np.inf if name == "priority" else (0 if name == "class_id" else 1)
    bad = ~np.isfinite(numbers) | (numbers != np.floor(numbers)) | (numbers < least) | (numbers > 2**31 - 1)
    if bad.any():
        row = int(np.argmax(bad))
        expected = "a whole number" if name == "priority" else f"a whole number ≥ {least:g}"
        raise WorkloadError(f"column {name}, row {row}: {raw[row]!r}; expected {expected} below 2^31")
    return numbers.astype(np.int64)
