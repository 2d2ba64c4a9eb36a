"""What a real server has served: a row per request, read from a file and checked."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import TraceFormatError
from kvgym.workloads.table import RequestTable
from kvgym.workloads.traces.source import SourceFile
from kvgym.workloads.traces.values import Column

Floats = NDArray[np.float64]

SLOWEST_TOKEN = 10.0
"""Seconds per output token beyond which times cannot be seconds."""

_REQUIRED = (
    Column("arrival_time", "arrival_time", "seconds"),
    Column("prompt_len", "prompt_len", "positive"),
    Column("output_len", "output_len", "positive"),
)
# Either the moment, or the time since the arrival.
_CHOICES = (("first_token_time", "ttft"), ("finish_time", "e2e_latency"))


@dataclass(frozen=True, eq=False)
class ServedLog:
    """Requests that a server has finished, sorted by arrival.

    Attributes:
        name: name of the file.
        arrival_time: float64 (n,), seconds since the first arrival.
        prompt_len: int64 (n,), tokens.
        output_len: int64 (n,), tokens.
        ttft: float64 (n,), seconds from arrival to first token.
        e2e_latency: float64 (n,), seconds from arrival to last token.
        notes: what was left out on the way, one sentence each.
    """

    name: str
    arrival_time: Floats
    prompt_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    ttft: Floats
    e2e_latency: Floats
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_time)

    @property
    def tbt(self) -> Floats:
        """Mean time per output token after the first, seconds, (n,); NaN where there is one token only."""
        return time_per_token(self.ttft, self.e2e_latency, self.output_len - 1)

    @property
    def makespan(self) -> float:
        """Seconds from the first arrival to the last finish."""
        return float((self.arrival_time + self.e2e_latency).max())

    def select(self, keep: NDArray[np.bool_], note: str) -> ServedLog:
        """Return the requests under ``keep``, bool (n,), times as they are, with a note."""
        columns = {
            f.name: getattr(self, f.name)[keep] for f in fields(self) if f.name not in ("name", "notes")
        }
        return replace(self, **columns, notes=(*self.notes, note))

    def requests(self, *, known: bool = False) -> RequestTable:
        """Return the requests to replay.

        Args:
            known: whether schedulers may know the output lengths, as exact predictions.
        """
        lengths: dict[str, Any] = {"prompt_len": self.prompt_len, "output_len": self.output_len}
        if known:
            lengths |= dict.fromkeys(
                ("predicted_output_len", "predicted_low", "predicted_high"), self.output_len
            )
        return RequestTable.from_columns(arrival_time=self.arrival_time, notes=self.notes, **lengths)


def time_per_token(ttft: Floats, e2e_latency: Floats, gaps: NDArray[np.int64]) -> Floats:
    """Return seconds per gap between output tokens, float64 (n,); NaN where there is no gap."""
    return np.where(gaps > 0, (e2e_latency - ttft) / np.maximum(gaps, 1), np.nan)


def read_served(path: str | Path) -> ServedLog:
    """Read a log of served requests.

    Columns ``arrival_time``, ``prompt_len``, ``output_len``, ``first_token_time`` or ``ttft``, ``finish_time`` or
    ``e2e_latency``; times in seconds, of any one clock. Others are ignored.

    Args:
        path: CSV, JSON, JSONL or Parquet.

    Raises:
        TraceFormatError: a column is missing or given twice, a value is wrong, a request got its first token before
            it arrived or finished before that, or times are not in seconds; with row and column.
    """
    source = SourceFile.open(path)
    data = source.columns((*_REQUIRED, *(_chosen(source, *pair) for pair in _CHOICES)))
    arrival = data["arrival_time"]
    if not len(arrival):
        raise TraceFormatError(f"{source.path}: no rows; expected at least one request")
    ttft, e2e = (data[span] if span in data else data[moment] - arrival for moment, span in _CHOICES)
    for bad, what in (
        (ttft < 0, "the first token comes before the arrival"),
        (e2e < ttft, "the request finishes before its first token"),
    ):
        if bad.any():
            row = int(np.argmax(bad))
            raise TraceFormatError(
                f"{source.path}, request {row + 1}: {what} ({int(bad.sum()):,} of {len(bad):,} requests): arrival "
                f"{arrival[row]:g}, first token {ttft[row]:+g} s, finish {e2e[row]:+g} s after it; times must be in "
                "seconds and of one clock"
            )
    order = np.argsort(arrival, kind="stable")
    log = ServedLog(
        name=source.path.name,
        arrival_time=(arrival - arrival.min())[order],
        prompt_len=data["prompt_len"].astype(np.int64)[order],
        output_len=data["output_len"].astype(np.int64)[order],
        ttft=ttft[order],
        e2e_latency=e2e[order],
    )
    _check_times(log, source.path)
    return log


def _chosen(source: SourceFile, moment: str, span: str) -> Column:
    """Return the column of a pair that the file has."""
    present = [name for name in (moment, span) if name in source.names]
    if len(present) != 1:
        found = ", ".join(source.names) or "none"
        problem = (
            f"columns {moment!r} and {span!r} are both there" if present else f"column {moment!r} is missing"
        )
        raise TraceFormatError(
            f"{source.path}: {problem}; give either {moment} or {span} (since the arrival), in seconds; found {found}"
        )
    return Column(present[0], present[0], "seconds")


def _check_times(log: ServedLog, path: Path) -> None:
    """Refuse times that cannot be what they should be.

    Raises:
        TraceFormatError: tokens that take too long, or answers that came in one piece.
    """
    several = log.output_len > 1
    if not several.any():
        return
    typical = float(np.median(log.tbt[several]))
    if typical > SLOWEST_TOKEN:
        raise TraceFormatError(
            f"{path}: a token takes {typical:,.4g} s (median over requests); times must be in seconds, these look "
            "like milliseconds: divide them by 1,000"
        )
    if typical == 0:
        raise TraceFormatError(
            f"{path}: most requests finish at their first token although they have several; log the time of the "
            "first token of a streamed answer"
        )
