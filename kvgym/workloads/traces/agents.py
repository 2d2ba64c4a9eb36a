"""Trace formats of agents: conversations with subagents, and turns with delays.

The fields are those of their sources: kv-cache-tester (docs/trace_replay_tester.md), and NVIDIA's AIPerf, which reads
the same files with its loaders ``weka_trace`` and ``mooncake_trace``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from kvgym.errors import TraceFormatError, shown
from kvgym.workloads.table import GAP_KINDS
from kvgym.workloads.traces.conversations import Tokenizer
from kvgym.workloads.traces.source import SourceFile
from kvgym.workloads.traces.values import KINDS, Columns, parse_value

USER, TOOL = (GAP_KINDS.index(kind) for kind in ("user", "tool"))

EARLY = 1e-6
"""Seconds by which a time may be early without being one on another clock."""


@dataclass
class _Call:
    """A call of a model in a conversation.

    Attributes:
        time: its beginning, seconds; after those of its parents.
        end: its recorded end, None if unknown.
        session: number of its agent.
        parents: the calls that have ended before it.
        record: its fields.
        think: its recorded delay, seconds, None if unknown.
        kind: what the time before it is, an index of :data:`~kvgym.workloads.table.GAP_KINDS`.
    """

    time: float
    end: float | None
    session: int
    parents: list[_Call]
    record: Mapping[str, Any]
    think: float | None
    kind: int

    def think_time(self) -> float:
        """Return the seconds from the last recorded end of its parents to its beginning, at least 0.

        Without recorded ends these are its own recorded delay, or the seconds from the beginning of the last parent.
        """
        if not self.parents:
            return 0.0
        ends = [parent.end for parent in self.parents if parent.end is not None]
        if not ends and self.think is not None:
            return self.think
        return max(0.0, self.time - max(ends or [parent.time for parent in self.parents]))


@dataclass(frozen=True)
class WekaFormat:
    """A format with one conversation of an agent per record, and the calls of its subagents in it.

    Calls of the main agent are a chain. A subagent's calls are another one, which begins when the main agent's call
    before it has ended; the first call of the main agent that was recorded after the subagent's end waits for it. One
    with the status ``async_launched`` runs in the background: nothing waits for it. Times are counted from the
    beginning of the conversation; within subagents some files count them from the beginning of the subagent instead.
    All conversations of a file are on the same clock: the second, if in any of them a subagent's call comes before it.

    Attributes:
        name: its name.
        description: one line.
    """

    name: str
    description: str
    batched: bool = False
    own_clock: bool = False
    block: int | None = None
    zero: str = "a prompt or output of length 0"

    def matches(self, names: tuple[str, ...]) -> bool:
        """Return whether a file with these keys has this format."""
        return {"requests", "block_size"} <= set(names)

    def read(self, source: SourceFile, tokenizer: Tokenizer) -> tuple[Columns, list[str]]:
        """Return the calls of all conversations one after the other, and notes."""
        if not self.matches(source.names):
            raise TraceFormatError(f"{source.path}: expected conversations with requests and block_size")
        records = list(source.rows("requests"))
        relative = any(_on_own_clock(source, place, record) for place, record in records)
        rows: dict[str, list[Any]] = {name: [] for name in _TARGETS}
        sessions = 0
        for job, (place, record) in enumerate(records):
            conversation = _Conversation(source, place, relative, sessions)
            calls = conversation.calls_of(record)
            sessions += conversation.sessions
            block = conversation.number(record, "block_size", "positive")
            if rows["hash_block"] and rows["hash_block"][0] != block:
                _fail(source, place, f"block_size {block:g} differs from {rows['hash_block'][0]:g} before")
            number = {id(call): len(rows["job_id"]) + k for k, call in enumerate(calls)}
            for call in calls:
                prompt, output = (conversation.number(call.record, key, "tokens") for key in ("in", "out"))
                ids = conversation.hashes(call.record)
                tokens = min(prompt, len(ids) * block)
                scoped = ids if record.get("hash_id_scope") == "global" else [(job, each) for each in ids]
                values = (
                    prompt, output, call.session, job, call.think_time(), call.kind,
                    sorted(number[id(parent)] for parent in call.parents),
                    scoped[: int(-(-tokens // block))], block, tokens,
                )  # fmt: skip
                for column, value in zip(rows.values(), values, strict=True):
                    column.append(value)
        about = "their subagent" if relative else "the conversation"
        notes = [f"Times of subagents' calls are counted from the beginning of {about}."]
        return _columns(rows), notes if sessions > len(records) else []


_TARGETS = (
    "prompt_len", "output_len", "session_id", "job_id", "think_time", "gap_kind", "parents", "hash_ids", "hash_block",
    "hash_tokens",
)  # fmt: skip


@dataclass
class _Conversation:
    """A conversation that is being read.

    Attributes:
        source: the file.
        place: where the conversation is in it.
        relative: whether times within subagents are counted from their beginnings.
        first: number of its main agent.
        sessions: agents so far.
        last: the last call of each subagent, by its id.
    """

    source: SourceFile
    place: str
    relative: bool
    first: int
    sessions: int = 1
    last: dict[Any, _Call] = field(default_factory=dict)

    def calls_of(self, record: Mapping[str, Any]) -> list[_Call]:
        """Return its calls in order of time, parents first."""
        calls: list[_Call] = []
        main: _Call | None = None
        running: list[tuple[float, _Call]] = []  # ends of subagents that the main agent waits for
        for entry in _entries(self.source, self.place, record):
            if entry.get("type") != "subagent":
                time = self.number(entry, "t", "seconds")
                over = [call for end, call in running if end <= time + EARLY]
                running = [(end, call) for end, call in running if end > time + EARLY]
                main = self._call(entry, time, self.first, [*([main] if main else []), *over])
                calls.append(main)
                continue
            inner = self._subagent(entry, main)
            calls += inner
            if inner and entry.get("status") != "async_launched":
                end = max(call.time if call.end is None else call.end for call in inner)
                running.append((end, inner[-1]))
        return sorted(calls, key=lambda call: call.time)  # stable, and no call is before its parents

    def _subagent(self, entry: Mapping[str, Any], main: _Call | None) -> list[_Call]:
        """Return the calls of a subagent; one that was called before continues its session."""
        begin = self.number(entry, "t", "seconds") if self.relative else 0.0
        calls: list[_Call] = []
        agent = entry.get("agent_id")
        for each in _entries(self.source, self.place, entry):
            time = begin + self.number(each, "t", "seconds")
            if not calls:
                last = self.last.get(agent)
                again = last is not None and last.time <= time
                parents = [*([main] if main else []), *([last] if again and last is not None else [])]
                session = last.session if again and last is not None else self.first + self.sessions
                self.sessions += not again
            else:
                parents = [calls[-1]]
            calls.append(self._call(each, time, session, parents))
        if calls and agent is not None:
            self.last[agent] = calls[-1]
        return calls

    def _call(self, record: Mapping[str, Any], time: float, session: int, parents: list[_Call]) -> _Call:
        time = max([time, *(parent.time for parent in parents)])
        took, think = (
            None if record.get(key) is None else self.number(record, key, "seconds")
            for key in ("api_time", "think_time")
        )
        tool = session != self.first or "tool_result" in (record.get("input_types") or ())
        tool = tool or bool(parents and parents[0].record.get("stop") == "tool_use")
        end = None if took is None else time + took
        return _Call(time, end, session, parents, record, think, TOOL if tool and parents else USER)

    def number(self, record: Mapping[str, Any], key: str, kind: str) -> Any:
        """Return a number of a record."""
        return _value(self.source, self.place, record, key, kind)

    def hashes(self, record: Mapping[str, Any]) -> list[Any]:
        """Return the block hashes of a call, none if it has no list of them."""
        ids = record.get("hash_ids")
        return list(_value(self.source, self.place, record, "hash_ids", "hashes")) if ids else []


def _on_own_clock(source: SourceFile, place: str, record: Mapping[str, Any]) -> bool:
    """Return whether a call of some subagent of a conversation comes before the subagent."""
    return any(
        _value(source, place, each, "t", "seconds") + EARLY < _value(source, place, entry, "t", "seconds")
        for entry in _entries(source, place, record)
        if entry.get("type") == "subagent"
        for each in _entries(source, place, entry)
    )


def _entries(source: SourceFile, place: str, record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the requests of a conversation or of a subagent."""
    entries = record.get("requests")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        _fail(source, place, "expected 'requests' with a list of objects, in subagents too")
    yield from entries


