"""Synthetic prefixes: requests that begin with system prompts and with what was said before in their session.

There are no tokens, only which beginnings are equal. The lengths of the workload are those of a request's own part;
what it shares comes in front of it. All draws are from streams of their own, so that arrivals and own lengths do not
change.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kvgym.errors import WorkloadError
from kvgym.utils.seeding import stream
from kvgym.workloads.base import MAX_TOKENS, Spec
from kvgym.workloads.graphs import Parents
from kvgym.workloads.hashes import BlockHashes, positions, renumber
from kvgym.workloads.lengths import AnyLength, ConstantLength, Tokens, draw_index
from kvgym.workloads.limits import note, shorten
from kvgym.workloads.prefix.agents import Agents, Jobs
from kvgym.workloads.table import GAP_KINDS, RequestTable

MAX_HASHES = 2**28
"""Most block hashes of a workload, about 1 GB; raise ``kvgym.workloads.prefix.prefixes.MAX_HASHES`` for more."""

_MAX_PREFIXES = 1_000_000  # of one level

_TOKENS, _CHOICE, _SESSION, _TURNS = 0, 1, 2, 3  # parts of "prefixes"; those of a level have its number, too
_KIND, _TIME = 0, 1  # parts of "thinking"


class Level(Spec):
    """Prefixes that many requests share, such as system prompts; with a level above, prefixes of each of its own.

    Attributes:
        count: number of different prefixes, below each one of the level above.
        tokens: length of a prefix, one draw for each; a number is a constant length.
        zipf: exponent of popularity: the k-th prefix is drawn with a weight of 1 / k^zipf; 0 = all alike.
    """

    count: int = Field(default=1, ge=1, le=_MAX_PREFIXES)
    tokens: Tokens | AnyLength
    zipf: float = Field(default=0.0, ge=0, le=100)

    @property
    def lengths(self) -> AnyLength:
        """The distribution of the length."""
        return ConstantLength(value=self.tokens) if isinstance(self.tokens, int) else self.tokens


class Gap(Spec):
    """Time between the end of a turn and the next turn of its session, lognormal.

    Attributes:
        kind: ``"user"``: a person reads and writes; ``"tool"``: a tool runs.
        share: share of the gaps, relative to the others.
        median: seconds.
        mean: seconds, at least the median; None = always the median.
    """

    kind: Literal["user", "tool"] = "user"
    share: float = Field(default=1.0, gt=0)
    median: float = Field(gt=0)
    mean: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Gap:
        if self.mean is not None and self.mean < self.median:
            raise ValueError(f"mean = {self.mean} is below median = {self.median}")
        return self

    def seconds(self, normal: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return times from standard normal draws."""
        spread = math.sqrt(2 * math.log((self.mean or self.median) / self.median))
        return np.asarray(self.median * np.exp(spread * normal), np.float64)


class Turns(Spec):
    """Sessions of several turns: a prompt begins with all prompts and outputs of its session before it.

    Every arrival is a turn of one of the open sessions, drawn at random; where one is over, it begins another. So the
    arrivals stay those of the workload.

    Attributes:
        number: turns of a session.
        open: sessions at a time.
        max_context: most tokens of a turn, prompt and output: the session ends before a turn with more, and a first
            turn with more is shortened, its prompt first; None = no bound.
        gaps: kinds of times between turns, for sessions in which a turn waits for the end of the previous one.
        agents: agents that call others, each a session; None = a session is one agent's. ``open`` are jobs, then.
    """

    number: Annotated[int, Field(ge=1)] | AnyLength
    open: int = Field(ge=1, le=1_000_000)
    max_context: int | None = Field(default=None, ge=2, le=MAX_TOKENS)
    gaps: tuple[Gap, ...] = Field(default=(), max_length=16)
    agents: Agents | None = None

    @property
    def numbers(self) -> AnyLength:
        """The distribution of the number of turns."""
        return ConstantLength(value=self.number) if isinstance(self.number, int) else self.number

    def bounded(self, table: RequestTable, shared: NDArray[np.int64]) -> RequestTable:
        """Return the requests, each with at most ``max_context`` tokens behind ``shared`` ones, int64 (n,)."""
        if self.max_context is None:
            return table
        room = self.max_context - shared
        over = int(np.count_nonzero(table.prompt_len + table.output_len > room))
        if over == 0:
            return table
        if room.min() < 2:
            raise WorkloadError(
                f"max_context = {self.max_context} has no room for a prompt and an output behind prefixes of "
                f"{shared.max()} tokens; choose a larger one"
            )
        prompt, output = shorten(table.prompt_len, table.output_len, room)
        notes = list(table.notes)
        note(
            notes,
            over,
            len(table),
            f"was shortened to a context of {self.max_context} tokens, the prompt first",
        )
        return table.replace(prompt_len=prompt, output_len=output, notes=tuple(notes))


