"""Trace formats, their detection, and the functions that read traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, TraceFormatError, shown, some
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_seed
from kvgym.utils.registry import Registry, load_plugins
from kvgym.workloads.layout import FEATURE_COLUMNS
from kvgym.workloads.limits import LengthLimits
from kvgym.workloads.table import RequestTable
from kvgym.workloads.traces.agents import TurnFormat, WekaFormat
from kvgym.workloads.traces.clock import AS_SECONDS, dated_kind
from kvgym.workloads.traces.conversations import (
    AgentFormat,
    ConversationFormat,
    Tokenizer,
    count_words,
)
from kvgym.workloads.traces.histories import with_histories
from kvgym.workloads.traces.own_table import OWN_COLUMNS, OwnTable, identity_notes
from kvgym.workloads.traces.sharing import join_columns
from kvgym.workloads.traces.source import SourceFile
from kvgym.workloads.traces.trace import NO_TIMES, Trace
from kvgym.workloads.traces.values import PER_SECOND, Column, Columns, to_seconds

WRITTEN = "num_evictions"
"""A column that only the ``requests.csv`` of a kvgym run has; its times are in seconds."""


@dataclass(frozen=True)
class TableFormat:
    """A format with one row per request; :func:`register_trace_format` adds one of your own.

    Attributes:
        name: its name.
        description: one line.
        columns: its columns; detection checks the required ones.
        zero: meaning of a length of 0, for the note on dropped rows.
        batched: whether arrivals are recorded in batches.
        own_clock: whether times are kept as written instead of counted from the first row.
        block: tokens of a hash, None if the format has no usual number.
    """

    name: str
    description: str
    columns: tuple[Column, ...]
    zero: str = "a prompt or output of length 0"
    batched: bool = False
    own_clock: bool = False
    block: int | None = None

    def matches(self, names: tuple[str, ...]) -> bool:
        """Return whether a file with these columns or keys has this format."""
        return all(c.source in names for c in self.columns if c.required)

    def fits(self, source: SourceFile) -> bool:
        """Return whether the times of a matching file fit this format: they are plain numbers, not dates."""
        clock = self._clock(source)
        return clock is None or dated_kind(source.first_value(clock.source)) is None

    def time_note(self, source: SourceFile) -> list[str]:
        """Return the note on the unit of times in a file of a detected format; empty if it is certain."""
        clock = self._clock(source)
        if clock is None:
            return []
        known = f"in {clock.kind}, as in format {self.name} (another unit: --time-unit s, ms, us or ns)"
        return [f"Times are {AS_SECONDS if self.own_clock else known}."]

    def _clock(self, source: SourceFile) -> Column | None:
        """Return the column of times that are numbers without a stated unit, None if there is none."""
        if self.own_clock and WRITTEN in source.names:
            return None
        times = (c for c in self.columns if c.target == "arrival_time" and c.kind in PER_SECOND)
        return next((c for c in times if c.source in source.names), None)

    def read(self, source: SourceFile, tokenizer: Tokenizer) -> tuple[Columns, list[str]]:
        """Return the columns in file order, times in seconds, and notes."""
        missing = [c.source for c in self.columns if c.required and c.source not in source.names]
        if missing:
            own = OwnTable()
            given = "" if own.matches(source.names) else f" and give {own.mapping_of(source.names)}"
            raise TraceFormatError(
                f"{source.path}: column {shown(missing[0])} is missing; found {some(source.names, 60) or 'none'}; "
                f"leave format {self.name} out{given}"
            )
        data = source.columns(self.columns)
        kinds = {c.target: c.kind for c in self.columns}
        if "arrival_time" in data:
            data["arrival_time"] = to_seconds(data["arrival_time"], kinds["arrival_time"])
        known = {c.source for c in self.columns}
        ignored = [name for name in source.names if name not in known]
        listed = [f"Ignored columns: {', '.join(ignored)}."] if ignored and self.own_clock else []
        return data, [*listed, *identity_notes(ignored)]


Format: TypeAlias = TableFormat | ConversationFormat | AgentFormat | TurnFormat | WekaFormat | OwnTable

FORMATS: Registry[Format] = Registry(
    "trace format",
    partial(load_plugins, "kvgym.trace_formats", "trace formats"),
    same=lambda new, old: new == old,  # a module that is run again
)
"""All formats, in the order in which detection tries them: kvgym's own before those of other distributions."""

