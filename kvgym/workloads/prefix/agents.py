"""Synthetic agents: which turn of which session each arrival is, and what it waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from pydantic import Field

from kvgym.workloads.base import Spec


class Agents(Spec):
    """Agents that call others: after each of its turns but the last, an agent begins several agents at once.

    Attributes:
        children: agents that begin together.
        depth: levels of agents below the first; those of the last level begin none.
        join: whether the next turn waits for all of them; else they run in the background.
        mode: ``"spawn"``: they begin with a system prompt of their own, as sessions do; ``"fork"``: with all that was
            said in the session that has begun them.
    """

    children: int = Field(ge=1, le=1000)
    depth: int = Field(default=1, ge=1, le=8)
    join: bool = True
    mode: Literal["spawn", "fork"] = "spawn"


class Turn(NamedTuple):
    """A turn of an agent.

    Attributes:
        first: the request with which its session begins, -1 if it is this one.
        number: its number in the session, from 1.
        before: tokens in front of its own part; None: those with which a session begins.
        parents: the requests that it waits for, without the turn before.
        origin: the session that its first tokens are of, as its first request, -1 if it is its own.
    """

    first: int
    number: int
    before: int | None
    parents: tuple[int, ...]
    origin: int


Playing: TypeAlias = Generator[Turn, "int | None", "int | None"]
"""Offers turns; gets the request that takes one, or None if none can; returns the last request that did."""


@dataclass
class Jobs:
    """Jobs that take turns from requests.

    Attributes:
        agents: how agents begin others.
        numbers: turns of a session that begins with each request.
        own: tokens of the own part and the output of each request.
        front: tokens with which a session would begin, by request.
        most: most tokens of a turn.
        rows: for each request so far the first one of its session, its number in it, the tokens in front of its own
            part, the session that these begin with, and the first request of its job.
        parents: what each waits for, without the turn before.
    """

    agents: Agents
    numbers: Sequence[int]
    own: Sequence[int]
    front: Sequence[int]
    most: float
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    parents: list[tuple[int, ...]] = field(default_factory=list)

    def take(self, places: Sequence[int]) -> None:
        """Let each request take the next turn of the job at its place, or begin another one where that is over."""
        going: dict[int, tuple[int, Playing, Turn]] = {}
        for i, place in enumerate(places):
            job, playing, turn = going.pop(place, (-1, None, None))
            while playing is not None and turn is not None and self._too_long(i, turn):
                turn = _next(playing, None)
            if playing is None or turn is None:
                job, playing = i, self._play(self.agents.depth, -1, None, -1)
                turn = next(playing)
            before = self.front[i] if turn.before is None else turn.before
            first = i if turn.first < 0 else turn.first
            self.rows.append((first, turn.number, before, turn.origin, job))
            self.parents.append(turn.parents)
            if (following := _next(playing, i)) is not None:
                going[place] = job, playing, following

    def _too_long(self, i: int, turn: Turn) -> bool:
        return turn.before is not None and turn.before + self.own[i] > self.most

    def _play(self, depth: int, caller: int, before: int | None, origin: int) -> Playing:
        """Offer the turns of an agent and of those below it.

        Args:
            depth: levels below it.
            caller: the request that has begun it, -1 for the first agent.
            before: tokens that it has from there, None for none.
            origin: the session of that request, as its first request, -1 for none.
        """
        first, number = -1, 0
        waits: tuple[int, ...] = (caller,) if caller >= 0 else ()
        while first < 0 or number < self.numbers[first]:
            row = yield Turn(first, number + 1, before, waits, origin)
            if row is None:
                break
            if first < 0:
                first, before = row, self.front[row] if before is None else before
            assert before is not None
            last, before, number, waits = row, before + self.own[row], number + 1, ()
            if depth > 0 and number < self.numbers[first]:
                forks = self.agents.mode == "fork"
                begun = (before, first) if forks else (None, -1)
                ends = yield from _together(
                    [self._play(depth - 1, row, *begun) for _ in range(self.agents.children)]
                )
                waits = tuple(ends) if self.agents.join else ()
        return last if first >= 0 else None


def _together(agents: Sequence[Playing]) -> Generator[Turn, int | None, list[int]]:
    """Offer the turns of agents in rounds; return the last request of each that had any."""
    playing = deque((agent, next(agent)) for agent in agents)
    ends = []
    while playing:
        agent, turn = playing.popleft()
        row = yield turn
        try:
            playing.append((agent, agent.send(row)))
        except StopIteration as over:
            if over.value is not None:
                ends.append(over.value)
    return ends


def _next(playing: Playing, row: int | None) -> Turn | None:
    """Return the next turn, None if there is none."""
    try:
        return playing.send(row)
    except StopIteration:
        return None