@dataclass(frozen=True)
class TurnFormat:
    """Mooncake's format with sessions: a turn per record, with a ``timestamp`` or a ``delay`` after the turn before.

    Attributes:
        name: its name.
        description: one line.
        block: usual number of tokens of a hash.
    """

    name: str
    description: str
    block: int | None = 512
    batched: bool = False
    own_clock: bool = False
    zero: str = "a prompt or output of length 0"

    def matches(self, names: tuple[str, ...]) -> bool:
        """Return whether a file with these columns or keys has this format."""
        return {"session_id", "input_length", "output_length"} <= set(names)

    def read(self, source: SourceFile, tokenizer: Tokenizer) -> tuple[Columns, list[str]]:
        """Return the turns in file order, and notes.

        A turn with a delay arrives in the open loop that time after the turn before it arrived.
        """
        if not self.matches(source.names):
            raise TraceFormatError(f"{source.path}: expected session_id, input_length and output_length")
        rows: dict[str, list[Any]] = {name: [] for name in _TURN_TARGETS}
        before: dict[Any, float] = {}
        delays = times = 0
        for place, record in source.rows(*_TURN_KEYS):
            at, delay = (
                None
                if record.get(key) in (None, "")
                else _value(source, place, record, key, "milliseconds") / 1000
                for key in ("timestamp", "delay")
            )
            if at is not None and delay is not None:
                _fail(
                    source,
                    place,
                    "timestamp and delay; expected one of them: a turn has a time, or follows another",
                )
            session = _value(source, place, record, "session_id", "label")
            if at is None and session not in before and times:
                _fail(
                    source,
                    place,
                    "no timestamp in the first turn of a session; give it in each first turn or in none",
                )
            delays, times = delays + (delay is not None), times + (at is not None)
            before[session] = time = before.get(session, 0.0) + (delay or 0.0) if at is None else at
            prompt, output = (
                _value(source, place, record, f"{end}put_length", "tokens") for end in ("in", "out")
            )
            ids = _value(source, place, record, "hash_ids", "hashes") if record.get("hash_ids") else []
            values = prompt, output, session, delay or 0.0, time, ids, prompt if len(ids) else 0
            for column, value in zip(rows.values(), values, strict=True):
                column.append(value)
        notes = []
        if delays and times:
            notes.append(
                "In the open loop, turns with a delay arrive that time after the turn before has arrived."
            )
        unused = ("think_time",) * (not delays) + ("arrival_time",) * (not times)
        return _columns({name: column for name, column in rows.items() if name not in unused}), notes


