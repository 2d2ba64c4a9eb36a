"""Logs of a real server: a row per request, read from a file and checked.

Logs of known benchmarks need no options, see :mod:`kvgym.servers.validation.log_formats`; any other table has its
columns named as usual, or mapped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, TraceFormatError, some
from kvgym.servers.validation.log_formats import OWN_OUTPUT, REQUESTS, parse_log
from kvgym.servers.validation.log_rows import NUMBERS
from kvgym.utils.arguments import explained
from kvgym.workloads.table import RequestTable
from kvgym.workloads.traces.clock import UNITS, named_unit, time_kind
from kvgym.workloads.traces.own_table import ALIASES, OWN_COLUMNS, SHORT, OwnTable, columns_note
from kvgym.workloads.traces.reader import WRITTEN
from kvgym.workloads.traces.source import SourceFile
from kvgym.workloads.traces.values import PER_SECOND, Column, Columns

Floats = NDArray[np.float64]

SLOWEST_TOKEN = 10.0
"""Seconds per output token beyond which times cannot be seconds."""

SKIPPED = "The first {:,} requests are replayed but not compared."
"""Note on the warm-up of a log."""

_CHOICES = (
    ("first_token_time", "ttft"),
    ("finish_time", "e2e_latency"),
)  # the moment, or the time since the arrival

COLUMNS = (
    Column("arrival_time", "arrival_time", "seconds"),
    Column("prompt_len", "prompt_len", "positive"),
    Column("output_len", "output_len", "positive"),
    *(Column(name, name, "seconds", required=False) for pair in _CHOICES for name in pair),
    Column("num_evictions", "num_evictions", "index", required=False),
)
"""Columns of a log of served requests."""

SERVED_ALIASES: Mapping[str, tuple[str, ...]] = {
    **ALIASES,
    "first_token_time": ("first_token_time", "first_token_at", "first_token_timestamp"),
    "ttft": ("ttft", "time_to_first_token", "first_token_latency"),
    "finish_time": (
        "finish_time",
        "finished_time",
        "finished_at",
        "finish_timestamp",
        "end_time",
        "completed_at",
    ),
    "e2e_latency": (
        "e2e_latency",
        "e2el",
        "e2e",
        "end_to_end_latency",
        "e2e_request_latency",
        "request_latency",
    ),
    "num_evictions": ("num_evictions", "evictions", "num_preemptions", "preemptions"),
}
"""Column names recognised without a mapping, as in traces."""


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
        num_evictions: evictions (vLLM: preemptions) during the log; None = the log does not have them.
        notes: what was left out, one sentence each.
        skip: number of first requests that are replayed, but not compared: the server warmed up meanwhile.
        inside: whether its times are the engine's own, without its API.
    """

    name: str
    arrival_time: Floats
    prompt_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    ttft: Floats
    e2e_latency: Floats
    num_evictions: int | None = None
    notes: tuple[str, ...] = ()
    skip: int = 0
    inside: bool = False

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
        others = ("name", "num_evictions", "notes", "skip", "inside")
        columns = {f.name: getattr(self, f.name)[keep] for f in fields(self) if f.name not in others}
        return replace(self, **columns, notes=(*self.notes, note), skip=int(keep[: self.skip].sum()))

    def skipping(self, count: int) -> ServedLog:
        """Return the log with a number of first requests that are not compared.

        Raises:
            ConfigError: none is left to compare.
        """
        if count >= len(self):
            raise ConfigError(
                f"skip = {count}: {self.name} has {len(self):,} requests, none is left to compare"
            )
        return replace(self, skip=count)

    def compared(self) -> ServedLog:
        """Return the requests after the skipped ones, their times counted from their own first arrival."""
        if not self.skip:
            return self
        rest = self.select(np.arange(len(self)) >= self.skip, SKIPPED.format(self.skip))
        return replace(rest, arrival_time=rest.arrival_time - rest.arrival_time[0])

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


