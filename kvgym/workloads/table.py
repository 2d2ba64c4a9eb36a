"""The request table: immutable, validated columns of a run's requests, sorted by arrival."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import WorkloadError, shown
from kvgym.utils.checks import as_array, real_number
from kvgym.workloads.classes import ClassStatistics, KnownRates
from kvgym.workloads.forecasts import Forecasts, check_forecasts
from kvgym.workloads.graphs import Parents, check_jobs, checked_parents
from kvgym.workloads.hashes import BlockHashes, Chains
from kvgym.workloads.layout import FEATURE_COLUMNS, UNKNOWN, WORKLOAD, words

_RAGGED = ("hashes", "forecasts", "parents")  # fields with several values in a row

_ABOUT = (*_RAGGED, "notes", "classes", "rates")  # fields that are not columns

GAP_KINDS = ("user", "tool")
"""What a turn of a session waits for, by its ``gap_kind``: a person, or a tool that the model has called."""

_OPTIONAL = {
    "predicted_output_len": ("predicted_len", UNKNOWN),
    "predicted_low": ("predicted_low", UNKNOWN),
    "predicted_high": ("predicted_high", UNKNOWN),
    "class_id": ("class_id", UNKNOWN),
    "priority": ("priority", 0),
    "ttft_slo": ("ttft_slo", np.inf),
    "tbt_slo": ("tbt_slo", np.inf),
    "e2e_slo": ("e2e_slo", np.inf),
}

_BLANK = np.zeros(1, WORKLOAD)
for _target, _default in _OPTIONAL.values():
    _BLANK[_target] = _default

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
        e2e_slo: float64 (n,), seconds from arrival to completion, or None.
        client_id: int64 (n,), ≥ 0, or None; the client that sends the request.
        session_id: int64 (n,), ≥ 0, or None; requests of one session are turns of one conversation or job.
        turn: int64 (n,), ≥ 1, or None; increases within a session, gaps are turns that were dropped.
        think_time: float64 (n,), seconds between the end of the session's previous turn and this one, or None; with
            parents, between the last of their ends and this request.
        gap_kind: int64 (n,), what that time is, an index of :data:`GAP_KINDS`, or None.
        job_id: int64 (n,), ≥ 0, or None; the job of each request. All turns of a session are of one job.
        feature_0: float64 (n,), a finite number of any meaning that is known when the request arrives, or None; the
            first of at most four, which are numbered without gaps.
        feature_1: the second.
        feature_2: the third.
        feature_3: the fourth.
        hashes: chains of block hashes, or None where it is unknown which requests begin with the same tokens.
        forecasts: predicted distributions and renewed predictions, or None.
        parents: the requests that must have ended before each request arrives, the turn before it in its session
            included; None if a turn follows only the turn before it.
        notes: what was clipped or dropped, one sentence each; shown to the user.
        classes: rates and mean lengths of the classes, if the workload has classes; entry k describes class_id k.
        rates: arrivals per second over time, if an arrival process has drawn the requests; no policy sees them.
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
    e2e_slo: NDArray[np.float64] | None = None
    client_id: NDArray[np.int64] | None = None
    session_id: NDArray[np.int64] | None = None
    turn: NDArray[np.int64] | None = None
    think_time: NDArray[np.float64] | None = None
    gap_kind: NDArray[np.int64] | None = None
    job_id: NDArray[np.int64] | None = None
    feature_0: NDArray[np.float64] | None = None
    feature_1: NDArray[np.float64] | None = None
    feature_2: NDArray[np.float64] | None = None
    feature_3: NDArray[np.float64] | None = None
    hashes: BlockHashes | None = None
    forecasts: Forecasts | None = None
    parents: Parents | None = None
    notes: tuple[str, ...] = field(default=())
    classes: tuple[ClassStatistics, ...] = field(default=())
    rates: KnownRates | None = None

    def __post_init__(self) -> None:
        """Sort and validate the columns.

        Raises:
            WorkloadError: as for :meth:`from_columns`.
        """
        vars(self).update(vars(RequestTable._of(self._all(), {}, self.notes, self.classes, self.rates)))

    @classmethod
    def from_columns(
        cls,
        *,
        notes: tuple[str, ...] = (),
        classes: tuple[ClassStatistics, ...] = (),
        rates: KnownRates | None = None,
        **columns: ArrayLike | BlockHashes | Forecasts | Parents | None,
    ) -> RequestTable:
        """Build a table from columns: sorts by arrival (stable), converts and validates.

        Args:
            notes: notes of the table.
            classes: classes of the table.
            rates: rates of the table.
            **columns: the attributes above by name, ``hashes``, ``forecasts`` and ``parents`` included;
                ``arrival_time``, ``prompt_len`` and ``output_len`` are required.

        Raises:
            WorkloadError: missing, unknown, ragged or out-of-range columns, with the first bad row.
        """
        return cls._of(columns, {}, notes, classes, rates)

    @classmethod
    def _of(
        cls,
        columns: Mapping[str, ArrayLike | BlockHashes | Forecasts | Parents | None],
        checked: Mapping[str, Any],
        notes: tuple[str, ...],
        classes: tuple[ClassStatistics, ...],
        rates: KnownRates | None,
    ) -> RequestTable:
        """Build a table from new columns (None drops one) and the remaining ones of another table."""
        if unknown := sorted(columns.keys() - _KNOWN):
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
            raw = as_array(merged[name], f"column {name}", WorkloadError) if name in columns else merged[name]
            if raw.shape != (n,):
                raise WorkloadError(f"column {name} has shape {raw.shape}; expected ({n},) like arrival_time")
            arrays[name] = _convert(name, raw) if name in columns else raw
        hashes: Any = merged.get("hashes")
        if hashes is not None and "hashes" not in columns:
            hashes = hashes.cut(_common_tokens(checked["prompt_len"], **arrays))
        _check_hashes(hashes, **arrays)
        forecasts: Any = merged.get("forecasts")
        check_forecasts(forecasts, n)
        times = arrays["arrival_time"]
        parents = checked_parents(merged.get("parents"), arrays.get("session_id"), times)
        if "arrival_time" in columns and (times[1:] < times[:-1]).any():
            order = np.argsort(times, kind="stable")
            arrays = {name: array[order] for name, array in arrays.items()}
            hashes, forecasts, parents = (
                None if ragged is None else ragged[order] for ragged in (hashes, forecasts, parents)
            )
        for array in arrays.values():
            array.setflags(write=False)
        low, high = arrays.get("predicted_low"), arrays.get("predicted_high")
        if (low is None) != (high is None) or (low is not None and high is not None and np.any(low > high)):
            raise WorkloadError("predicted_low and predicted_high must come together, low ≤ high")
        _check_sessions(arrays)
        check_jobs(arrays.get("job_id"), arrays.get("session_id"))
        given = [name in arrays for name in FEATURE_COLUMNS]
        if given != sorted(given, reverse=True):
            raise WorkloadError(
                f"column {FEATURE_COLUMNS[max(k for k, present in enumerate(given) if present)]} without "
                f"{FEATURE_COLUMNS[given.index(False)]}; number feature columns from 0 without gaps"
            )
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
        ragged = {"hashes": hashes, "forecasts": forecasts, "parents": parents}
        about = {"notes": tuple(notes), "classes": tuple(classes), "rates": rates}
        vars(table).update(dict.fromkeys(_COLUMNS) | arrays | ragged | about)
        return table

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_time)

    @property
    def first_turns(self) -> NDArray[np.bool_]:
        """Whether each request is the first of its session here, bool (n,); all are without sessions."""
        first = np.ones(len(self), np.bool_)
        if self.session_id is not None:
            first[:] = False
            first[np.unique(self.session_id, return_index=True)[1]] = True
        return first

    @property
    def roots(self) -> NDArray[np.bool_]:
        """Whether each request waits for no other one in the closed loop of sessions, bool (n,)."""
        return self.first_turns if self.parents is None else self.parents.roots

    @property
    def features(self) -> NDArray[np.float64]:
        """The feature columns, float64 (n, 4); 0 where the table has fewer."""
        features = np.zeros((len(self), len(FEATURE_COLUMNS)))
        for k, name in enumerate(FEATURE_COLUMNS):
            if (column := getattr(self, name)) is not None:
                features[:, k] = column
        return features

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns that are present, by name, without those with several values in a row."""
        values = {name: getattr(self, name) for name in _COLUMNS}
        return {name: value for name, value in values.items() if value is not None}

    def replace(
        self,
        *,
        notes: tuple[str, ...] | None = None,
        classes: tuple[ClassStatistics, ...] | None = None,
        **columns: ArrayLike | BlockHashes | Forecasts | Parents | None,
    ) -> RequestTable:
        """Return a table with some columns replaced (None removes an optional one); new columns are validated.

        Hashes that are not replaced are cut where lengths change: old and new prompt begin with the same tokens.
        """
        return RequestTable._of(
            columns,
            self._all(),
            self.notes if notes is None else notes,
            self.classes if classes is None else classes,
            self.rates,
        )

    def _all(self) -> dict[str, Any]:
        """Return the columns that are present, hashes and forecasts, by name."""
        return {**self.columns(), **{name: getattr(self, name) for name in _RAGGED}}

    def _rows(self, chosen: Any) -> dict[str, Any]:
        """Return what :meth:`_all` returns, of some rows."""
        return {name: None if values is None else values[chosen] for name, values in self._all().items()}

    def select(self, keep: NDArray[np.bool_] | slice, *notes: str) -> RequestTable:
        """Return the rows under ``keep`` (boolean mask or slice), with ``notes`` appended."""
        return RequestTable.from_columns(
            notes=(*self.notes, *notes),
            classes=self.classes,
            rates=self.rates,
            **self._rows(keep),
        )

    def as_arrived(self, rows: NDArray[np.integer], times: NDArray[np.float64]) -> RequestTable:
        """Return requests in another order of arrival.

        Args:
            rows: the rows that have arrived, in order, int (m,).
            times: when they arrived, seconds, not decreasing, (m,).
        """
        return RequestTable.from_columns(
            notes=self.notes,
            classes=self.classes,
            rates=self.rates,
            **self._rows(rows) | {"arrival_time": times},
        )

    def faster(self, factor: float) -> RequestTable:
        """Return the same requests arriving ``factor`` times as fast; the rates of classes are scaled too.

        Raises:
            ConfigError: ``factor`` is not a finite number > 0.
        """
        factor = real_number(factor, "factor", "a finite number > 0", lambda number: 0 < number < np.inf)
        classes = tuple(c.at_rate(factor, speed=factor) for c in self.classes)
        table = self.replace(arrival_time=self.arrival_time / factor, classes=classes)
        return table.with_rates(None if self.rates is None else self.rates.scaled(factor, factor))

    def with_rates(self, rates: KnownRates | None) -> RequestTable:
        """Return the table with other rates."""
        return self._changed(rates=rates)

    def with_exact_predictions(self) -> RequestTable:
        """Return the table with the true output lengths as predictions."""
        return self._changed(predicted_output_len=self.output_len)

    def _changed(self, **values: Any) -> RequestTable:
        """Return the table with other values, which are not checked."""
        table = object.__new__(RequestTable)
        vars(table).update(vars(self), **values)
        return table

    def chains(self, unit: int) -> Chains | None:
        """Return the chains of block hashes in units of ``unit`` tokens, None without hashes.

        Args:
            unit: tokens of a unit of the cache; divides the hashes' block or is a multiple of it.

        Raises:
            WorkloadError: neither divides the other.
        """
        return None if self.hashes is None else self.hashes.chains(unit)

    def to_records(self) -> np.ndarray:
        """Return the table in the simulator's layout, dtype :data:`WORKLOAD`, shape (n,)."""
        columns = {name: getattr(self, name) for name in ("arrival_time", "prompt_len", "output_len")}
        given = {target: getattr(self, name) for name, (target, _) in _OPTIONAL.items()}
        columns |= {target: value for target, value in given.items() if value is not None}
        places = np.empty((len(self), _BLANK.itemsize // 8), np.int64)
        table: np.ndarray = np.ndarray(len(self), WORKLOAD, places)
        # All columns of a block of rows while it is in the processor's cache.
        for start in range(0, len(self), _ROWS):
            rows = slice(start, start + _ROWS)
            places[rows] = words(_BLANK)
            for target, column in columns.items():
                table[target][rows] = column[rows]
        return table


_COLUMNS = tuple(f.name for f in fields(RequestTable) if f.name not in _ABOUT)
_KNOWN = frozenset((*_COLUMNS, *_RAGGED))


_LARGEST = np.finfo(np.float64).max


@functools.cache
def _range(name: str) -> tuple[bool, float, float, str]:
    """Return whether a column has real numbers, the least and the largest of them, and both in words."""
    if name in FEATURE_COLUMNS:
        return True, -_LARGEST, _LARGEST, "a finite number"
    if name in ("arrival_time", "ttft_slo", "tbt_slo", "e2e_slo", "think_time"):
        return True, 0.0, np.inf if name.endswith("_slo") else _LARGEST, "seconds ≥ 0"
    from_zero = ("class_id", "client_id", "session_id", "gap_kind", "job_id")
    least = -(2**31) if name == "priority" else 0 if name in from_zero else 1
    return False, least, 2**31 - 1, f"a whole number {'from -2^31' if least < 0 else f'≥ {least}'} below 2^31"


def _convert(name: str, raw: NDArray[Any]) -> NDArray[Any]:
    """Convert one column to its dtype and check its range."""
    real, low, high, expected = _range(name)
    usual = raw.size and raw.dtype == (np.float64 if real else np.int64)
    if usual and low <= np.minimum.reduce(raw) and np.maximum.reduce(raw) <= high:  # NaN is in no range
        return raw.copy()  # valid without a check of every number
    numbers = _numbers(raw)
    bad = ~((low <= numbers) & (numbers <= high))
    if not real:
        bad |= numbers != np.floor(numbers)
    if bad.any():
        row = int(np.argmax(bad))
        raise WorkloadError(f"column {name}, row {row}: {shown(raw[row])}; expected {expected}")
    return numbers if real else numbers.astype(np.int64)


def _common_tokens(
    old: NDArray[np.int64], prompt_len: NDArray[np.int64], output_len: NDArray[np.int64], **_: NDArray[Any]
) -> NDArray[np.int64]:
    """Return how many tokens of each request stay the same when its lengths change, int64 (n,)."""
    return np.where(prompt_len == old, prompt_len + output_len, np.minimum(prompt_len, old))


def _check_hashes(
    hashes: Any, prompt_len: NDArray[np.int64], output_len: NDArray[np.int64], **_: NDArray[Any]
) -> None:
    """Check that hashes fit the requests."""
    if hashes is None:
        return
    if not isinstance(hashes, BlockHashes):
        raise WorkloadError(f"hashes = {shown(hashes)}; expected BlockHashes, e.g. by BlockHashes.from_rows")
    if len(hashes) != len(prompt_len):
        raise WorkloadError(f"hashes have {len(hashes):,} rows; expected {len(prompt_len):,} like prompt_len")
    if (beyond := hashes.chain_tokens > prompt_len + output_len).any():
        row = int(np.argmax(beyond))
        raise WorkloadError(
            f"hashes, row {row}: cover {hashes.chain_tokens[row]} tokens; expected at most prompt_len + output_len = "
            f"{prompt_len[row] + output_len[row]}"
        )


def _check_sessions(columns: Mapping[str, NDArray[Any]]) -> None:
    """Check that sessions have turns, and that these are in order of arrival; the rows are sorted by arrival."""
    session_id, turn = columns.get("session_id"), columns.get("turn")
    if session_id is None and turn is None:
        if found := [name for name in ("think_time", "gap_kind") if name in columns]:
            raise WorkloadError(f"column {found[0]} needs session_id and turn")
        return
    if session_id is None or turn is None:
        raise WorkloadError("session_id and turn must come together")
    if (gap_kind := columns.get("gap_kind")) is not None and (wrong := gap_kind >= len(GAP_KINDS)).any():
        row = int(np.argmax(wrong))
        raise WorkloadError(
            f"column gap_kind, row {row}: {gap_kind[row]}; expected 0 ({GAP_KINDS[0]}) or 1 ({GAP_KINDS[1]})"
        )
    order = np.argsort(session_id, kind="stable")
    same = session_id[order][1:] == session_id[order][:-1]
    if (wrong := same & (turn[order][1:] <= turn[order][:-1])).any():
        before, row = (int(order[int(np.argmax(wrong)) + i]) for i in (0, 1))
        raise WorkloadError(
            f"column turn, row {row}: turn {turn[row]} of session {session_id[row]} arrives after turn {turn[before]} "
            f"(row {before}); expected increasing turns: correct the turns or the arrival times"
        )


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