_TURN_KEYS = ("session_id", "input_length", "output_length", "timestamp", "delay", "hash_ids")
_TURN_TARGETS = (
    "prompt_len",
    "output_len",
    "session_id",
    "think_time",
    "arrival_time",
    "hash_ids",
    "hash_tokens",
)


def _columns(rows: Mapping[str, list[Any]]) -> Columns:
    """Return columns of lists; those of hashes are left out if no row has any."""
    lists = ("session_id", "hash_ids", "parents")
    hashes = any(rows["hash_ids"])
    data: Columns = {}
    for name, values in rows.items():
        if hashes or not name.startswith("hash_"):
            data[name] = np.empty(len(values), object if name in lists else np.float64)
            data[name][:] = values
    return data


def _value(source: SourceFile, place: str, record: Mapping[str, Any], key: str, kind: str) -> Any:
    """Return a value of a record, see :func:`~kvgym.workloads.traces.values.parse_value`."""
    try:
        return parse_value(record.get(key), kind)
    except ValueError:
        given = shown(record.get(key))
        _fail(source, place, f"key {shown(key)}: {given}; expected {KINDS[kind].expected}")


def _fail(source: SourceFile, place: str, problem: str) -> NoReturn:
    raise TraceFormatError(f"{source.path}, {place}: {problem}")