@explained
def read_served(
    path: str | Path, *, columns: Mapping[str, str] | None = None, time_unit: str | None = None
) -> ServedLog:
    """Read a log of served requests.

    Logs of :data:`~kvgym.servers.validation.log_formats.FORMATS` are recognised: ``kvgym server observe`` (its folder
    is enough), ``vllm bench serve --save-detailed``, GuideLLM's ``benchmarks.json``, AIPerf's ``profile_export.jsonl``,
    SGLang's bench_serving, inference-perf, and times of vLLM's engine. Any other file, and
    any file with ``columns`` or ``time_unit``, is a table with columns ``arrival_time``, ``prompt_len``,
    ``output_len``, ``first_token_time`` or ``ttft``, ``finish_time`` or ``e2e_latency``, optionally ``num_evictions``,
    or other names, recognised or given, as in traces (docs/traces.md). Moments are of any one clock; other columns are
    ignored.

    Args:
        path: CSV, JSON, JSONL or Parquet.
        columns: the names that the file has for them; ``"arrival"``, ``"prompt"`` and ``"output"`` are short.
        time_unit: unit of numeric times, except for spans with another unit in their name: ``"s"``, ``"ms"``, ``"us"``
            or ``"ns"``. None = the unit in their names, for moments the only plausible unit, else seconds.

    Raises:
        TraceFormatError: a column is missing, ambiguous or given twice, a value is wrong, a request got its first token
            before it arrived or finished before that, or times are not in the unit; with row and column.
        ConfigError: no such column or unit.
    """
    path = Path(path)
    path = path / REQUESTS if (path / REQUESTS).is_file() else path
    parsed = None if columns or time_unit is not None else parse_log(path)
    if parsed is None:
        return _read_table(path, columns or {}, time_unit)
    data = {name: np.array([getattr(row, name) for row in parsed.rows]) for name in NUMBERS}
    log = _log_of(path, data, parsed.num_evictions, parsed.notes)
    return replace(log, inside=parsed.inside).skipping(sum(row.warm_up for row in parsed.rows))


def _read_table(path: Path, columns: Mapping[str, str], time_unit: str | None) -> ServedLog:
    """Read a table with one row per request."""
    source = SourceFile.open(path)
    found = _found(source, columns, time_unit)
    kinds, notes = _kinds(source, found, time_unit)
    types = {c.target: kinds.get(c.target, c.kind) for c in COLUMNS}
    data = source.columns([Column(name, target, types[target]) for target, name in found.items()])
    if not len(data["arrival_time"]):
        raise TraceFormatError(f"{source.path}: no rows; expected at least one request")
    ttft, e2e = (_since_arrival(data, kinds, *pair) for pair in _CHOICES)
    arrival = _seconds(data["arrival_time"] - data["arrival_time"].min(), kinds["arrival_time"])
    evictions = int(data["num_evictions"].sum()) if "num_evictions" in data else None
    times = {"arrival_time": arrival, "ttft": ttft, "e2e_latency": e2e}
    return _log_of(path, {**data, **times}, evictions, notes)


def _log_of(path: Path, data: Columns, num_evictions: int | None, notes: Sequence[str]) -> ServedLog:
    """Return a log of columns in file order; arrivals are in seconds of any clock.

    Raises:
        TraceFormatError: times contradict each other, or are not plausible.
    """
    ttft, e2e = data["ttft"], data["e2e_latency"]
    for bad, what in (
        (ttft < 0, "the first token comes before the arrival"),
        (e2e < ttft, "the request finishes before its first token"),
    ):
        if bad.any():
            row = int(np.argmax(bad))
            raise TraceFormatError(
                f"{path}, request {row + 1}: {what} ({int(bad.sum()):,} of {len(bad):,} requests): first token "
                f"{ttft[row]:+g} s, finish {e2e[row]:+g} s after it; times must be of one clock, and in the unit of "
                "their names (ttft_ms) or --time-unit, else in seconds"
            )
    start = data["arrival_time"] - data["arrival_time"].min()
    order = np.argsort(start, kind="stable")
    log = ServedLog(
        name=path.name,
        arrival_time=start[order],
        prompt_len=data["prompt_len"].astype(np.int64)[order],
        output_len=data["output_len"].astype(np.int64)[order],
        ttft=ttft[order],
        e2e_latency=e2e[order],
        num_evictions=num_evictions,
        notes=tuple(notes),
    )
    _check_times(log, path)
    return log