for _format in (
    TableFormat(
        "kvgym",
        "own format, CSV, JSONL or Parquet: arrival_time (s), prompt_len, output_len, optional columns",
        OWN_COLUMNS,
        own_clock=True,
    ),
    TableFormat(
        "azure",
        "Azure LLM inference traces 2023 and 2024, CSV: TIMESTAMP, ContextTokens, GeneratedTokens",
        (
            Column("TIMESTAMP", "arrival_time", "datetime"),
            Column("ContextTokens", "prompt_len", "tokens"),
            Column("GeneratedTokens", "output_len", "tokens"),
        ),
    ),
    TableFormat(
        "burstgpt",
        "BurstGPT, CSV: Timestamp (s), Request tokens, Response tokens (0 = failed, dropped)",
        (
            Column("Timestamp", "arrival_time", "seconds"),
            Column("Request tokens", "prompt_len", "tokens"),
            Column("Response tokens", "output_len", "tokens"),
        ),
        zero="0 response tokens (a failed request) or 0 request tokens",
    ),
    TableFormat(
        "bailian",
        "Qwen-Bailian, JSONL: Mooncake's columns, but timestamp in s; chat_id, parent_chat_id, turn",
        (
            Column("timestamp", "arrival_time", "seconds"),
            Column("input_length", "prompt_len", "tokens"),
            Column("output_length", "output_len", "tokens"),
            Column("chat_id", "chat_id", "label"),
            Column("parent_chat_id", "parent_chat_id", "label"),
            Column("turn", "turn", "positive", required=False),
            Column("hash_ids", "hash_ids", "hashes", required=False),
        ),
        block=16,
    ),
    TurnFormat(
        "mooncake_sessions",
        "Mooncake with session_id, JSONL: a timestamp (ms), or a delay (ms) after the turn before; AIPerf",
    ),
    TableFormat(
        "mooncake",
        "Mooncake, JSONL: timestamp (ms, recorded in batches), input_length, output_length, hash_ids",
        (
            Column("timestamp", "arrival_time", "milliseconds"),
            Column("input_length", "prompt_len", "tokens"),
            Column("output_length", "output_len", "tokens"),
            Column("hash_ids", "hash_ids", "hashes", required=False),
        ),
        batched=True,
        block=512,
    ),
    TableFormat(
        "vidur",
        "Vidur's processed traces, CSV: num_prefill_tokens, num_decode_tokens, optional arrived_at (s)",
        (
            Column("arrived_at", "arrival_time", "seconds", required=False),
            Column("num_prefill_tokens", "prompt_len", "tokens"),
            Column("num_decode_tokens", "output_len", "tokens"),
        ),
    ),
    ConversationFormat(
        "sharegpt",
        "ShareGPT, JSON list: {from, value} turns; texts are tokenised, no arrival times",
        turns="conversations",
        role="from",
        text="value",
    ),
    ConversationFormat(
        "lmsys",
        "LMSYS-Chat-1M, JSONL or Parquet: {role, content} turns; texts are tokenised, no arrival times",
        turns="conversation",
        role="role",
        text="content",
    ),
    AgentFormat(
        "lmcache",
        "LMCache agent traces, JSONL or Parquet: session_id, input (messages), output_length, pre_gap; no times",
    ),
    WekaFormat("weka", "kv-cache-tester, AIPerf weka_trace, JSONL: conversations with subagents; no times"),
    OwnTable(),
):
    FORMATS.add(_format.name, _format)


