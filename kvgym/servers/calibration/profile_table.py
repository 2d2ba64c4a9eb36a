"""Tables of a profile's CSV file: normalised column names, selection of rows, checks of cells.

Errors name file, line and column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from kvgym.batch_time.hardware.interpolation import Floats
from kvgym.errors import ConfigError, TraceFormatError, shown
from kvgym.servers.calibration.plausibility import LAUNCH_MS
from kvgym.workloads.traces.source import SourceFile

ALIASES = {"tp": "num_tensor_parallel_workers", "n_head": "n_q_head", "backend": "attention_backend"}
"""Names of columns in sampled files."""

MEDIAN_BOUNDS = (1 / 50, 50.0)
"""Bounds of a column's median of measured / ideal time; they exclude times in seconds or microseconds."""

ROW_FACTOR = 20.0
"""Largest factor between a row and its neighbours, relative to the ideal time, in either direction."""

NEIGHBOURS = 9
"""Number of neighbours, including the row itself; a row is compared with their median."""

_PLACE = "__place"


class ProfileTable:
    """Rows of a CSV file, with cells as text.

    Column names are normalised: ``time_stats.X.median`` and ``X_median_ms`` become ``X``, ``time_stats.X.min`` becomes
    ``X.min``, and :data:`ALIASES` are replaced.

    Args:
        path: the file.
        cells: the cells of each column, shape (rows,); None = read them.

    Raises:
        ConfigError: the file is missing, damaged or not CSV; the message names the line.
    """

    def __init__(self, path: Path, cells: Mapping[str, NDArray[Any]] | None = None) -> None:
        self.path = path
        self.cells = self._read() if cells is None else cells

    def _read(self) -> dict[str, NDArray[Any]]:
        try:
            source = SourceFile.open(self.path)
            if source.container != "csv":
                raise TraceFormatError(f"{self.path}: not a CSV file")
            rows = list(source.rows())
        except TraceFormatError as error:
            raise ConfigError(f"profile {error}") from None
        cells = {_PLACE: np.array([place for place, _ in rows], object)}
        for column in source.names:
            plain = column.removeprefix("time_stats.").removesuffix(".median").removesuffix("_median_ms")
            cells.setdefault(ALIASES.get(plain, plain), np.array([row[column] for _, row in rows], object))
        return cells

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.cells[_PLACE])

    def has(self, column: str) -> bool:
        """Return whether there is a column with a value in any row."""
        return column in self.cells and any(self.cells[column])

    def require(self, columns: Iterable[str]) -> None:
        """Check that columns exist.

        Raises:
            ConfigError: names the missing and the existing columns.
        """
        missing = [name for name in columns if name not in self.cells]
        if missing:
            there = ", ".join(name for name in self.cells if name != _PLACE)
            raise ConfigError(f"profile {self.path}: missing columns {', '.join(missing)}; has {there}")

    def where(self, wanted: Mapping[str, float | str], *, optional: bool = False) -> ProfileTable:
        """Return the rows in which columns have given values.

        Args:
            wanted: value by column.
            optional: ignore columns that the file does not have.

        Raises:
            ConfigError: a column is missing, or no row is left; the message names the existing values.
        """
        result = self
        for column, value in wanted.items():
            if optional and not self.has(column):
                continue
            result.require([column])
            if isinstance(value, str):
                keep = result.cells[column] == value
            else:
                keep = result.numbers(column, least=None) == value
            if not keep.any():
                there = sorted({v for v in result.cells[column] if v}, key=lambda v: (len(v), v))
                shown = value if isinstance(value, str) else f"{value:g}"
                raise ConfigError(
                    f"profile {self.path}: no rows with {column} = {shown}; "
                    f"there are {', '.join(there[:12])}{' …' if len(there) > 12 else ''}"
                )
            result = result.filter(keep)
        return result

    def filter(self, keep: NDArray[np.bool_]) -> ProfileTable:
        """Return the rows chosen by a mask of shape (rows,)."""
        return ProfileTable(self.path, {name: column[keep] for name, column in self.cells.items()})

    def one_value(self, columns: Iterable[str]) -> None:
        """Check that each column has a single value, as times of different settings must not be mixed.

        Raises:
            ConfigError: a column has several values.
        """
        for column in columns:
            if column in self.cells:
                values = sorted({v for v in self.cells[column] if v})
                if len(values) > 1:
                    raise ConfigError(
                        f"profile {self.path}: several values of {column}: {', '.join(values)}; choose one in "
                        f"the recipe, e.g. where: {{{column}: {values[0]}}}"
                    )

    def texts(self, column: str) -> list[str]:
        """Return a column as text, "" for empty cells."""
        return list(self.cells[column])

    def numbers(self, column: str, *, least: float | None = 0.0, above: bool = False) -> Floats:
        """Return a column as numbers, shape (rows,).

        Args:
            column: its name.
            least: smallest value allowed; None = any.
            above: ``least`` itself is not allowed.

        Raises:
            ConfigError: a cell is empty, text, not finite or too small.
        """
        values = np.array([_number(text) for text in self.cells[column]], np.float64)
        wrong = ~np.isfinite(values)
        if least is not None:
            wrong |= values <= least if above else values < least
        if wrong.any():
            row = int(np.argmax(wrong))
            need = "a number" if least is None else f"a number {'>' if above else '>='} {least:g}"
            raise ConfigError(
                f"profile {self.path}: {self.place(row)}, column {column}: "
                f"{shown(self.texts(column)[row])} is not {need}"
            )
        return values

    def place(self, row: int) -> str:
        """Return where in the file a row is, for messages."""
        return str(self.cells[_PLACE][row])

    def times(
        self, column: str, keys: Sequence[Floats], ideal_ms: Floats, *, faster: float = ROW_FACTOR
    ) -> Floats:
        """Return measured milliseconds, checked against the hardware's peak and against neighbouring rows.

        Args:
            column: its name.
            keys: quantities that the time depends on, each of shape (rows,).
            ideal_ms: milliseconds at the hardware's peak, shape (rows,).
            faster: how many times faster than its neighbours a row may be.

        Raises:
            ConfigError: a cell is not a positive number, the unit is not milliseconds, or a row differs strongly from
                its neighbours.
        """
        ms = self.numbers(column, above=True)
        ratio = ms / (ideal_ms + LAUNCH_MS)
        median = float(np.median(ratio))
        low, high = MEDIAN_BOUNDS
        if not low <= median <= high:
            unit = "seconds" if median < low else "microseconds"
            raise ConfigError(
                f"profile {self.path}: column {column}: times must be milliseconds, these look like {unit}: their "
                f"median, {np.median(ms):.4g}, is {median:.2g} times the ideal of this model and GPU at its peak "
                f"({np.median(ideal_ms + LAUNCH_MS):.3g} ms); expected {low:g} to {high:g} times"
            )
        if len(ms) > 2:
            place = np.column_stack([np.log1p(key) for key in keys])
            near = cKDTree(place).query(place, k=min(NEIGHBOURS, len(ms)))[1]
            usual = np.median(ratio[near], axis=1)
            slow, fast = ratio / usual, usual / ratio
            worst = int(np.argmax(np.maximum(slow / ROW_FACTOR, fast / faster)))
            off = np.maximum(slow, fast)
            allowed = ROW_FACTOR if slow[worst] >= fast[worst] else faster
            if off[worst] > allowed:
                raise ConfigError(
                    f"profile {self.path}: {self.place(worst)}, column {column}: {ms[worst]:.4g} ms is "
                    f"{off[worst]:.3g} times off the rows next to it (allowed: {allowed:g}); measure it again "
                    "or delete the row"
                )
        return ms

    def small_times(self, column: str, key: Floats, ideal_ms: Floats) -> Floats:
        """Return measured milliseconds that may be 0; the others are checked as in :meth:`times`.

        Args:
            column: its name.
            key: quantity that the time depends on, shape (rows,).
            ideal_ms: milliseconds at the hardware's peak, shape (rows,).

        Raises:
            ConfigError: as for :meth:`times`, except for 0.
        """
        ms = self.numbers(column)
        some = ms > 0
        if some.any():
            self.filter(some).times(column, [key[some]], ideal_ms[some])
        return ms


def by_key(keys: Sequence[Floats], values: Sequence[Floats]) -> list[Floats]:
    """Return the distinct keys, ascending, and the medians of values over rows with equal keys.

    Args:
        keys: each of shape (rows,).
        values: each of shape (rows,).

    Returns:
        The keys, then the values, each of shape (n,).
    """
    order = np.lexsort(keys[::-1])
    table = np.stack(keys)[:, order]
    starts = np.flatnonzero(np.any(np.diff(table, axis=1, prepend=np.nan) != 0, axis=0))
    medians = [[np.median(rows) for rows in np.split(value[order], starts[1:])] for value in values]
    return [*table[:, starts], *np.array(medians)]


def _number(text: str) -> float:
    """Return a cell as a number, NaN if it is not one."""
    try:
        return math.nan if "_" in text else float(text)  # float() would accept 1_000
    except ValueError:
        return math.nan