def trace_columns(columns: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a mapping that traces share: columns of requests, not of how they were served."""
    known = {*SHORT, *(c.target for c in OWN_COLUMNS)}
    return {key: name for key, name in columns.items() if key in known}


def _found(source: SourceFile, given: Mapping[str, str], time_unit: str | None) -> dict[str, str]:
    """Return the name of each column of a log by its target; of moment and span, the one present."""
    table = OwnTable(given, time_unit, COLUMNS, SERVED_ALIASES)
    found, problems = table.resolve(source.names)
    if problems:
        raise table.refusal(source)
    if "arrival_time" not in found:
        raise TraceFormatError(
            f"{source.path}: a log is replayed with its times, so arrival must name a column"
        )
    chosen = {c.target: found[c.target] for c in COLUMNS if c.required}
    for moment, span in _CHOICES:
        present = [name for name in (moment, span) if name in found]
        sure = [name for name in present if name in given] or [
            name for name in present if found[name] == name
        ]
        if len(sure or present) != 1:
            names = some(source.names) or "none"
            both = " and ".join(repr(found[name]) for name in present)
            problem = f"columns {both} are both there" if present else f"column {moment!r} is missing"
            raise TraceFormatError(
                f"{source.path}: {problem}; give either {moment} or {span} (since the arrival), or name the column: "
                f'--columns "{span}=NAME"; found {names}'
            )
        chosen |= {name: found[name] for name in sure or present}
    if "num_evictions" in found:
        chosen["num_evictions"] = found["num_evictions"]
    return chosen


def _kinds(
    source: SourceFile, found: Mapping[str, str], time_unit: str | None
) -> tuple[dict[str, str], list[str]]:
    """Return the kinds of the time columns by target, and notes on how ambiguous ones were read."""
    kinds, how = {}, {}
    for target, name in found.items():
        if target.endswith("_time"):
            kinds[target], how[target] = time_kind(name, source.first_value(name), time_unit)
        elif target not in ("prompt_len", "output_len", "num_evictions"):
            kinds[target] = named_unit(name) or UNITS.get(time_unit or "") or "seconds"
            how[target] = f"in {kinds[target]}"
    if WRITTEN in source.names:
        return kinds, [OWN_OUTPUT]
    notes = [] if all(t == name for t, name in found.items()) else [columns_note(found, source.names)]
    noted = {t: text for t, text in how.items() if t == "arrival_time" or kinds[t] != "seconds"}
    return kinds, [*notes, *(f"Times of {found[target]} are {text}." for target, text in noted.items())]


def _seconds(times: NDArray[Any], kind: str) -> Floats:
    return np.asarray(times / (1e9 if kind == "datetime" else PER_SECOND[kind]), np.float64)


def _since_arrival(data: Columns, kinds: Mapping[str, str], moment: str, span: str) -> Floats:
    """Return seconds since the arrival, from a log's moment or span."""
    if span in data:
        return _seconds(data[span], kinds[span])
    arrival, kind = data["arrival_time"], kinds["arrival_time"]
    if kinds[moment] == kind:
        return _seconds(data[moment] - arrival, kind)
    return _seconds(data[moment], kinds[moment]) - _seconds(arrival, kind)


def _check_times(log: ServedLog, path: Path) -> None:
    """Reject implausible times.

    Raises:
        TraceFormatError: tokens take too long, or answers came in one piece.
    """
    several = log.output_len > 1
    if not several.any():
        return
    typical = float(np.median(log.tbt[several]))
    if typical > SLOWEST_TOKEN:
        raise TraceFormatError(
            f"{path}: a token takes {typical:,.4g} s (median over requests); these look like milliseconds read "
            "as seconds: name the columns by their unit (ttft_ms), or give --time-unit ms"
        )
    if typical == 0:
        raise TraceFormatError(
            f"{path}: most requests finish at their first token although they have several; log the time of the "
            "first token of a streamed answer"
        )