@explained
def register_trace_format(
    name: str, description: str, columns: Mapping[str, str], *, kinds: Mapping[str, str] | None = None
) -> None:
    """Register a trace format with one row per request, in CSV, JSONL or Parquet.

    Commands detect it in files that have all its columns, and read it by name with ``--set trace_format=NAME``. Another
    distribution names the module that registers it as an entry point of the group ``kvgym.trace_formats``.

    Args:
        name: name of the format.
        description: one line for ``kvgym list traces``.
        columns: names in the file by column of kvgym's own format, at least ``"prompt_len"`` and ``"output_len"``,
            as in ``{"arrival_time": "started", "prompt_len": "tokens_in", "output_len": "tokens_out"}``.
        kinds: what values of a column are, where it is another kind than in kvgym's own format: for
            ``"arrival_time"`` ``"milliseconds"``, ``"microseconds"``, ``"nanoseconds"`` or ``"datetime"``.

    Raises:
        ConfigError: a name is taken, unknown or missing.
    """
    own, changed = {column.target: column for column in OWN_COLUMNS}, dict(kinds or {})
    for what, given in (("columns", columns), ("kinds", changed)):
        unknown = sorted(set(given) - set(own if what == "columns" else columns))
        if unknown:
            raise ConfigError(
                f"trace format {shown(name)}: {what} has {shown(unknown[0])}; valid are "
                f"{some(list(own if what == 'columns' else columns), 120)}"
            )
    missing = [target for target in ("prompt_len", "output_len") if target not in columns]
    if missing:
        raise ConfigError(
            f"trace format {shown(name)}: columns has no {missing[0]}; give its name in the file"
        )
    valid = (*PER_SECOND, "datetime")
    wrong = {
        target: kind for target, kind in changed.items() if target != "arrival_time" or kind not in valid
    }
    if wrong:
        raise ConfigError(
            f"trace format {shown(name)}: kinds has {shown(wrong)}; valid is arrival_time with one of "
            f"{', '.join(valid)}"
        )
    made = tuple(
        Column(source, target, changed.get(target, own[target].kind)) for target, source in columns.items()
    )
    FORMATS.add(name, TableFormat(name, description, made))


def trace_formats() -> dict[str, str]:
    """Return the one-line description of each format, by name."""
    return {name: FORMATS[name].description for name in FORMATS}


@explained
def load_trace(
    path: str | Path,
    format: str = "auto",  # noqa: A002
    *,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    tokenizer: Tokenizer = count_words,
    shared_prefix: int | None = None,
) -> Trace:
    """Read a trace file; the last trace is cached until its file changes.

    So a file is read once, although a scenario builds its workload several times, to describe and to run it. The
    arrays are read-only. With your own tokenizer the file is always read.

    Args:
        path: the file.
        format: a name of :func:`trace_formats`, or ``"auto"`` to detect it by content and column names.
        columns: the names in your own table of ``"arrival"``, ``"prompt"``, ``"output"`` and optional columns, see
            docs/traces.md.
        time_unit: unit of times that are numbers: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``.
        tokenizer: for formats with texts; the default counts words.
        shared_prefix: build block hashes from sessions and a system prompt of this many tokens, an approximation, see
            :mod:`kvgym.workloads.traces.histories`; None = only those of the file.

    Raises:
        TraceFormatError: the file is malformed; the message names line, column and what was expected.
        UnknownNameError: no format of this name.
        ConfigError: an unknown column or unit, column names for a format with fixed names, or ``shared_prefix`` for a
            file with block hashes.
    """
    global _last
    options = format, columns or {}, time_unit, shared_prefix
    key = _identity(path, *options) if tokenizer is count_words else None
    if key is not None and _last is not None and _last[0] == key:
        return _last[1]
    trace = _read(path, _chosen(format, columns or {}, time_unit), tokenizer)
    if shared_prefix is not None:
        trace = with_histories(trace, shared_prefix)
    for column in (trace.arrival_time, trace.prompt_len, trace.output_len, *trace.extra.values()):
        if isinstance(column, np.ndarray):
            column.setflags(write=False)
    if key is not None:
        _last = key, trace
    return trace


def detected_format(path: str | Path) -> str:
    """Return the name of the format that :func:`load_trace` detects; reads only the start of the file.

    Raises:
        TraceFormatError: unknown format.
    """
    return _detect(SourceFile.open(path)).name


_last: tuple[tuple[Any, ...], Trace] | None = None  # only one trace, as traces may be large


def _chosen(format: str, columns: Mapping[str, str], time_unit: str | None) -> Format | None:  # noqa: A002
    """Return the format that the arguments select, None to detect it."""
    if not columns and time_unit is None:
        return FORMATS[format] if format != "auto" else None
    if format not in ("auto", "table"):
        raise ConfigError(f"columns and time_unit are for your own tables; format {format} has fixed ones")
    return OwnTable(columns, time_unit)


