"""Predictions that are more than one number: distributions of the output length, and predictions renewed later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import WorkloadError, shown
from kvgym.utils.checks import as_array, whole_numbers
from kvgym.workloads.layout import EXTRA, TENTHS, UNKNOWN


@dataclass(frozen=True, eq=False)
class Forecasts:
    """What a predictor says of each request in addition to one length; at least one of the two parts.

    A distribution is ten lengths: the mean length in each tenth of its probability, ascending. The mean of all ten is
    the expected length, the last one the expected length in the longest tenth. Histograms and other distributions
    convert to it by :func:`tenths_of`. Selected rows share ``renewed`` with the column that they come from.

    Attributes:
        tenths: int64 (n, 10), tokens, ≥ 1, ascending in each row; None without distributions.
        every: tokens between two renewals, ≥ 1; 0 = predictions are not renewed.
        renewed: int64 (T,), tokens, ≥ 1: predictions of the whole output, made after each ``every`` output tokens.
        start: int64 (n,), position in ``renewed`` of each request's first renewal.
        count: int64 (n,), number of its renewals; the last one stays valid.
    """

    tenths: NDArray[np.int64] | None
    every: int
    renewed: NDArray[np.int64]
    start: NDArray[np.int64]
    count: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Convert and check the arrays.

        Raises:
            WorkloadError: neither part is given, or arrays of wrong shapes or ranges.
        """
        every = self.every
        if isinstance(every, bool) or not isinstance(every, int | np.integer) or not 0 <= every < 2**31:
            raise WorkloadError(
                f"renew_every = {shown(every)}; expected a number of tokens ≥ 1, 0 without renewals"
            )
        tenths = None if self.tenths is None else _checked_tenths(self.tenths)
        if tenths is None and every == 0:
            raise WorkloadError("forecasts need tenths, or renewed and every ≥ 1; give one of them")
        renewed = _lengths(self.renewed, "renewed_lens")
        start, count = (
            whole_numbers(getattr(self, name), name, WorkloadError) for name in ("start", "count")
        )
        if renewed.ndim != 1:
            raise WorkloadError(
                f"renewed_lens have shape {renewed.shape}; expected (T,), those of all requests"
            )
        for name, rows in (("count", count), ("predicted_tenths", tenths)):
            if rows is not None and len(rows) != len(start):
                raise WorkloadError(
                    f"start has {len(start):,} rows, {name} {len(rows):,}; expected the same number"
                )
        if (beyond := start + count > len(renewed)).any():
            row = int(np.argmax(beyond))
            raise WorkloadError(
                f"row {row}: start {start[row]} and count {count[row]} end beyond renewed, which has {len(renewed)}; "
                "make them with Forecasts.from_rows"
            )
        if every == 0 and len(renewed):
            raise WorkloadError("renew_every = 0 with renewed_lens; expected a number of tokens ≥ 1")
        vars(self).update(tenths=tenths, every=int(every), renewed=renewed, start=start, count=count)
        for array in (tenths, renewed, start, count):
            if array is not None:
                array.setflags(write=False)

    @classmethod
    def from_rows(
        cls, tenths: ArrayLike | None = None, renewed: Sequence[ArrayLike] | None = None, every: int = 0
    ) -> Forecasts:
        """Join the renewals of each request.

        Args:
            tenths: (n, 10), None = no distributions.
            renewed: the renewals of each request, None = no renewals.
            every: tokens between two renewals; 0 without renewals.

        Raises:
            WorkloadError: neither is given, or wrong shapes or ranges.
        """
        if tenths is None and renewed is None:
            raise WorkloadError("forecasts need tenths or renewed")
        points = None if tenths is None else _checked_tenths(tenths)
        if not isinstance(every, int | np.integer) or (renewed is None) != (every == 0):
            raise WorkloadError(
                f"renew_every = {shown(every)}; expected a number of tokens ≥ 1 with renewed_lens, else 0"
            )
        if renewed is not None and not _is_list(renewed):
            raise WorkloadError(
                f"renewed_lens = {shown(renewed)}; expected a list of lengths for each request"
            )
        rows = [()] * len(points if points is not None else ()) if renewed is None else list(renewed)
        n = len(rows)
        if points is not None and len(points) != n:
            raise WorkloadError(
                f"predicted_tenths have {len(points):,} rows, renewed_lens {n:,}; expected as many"
            )
        arrays = [as_array(row, "renewed_lens", WorkloadError).ravel() for row in rows]
        count = np.array([array.size for array in arrays], np.int64)
        try:
            flat = np.concatenate(arrays) if count.sum() else np.zeros(0, np.int64)
        except TypeError:  # times and numbers, for example
            raise WorkloadError(
                "renewed_lens: expected whole numbers of tokens ≥ 1 below 2^31, no times"
            ) from None
        return cls(points, every, flat, np.cumsum(count) - count, count)

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.start)

    def __getitem__(self, rows: Any) -> Forecasts:
        """Return the forecasts of some requests: a slice, a mask (n,) or indices."""
        other = object.__new__(Forecasts)  # the constructor would check everything again
        tenths = None if self.tenths is None else self.tenths[rows]
        vars(other).update(vars(self), tenths=tenths, start=self.start[rows], count=self.count[rows])
        return other

    def row(self, i: int) -> NDArray[np.int64]:
        """Return the renewals of request ``i``."""
        return self.renewed[self.start[i] : self.start[i] + self.count[i]]

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns of a file; lists of lengths are texts, ``"12 15 20"``."""
        found: dict[str, NDArray[Any]] = {}
        if self.tenths is not None:
            found["predicted_tenths"] = _texts(self.tenths)
        if self.every:
            found["renewed_lens"] = _texts([self.row(i) for i in range(len(self))])
            found["renew_every"] = np.full(len(self), self.every)
        return found


def tenths_of(lengths: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return distributions of equally likely lengths as :class:`Forecasts` has them, int64 (n, 10).

    Args:
        lengths: tokens, ascending in each row, (n, a multiple of ten).
    """
    means = lengths.reshape(len(lengths), TENTHS, -1).mean(axis=2)
    return np.asarray(np.maximum(np.floor(means + 0.5), 1), np.int64)