class Prefixes(Spec):
    """What requests share: levels of prefixes, then the session, then the request's own part.

    Attributes:
        levels: prefixes, outermost first: system prompts, then for example users of each.
        turns: sessions; None = every request is alone.
        block: tokens of a hash. A block in which two requests part is not shared.
    """

    levels: tuple[Level, ...] = Field(default=(), max_length=8)
    turns: Turns | None = None
    block: int = Field(default=16, ge=1, le=MAX_TOKENS)

    @model_validator(mode="after")
    def _something(self) -> Prefixes:
        if not self.levels and self.turns is None:
            raise ValueError("nothing is shared: give levels or turns")
        if (count := math.prod(level.count for level in self.levels)) > _MAX_PREFIXES:
            raise ValueError(f"levels have {count:,} prefixes; at most {_MAX_PREFIXES:,} are allowed")
        return self

    def apply(self, table: RequestTable, seed: int) -> RequestTable:
        """Return the requests with what they share in front of their prompts.

        Args:
            table: requests in order of arrival; their prompts become their own parts.
            seed: seed of the run.
        """
        n = len(table)
        nodes, ends = self._paths(n, seed)
        if self.turns is not None:
            table = self.turns.bounded(table, ends[:, -1])
        first, turn, before, origin, columns = self._sessions(table, ends[:, -1], seed)
        prompt = before + table.prompt_len
        total = prompt + table.output_len
        if total.max(initial=0) > MAX_TOKENS:
            row = int(np.argmax(total > MAX_TOKENS))
            raise WorkloadError(
                f"prefixes: request {row} has {total[row]:,} tokens with its session; give turns a max_context"
            )
        if self.turns is not None:
            columns |= self._gaps(self.turns, first, turn, seed)
        root = first.copy()
        forked = np.flatnonzero((origin >= 0) & (turn == 1))
        for row in forked.tolist():  # a session that it began from is there before it
            root[row] = root[origin[row]]
        root = root[first]
        hashes = part_hashes(
            nodes[root], ends[root], first, total, self.block, (forked, origin[forked], before[forked])
        )
        return table.replace(prompt_len=prompt, hashes=hashes, **columns)

    def _paths(self, n: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the prefix of each level that a session would have if it began with each request, and their ends.

        Returns:
            Numbers of prefixes, int64 (n, levels), and tokens to their ends, from 0, int64 (n, 1 + levels).
        """
        nodes = np.zeros((n, len(self.levels)), np.int64)
        ends = np.zeros((n, 1 + len(self.levels)), np.int64)
        node = np.zeros(n, np.int64)
        count = 1
        for k, level in enumerate(self.levels):
            weights = np.arange(1, level.count + 1, dtype=np.float64) ** -level.zipf
            node = node * level.count + draw_index(weights, stream(seed, "prefixes", _CHOICE, k).random(n))
            count *= level.count
            nodes[:, k] = node
            tokens = level.lengths.sample(count, stream(seed, "prefixes", _TOKENS, k))
            ends[:, k + 1] = ends[:, k] + tokens[node]
        return nodes, ends

    def _sessions(
        self, table: RequestTable, shared: NDArray[np.int64], seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], dict[str, Any]]:
        """Return the turn that each request is.

        Returns:
            Its session as its first request, its number in it, the tokens in front of its own part, the session that
            these begin with (-1: its own), int64 (n,) each, and the columns of jobs.
        """
        n, turns = len(table), self.turns
        if turns is None:
            return np.arange(n), np.ones(n, np.int64), shared, np.full(n, -1), {}
        place = (stream(seed, "prefixes", _SESSION).random(n) * turns.open).astype(np.int64).tolist()
        numbers = turns.numbers.sample(n, stream(seed, "prefixes", _TURNS)).tolist()
        own, front, most = (
            (table.prompt_len + table.output_len).tolist(),
            shared.tolist(),
            turns.max_context or math.inf,
        )
        if turns.agents is not None:
            jobs = Jobs(turns.agents, numbers, own, front, most)
            jobs.take(place)
            drawn = np.array(jobs.rows, np.int64).reshape(n, 5)
            parents = Parents.from_rows(jobs.parents)
            return (
                drawn[:, 0],
                drawn[:, 1],
                drawn[:, 2],
                drawn[:, 3],
                {"job_id": drawn[:, 4], "parents": parents},
            )
        going: dict[int, tuple[int, int, int]] = {}  # first request, turns and tokens so far, by place
        rows = []
        for i in range(n):
            first, turn, before = going.get(place[i], (-1, 0, 0))
            if first < 0 or turn == numbers[first] or before + own[i] > most:
                first, turn, before = i, 0, front[i]
            rows.append((first, turn + 1, before))
            going[place[i]] = first, turn + 1, before + own[i]
        columns = np.array(rows, np.int64).reshape(n, 3)
        return columns[:, 0], columns[:, 1], columns[:, 2], np.full(n, -1), {}

    def _gaps(
        self, turns: Turns, first: NDArray[np.int64], turn: NDArray[np.int64], seed: int
    ) -> dict[str, NDArray[Any]]:
        """Return the columns of sessions."""
        columns: dict[str, NDArray[Any]] = {"session_id": first, "turn": turn}
        if turns.gaps:
            shares = np.array([gap.share for gap in turns.gaps])
            chosen = draw_index(shares, stream(seed, "thinking", _KIND).random(len(turn)))
            normal = stream(seed, "thinking", _TIME).standard_normal(len(turn))
            seconds = np.stack([gap.seconds(normal) for gap in turns.gaps])[chosen, np.arange(len(turn))]
            kinds = np.array([GAP_KINDS.index(gap.kind) for gap in turns.gaps])[chosen]
            columns["think_time"] = np.where(turn > 1, seconds, 0.0)
            columns["gap_kind"] = np.where(turn > 1, kinds, 0)
        return columns


def part_hashes(
    nodes: NDArray[np.int64],
    ends: NDArray[np.int64],
    first: NDArray[np.int64],
    total: NDArray[np.int64],
    block: int,
    forks: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> BlockHashes:
    """Return the hashes of requests that share prefixes and sessions, stored once for each session.

    A block belongs to the deepest part that has tokens in it: prefixes have those that are full at their ends.

    Args:
        nodes: the prefix of each level by number, int64 (n, levels); equal prefixes have equal ends.
        ends: tokens to the ends of the prefixes, from 0, int64 (n, 1 + levels).
        first: the session of each request, as its first request, int64 (n,).
        total: tokens that the hashes of each request cover, all of its session's up to there, int64 (n,).
        block: tokens of a hash.
        forks: sessions that begin with the tokens of another one, which is before them, as their first requests; those
            of the other ones; how many tokens; int64 (k,) each. Both have the same prefixes.

    Raises:
        WorkloadError: there would be more than :data:`MAX_HASHES`.
    """
    starts, session = np.unique(first, return_inverse=True)
    longest = np.zeros(len(starts), np.int64)
    np.maximum.at(longest, session, total)
    full = ends[starts] // block
    count = np.concatenate([np.diff(full, axis=1), (-(-longest // block) - full[:, -1])[:, None]], axis=1)
    if count.sum() > MAX_HASHES:
        raise WorkloadError(
            f"prefixes: {count.sum():,} hashes of {block} tokens; at most {MAX_HASHES:,} are allowed "
            "(kvgym.workloads.prefix.prefixes.MAX_HASHES); give a larger block or fewer requests"
        )
    base = np.empty_like(count)
    used = 0
    for k in range(count.shape[1]):  # numbers of the blocks of each part, equal where the part is
        same = nodes[starts, k] if k < nodes.shape[1] else np.arange(len(starts))
        _, one, inverse = np.unique(same, return_index=True, return_inverse=True)
        offset = np.cumsum(count[one, k]) - count[one, k]
        base[:, k] = used + offset[inverse]
        used += int(count[one, k].sum())
    _, position = positions(count.ravel())
    numbers = np.repeat(base.ravel(), count.ravel()) + position
    length = count.sum(axis=1)
    begin = np.cumsum(length) - length
    for one, other, tokens in zip(*forks, strict=True) if forks is not None else ():
        to, source = begin[session[one]], begin[session[other]]
        numbers[to : to + tokens // block] = numbers[source : source + tokens // block]
    chain, _ = renumber(numbers)
    return BlockHashes(chain, begin[session], total, block)