def _identity(path: str | Path, *options: Any) -> tuple[Any, ...] | None:
    """Return the cache key of a file and the options to read it with, None if there is no such file."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    state = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return str(path), repr(options), *state


def _read(path: str | Path, chosen: Format | None, tokenizer: Tokenizer) -> Trace:
    source = SourceFile.open(path)
    how = "given" if chosen is not None else "detected"
    if chosen is None:
        chosen = _detect(source)
    data, notes = chosen.read(source, tokenizer)
    if how == "detected" and isinstance(chosen, TableFormat):
        notes += chosen.time_note(source)
    data, more = join_columns(data, source, chosen.block)
    notes += more
    num_rows = len(data["prompt_len"])
    sha256 = source.contents[0]
    has_times = "arrival_time" in data
    if not has_times:
        data["arrival_time"] = np.zeros(num_rows)
        notes.append(NO_TIMES)
    empty = (data["prompt_len"] == 0) | (data["output_len"] == 0)
    if num_rows == 0 or empty.all():
        found = f"all {num_rows:,} rows have {chosen.zero}" if num_rows else "no rows"
        raise TraceFormatError(f"{source.path}: {found}; expected at least one request")
    if empty.any():
        notes.append(f"{int(empty.sum()):,} of {num_rows:,} rows with {chosen.zero} were dropped.")
        data = {name: column[~empty] for name, column in data.items()}
    if np.any(np.diff(data["arrival_time"]) < 0):
        notes.append("The rows were not in order of time and have been sorted.")
        order = np.argsort(data["arrival_time"], kind="stable")
        data = {name: column[order] for name, column in data.items()}
    times = data.pop("arrival_time")
    if not chosen.own_clock:
        times = times - times[0]
    integers = {name: _to_int(name, column) for name, column in data.items()}
    apart = "" if source.delimiter == "," else f" with {source.delimiter!r} between fields"
    what = f"format {chosen.name} ({how}){apart}, sha256 {sha256[:12]}…"
    first = f"Read {num_rows:,} rows of {source.path.name}, {what}"
    return Trace(
        path=str(source.path),
        format=chosen.name,
        sha256=sha256,
        num_rows=num_rows,
        arrival_time=times,
        prompt_len=integers.pop("prompt_len"),
        output_len=integers.pop("output_len"),
        extra=integers,
        notes=(first, *notes),
        has_times=has_times,
        batched=chosen.batched,
    )


@explained
def read_trace(
    path: str | Path,
    format: str = "auto",  # noqa: A002
    *,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    tokenizer: Tokenizer = count_words,
    shared_prefix: int | None = None,
    rate_scale: float = 1.0,
    max_requests: int | None = None,
    start: float = 0.0,
    end: float | None = None,
    debatch: bool | None = None,
    limits: LengthLimits | None = None,
    seed: int = 0,
) -> RequestTable:
    """Read a trace file into a request table; its notes say what was detected, dropped and changed.

    Args:
        path: the file.
        format: as for :func:`load_trace`, like the next four.
        columns: names of columns.
        time_unit: unit of times that are numbers.
        tokenizer: for formats with texts.
        shared_prefix: tokens of a system prompt.
        rate_scale: factor of the arrival rate.
        max_requests: keep at most this many requests of the window.
        start: start of the window, seconds; it becomes time 0.
        end: end of the window, seconds, exclusive; None = the end of the trace.
        debatch: spread equal times over the gap to the next; None = only for formats that record batches.
        limits: bounds on the lengths, by clipping or dropping.
        seed: seed of the spreading.

    Raises:
        TraceFormatError: the file is malformed; the message names line, column and what was expected.
    """
    trace = load_trace(
        path, format, columns=columns, time_unit=time_unit, tokenizer=tokenizer, shared_prefix=shared_prefix
    )
    table = trace.to_table(
        rate_scale=rate_scale,
        max_requests=max_requests,
        start=start,
        end=end,
        debatch=debatch,
        rng=np.random.default_rng(check_seed(seed)),
    )
    return table if limits is None else limits.apply(table)


def _detect(source: SourceFile) -> Format:
    """Return the first format with matching columns and times; names alone do not determine the unit of times."""
    order = sorted(FORMATS, key=lambda name: name == OwnTable.name)  # any table comes last
    matching = [FORMATS[name] for name in order if FORMATS[name].matches(source.names)]
    fitting = (f for f in matching if not isinstance(f, TableFormat) or f.fits(source))
    if matching:
        return next(fitting, matching[0])
    raise OwnTable().refusal(source, "unknown format; ")


def _to_int(name: str, column: NDArray[Any]) -> NDArray[Any]:
    """Convert lengths and ids to int64; times, features and hashes stay as they are."""
    real = name in FEATURE_COLUMNS or name.endswith(("_slo", "_time", "hashes", "forecasts", "parents"))
    return column if real else column.astype(np.int64)