def _is_list(rows: Any) -> bool:
    """Return whether rows are a list or an array of at least one dimension."""
    return rows.ndim > 0 if isinstance(rows, np.ndarray) else isinstance(rows, list | tuple)


def _texts(rows: Any) -> NDArray[Any]:
    texts = np.empty(len(rows), object)
    texts[:] = [" ".join(map(str, row.tolist())) for row in rows]
    return texts


def _checked_tenths(values: ArrayLike) -> NDArray[np.int64]:
    """Return distributions after a check, int64 (n, 10)."""
    points = _lengths(values, "predicted_tenths")
    if points.ndim != 2 or points.shape[1] != TENTHS:
        raise WorkloadError(f"predicted_tenths have shape {points.shape}; expected (n, {TENTHS})")
    if (wrong := (points[:, 1:] < points[:, :-1]).any(axis=1)).any():
        row = int(np.argmax(wrong))
        raise WorkloadError(
            f"predicted_tenths, row {row}: {shown(points[row].tolist())}; expected ascending lengths"
        )
    return points


def _lengths(values: ArrayLike, what: str) -> NDArray[np.int64]:
    """Return lengths as int64 after a check of their range."""
    raw = as_array(values, what, WorkloadError)
    numbers = (
        raw.astype(np.float64) if raw.dtype.kind in "iuf" or not raw.size else np.full(raw.shape, np.nan)
    )
    if not ((numbers >= 1) & (numbers < 2**31) & (numbers == np.floor(numbers))).all():
        raise WorkloadError(f"{what}: expected whole numbers of tokens ≥ 1 below 2^31")
    return np.asarray(numbers, np.int64)


def extra_tables(table: Any, needs: frozenset[str], always: bool = False) -> dict[str, NDArray[Any]]:
    """Return the tables of further facts, none unless a policy with these needs observes one of them.

    ``hidden_extras`` has what it may observe of all requests, ``extras`` of those that have arrived; ``renewals`` are
    the renewed predictions.

    Args:
        table: the requests, a :class:`~kvgym.workloads.table.RequestTable`.
        needs: of the policy.
        always: whether there are rows for all requests, with what is known of them.
    """
    forecasts = table.forecasts
    distributions = forecasts is not None and forecasts.tenths is not None and "length_distribution" in needs
    renewed = forecasts is not None and forecasts.every > 0 and "renewed_length" in needs
    clients = table.client_id is not None and "client" in needs
    deadlines = table.e2e_slo is not None and "slo" in needs
    n = len(table) if distributions or renewed or clients or deadlines or always else 0
    if n == 0:
        return {}
    blank = np.zeros(n, EXTRA)
    blank["e2e_slo"] = np.inf
    for name in ("client_id", "renewed_len", "tenths"):
        blank[name] = UNKNOWN
    hidden, renewals = blank.copy(), np.zeros(0, np.int32)
    if clients:
        hidden["client_id"] = table.client_id
    if deadlines:
        hidden["e2e_slo"] = table.e2e_slo
    if forecasts is not None and distributions:
        hidden["tenths"] = forecasts.tenths
    if forecasts is not None and renewed:
        renewals = forecasts.renewed.astype(np.int32)
        hidden["first_renewal"], hidden["num_renewals"] = forecasts.start, forecasts.count
        if table.predicted_output_len is not None:
            hidden["renewed_len"] = table.predicted_output_len
    return {"extras": blank, "hidden_extras": hidden, "renewals": renewals}


def check_forecasts(forecasts: Any, n: int) -> None:
    """Check that forecasts fit ``n`` requests.

    Raises:
        WorkloadError: they are something else, or of another number.
    """
    if forecasts is None:
        return
    if not isinstance(forecasts, Forecasts):
        raise WorkloadError(
            f"forecasts = {shown(forecasts)}; expected Forecasts, e.g. by Forecasts.from_rows"
        )
    if len(forecasts) != n:
        raise WorkloadError(f"forecasts have {len(forecasts):,} rows; expected {n:,} like prompt_len")
