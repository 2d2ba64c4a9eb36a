"""The states of the places of a fleet, and how they follow the targets of an autoscaler.

A worker is off, starting (billed, takes no requests), ready, draining (billed, serves what it has), or failed (not
billed, its place cannot be used until it is repaired). :meth:`Members.reconcile` compares each pool with its target.
Where workers are missing, it first cancels drains, the latest first, then starts places that are off, the lowest index
first, as far as the budget allows. Where there are too many, it first cancels starts, the latest to be ready first,
then drains ready workers with the fewest unfinished requests, of equal ones the highest index. It is called again
whenever something changes: a GPU is free, a worker has failed, an up-time has been reached.

Between pools of equal hardware workers may change their role, if the fleet has a time for that. Where one pool has too
many and another lacks some, ready workers drain as above, and each then starts at a place of the other pool, in the
time of a switch instead of a start. Its GPUs stay in use.

All of it is plain Python. Such changes are rare, some per minute of simulated time, and the compiled loop pauses for
them (:data:`~kvgym.simulator.tables.CHANGE`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.checked_build import guarded
from kvgym.simulator.fleet import Fleet

OFF, STARTING, UP, DRAINS, DOWN = 0, 1, 2, 3, 4
STATES = ("off", "starting", "ready", "draining", "failed")
"""Names of the states."""

MEMBER = np.dtype(
    [
        ("state", "i8"),
        ("ready_at", "f8"),  # when it is ready, or has become ready, s
        ("drained", "i8"),  # number of the drain, of those of all places
        ("starts", "i8"),  # orders to start so far
        ("bound", "i8"),  # while it drains: 1 + the pool that its worker changes to, 0 if to none
        ("lives", "i8"),  # times that it has become ready
        ("until", "f8"),  # when it fails, or is repaired, s; inf = never
        ("cut_at", "f8"),  # when its drain reaches its limit, s; inf = never
    ],
    align=True,
)
"""A place of a fleet."""


class Change(NamedTuple):
    """A place that has changed its state.

    Attributes:
        time: s.
        place: its index.
        state: the new state, see :data:`STATES`.
    """

    time: float
    place: int
    state: int


class Members:
    """The places of a fleet.

    Args:
        fleet: its settings.
        initial: workers of each pool that are ready at time 0.
        unfinished: returns the unfinished requests of a place, those on their way to it included.
        startup: returns the start-up time of a place, in seconds, from its index and the number of its start.
        life: returns the seconds from the start of a worker to its failure, from its place and the number of its life.
        lose: called with a place when all that it has is lost.
        kinds: the hardware of each pool, of which equal ones may exchange workers; empty = none do.

    Attributes:
        changes: all changes so far, in order; initially ready places first.
        targets: when targets changed, and the targets of the pools from then on.
    """

    def __init__(
        self,
        fleet: Fleet,
        initial: Sequence[int],
        unfinished: Callable[[int], int],
        startup: Callable[[int, int], float],
        life: Callable[[int, int], float],
        lose: Callable[[int], None],
        kinds: Sequence[int] = (),
    ) -> None:
        self.fleet, self._unfinished, self._startup = fleet, unfinished, startup
        self._life, self._lose = life, lose
        self._given = sorted(fleet.failures.at)
        self._exchanges = [
            (g, to) for g, to in itertools.permutations(range(len(kinds)), 2) if kinds[g] == kinds[to]
        ]
        self.places = guarded(np.zeros(fleet.num_places, MEMBER))
        self.places["until"] = self.places["cut_at"] = math.inf
        self.pool_of = np.array(fleet.pool_of)
        self.gpus = np.array([pool.gpus for pool in fleet.pools])[self.pool_of]
        self.changes: list[Change] = []
        self.targets: list[tuple[float, tuple[int, ...]]] = [(0.0, tuple(initial))]
        self._blocked = np.inf  # when the first worker that should drain may
        self._drains = 0
        for g, count in enumerate(initial):
            for k in np.flatnonzero(self.pool_of == g)[:count].tolist():
                self._enter(0.0, k, UP)

    @property
    def state(self) -> NDArray[np.int64]:
        """The state of each place, (r,)."""
        return np.asarray(self.places["state"])

    @property
    def target(self) -> tuple[int, ...]:
        """The present target of each pool."""
        return self.targets[-1][1]

    @property
    def in_use(self) -> int:
        """GPUs of starting, ready and draining workers."""
        return int(self.gpus[(self.state != OFF) & (self.state != DOWN)].sum())

    @property
    def due(self) -> float:
        """When a state changes next without a new target, unless a drain ends before; inf = never."""
        starting = self.places["ready_at"][self.state == STARTING]
        ends = min(self.places["until"].min(), self.places["cut_at"].min())
        given = self._given[0][0] if self._given else np.inf
        return float(min(starting.min(initial=np.inf), self._blocked, ends, given))

    @property
    def may_recover(self) -> bool:
        """Whether places that serve no requests now may do so later, without a new target."""
        waits = (self.state == STARTING) | (self.state == DOWN)
        return bool(waits.any() or self._blocked < np.inf)

    def set_targets(self, time: float, targets: Sequence[int]) -> None:
        """Set the target of each pool, clipped to its limits, and reconcile."""
        pools = self.fleet.pools
        wanted = tuple(
            min(max(int(t), pool.least), pool.most) for t, pool in zip(targets, pools, strict=True)
        )
        if wanted != self.target:
            self.targets.append((time, wanted))
        self.reconcile(time)

    def advance(self, time: float) -> None:
        """Change the states that change at ``time``, and reconcile.

        Drains that are over end; workers fail, drains reach their limit, places are repaired, and starts are complete.
        """
        self._end_drains(time)
        for k in self._failing(time):
            if self.state[k] in (UP, DRAINS):
                self._stop(time, k, DOWN)
        for k in np.flatnonzero(self.places["cut_at"] <= time).tolist():
            if self.state[k] == DRAINS:
                self._stop(time, k, OFF)
        for k in np.flatnonzero((self.state == DOWN) & (self.places["until"] <= time)).tolist():
            self._enter(time, k, OFF)
            self.reconcile(time)
        for k in np.flatnonzero((self.state == STARTING) & (self.places["ready_at"] <= time)).tolist():
            self._enter(time, k, UP)

    def _end_drains(self, time: float) -> None:
        for k in np.flatnonzero(self.state == DRAINS).tolist():
            if self._unfinished(k) == 0:
                self._enter(time, k, OFF)
        self.reconcile(time)

    def _failing(self, time: float) -> list[int]:
        """Return the places with a failure at ``time``, by index."""
        up = (self.state == UP) | (self.state == DRAINS)
        found = set(np.flatnonzero(up & (self.places["until"] <= time)).tolist())
        while self._given and self._given[0][0] <= time:
            found.add(self._given.pop(0)[1])
        return sorted(found)

    def _stop(self, time: float, k: int, state: int) -> None:
        """End a worker with all that it has; transfers that are lost with it may end drains of others."""
        self._enter(time, k, state)
        self._lose(k)
        self._end_drains(time)

    def reconcile(self, time: float) -> None:
        """Make the pools follow their targets as far as they can now.

        Nothing here calls it again: it repeats its passes while a drained idle worker frees its GPUs.
        """
        freed = True
        while freed:
            self._blocked = np.inf
            freed = self._exchange(time)
            for g, target in enumerate(self.target):
                mine, have = self.pool_of == g, self._have(g)
                if have < target:
                    self._raise(time, mine, target - have)
                elif have > target:
                    freed = self._lower(time, mine, have - target) or freed

    def _have(self, g: int) -> int:
        """Return the starting and ready workers of a pool, and those that change to it."""
        mine = (self.pool_of == g) & ((self.state == STARTING) | (self.state == UP))
        return int(mine.sum() + (self.places["bound"] == g + 1).sum())

    def _exchange(self, time: float) -> bool:
        """Let workers change to pools that lack some; return whether an idle one has done so at once."""
        freed = False
        for g, to in self._exchanges:
            mine, its = self.pool_of == g, self.pool_of == to
            self._cancel_drains(time, its, self.target[to] - self._have(to))
            surplus, missing = self._have(g) - self.target[g], self.target[to] - self._have(to)
            if surplus > 0 and missing > 0:
                free = int((its & (self.state == OFF)).sum() - (self.places["bound"] == to + 1).sum())
                freed = self._drain(time, mine, min(surplus, missing, free), to)[1] or freed
        return freed

    def _change(self, time: float, g: int) -> None:
        """Start a worker that has changed its role at the first free place of pool ``g``."""
        free = np.flatnonzero((self.pool_of == g) & (self.state == OFF))
        if len(free) > 0 and self.fleet.switch is not None:
            self.places["ready_at"][free[0]] = time + self.fleet.switch
            self._enter(time, int(free[0]), STARTING)

    def _raise(self, time: float, mine: NDArray[np.bool_], missing: int) -> None:
        missing -= self._cancel_drains(time, mine, missing)
        for k in np.flatnonzero(mine & (self.state == OFF))[:missing].tolist():
            if self.in_use + self.gpus[k] > self.fleet.limit:
                return
            self.places["ready_at"][k] = time + self._startup(k, int(self.places["starts"][k]))
            self.places["starts"][k] += 1
            self._enter(time, k, STARTING)

    def _lower(self, time: float, mine: NDArray[np.bool_], surplus: int) -> bool:
        """Stop ``surplus`` workers of a pool; return whether an idle one is off at once."""
        ready_at, freed = self.places["ready_at"], False
        coming = np.flatnonzero(self.places["bound"] == self.pool_of[np.argmax(mine)] + 1)
        for k in coming[np.argsort(-self.places["drained"][coming])][:surplus].tolist():
            self.places["bound"][k] = 0
            surplus -= 1
        starting = np.flatnonzero(mine & (self.state == STARTING)).tolist()
        for k in sorted(starting, key=lambda k: (-ready_at[k], -k))[:surplus]:
            self._enter(time, k, OFF)
            surplus, freed = surplus - 1, True
        drained, off = self._drain(time, mine, surplus)
        if (
            surplus > drained
        ):  # the same expression as there: another one may differ by one bit, and stand still
            least = self.fleet.pools[self.pool_of[np.argmax(mine)]].min_uptime
            up = np.flatnonzero(mine & (self.state == UP)).tolist()
            later = [ready_at[k] + least for k in up if not time >= ready_at[k] + least]
            self._blocked = min(self._blocked, *later)
        return freed or off

    def _drain(
        self, time: float, mine: NDArray[np.bool_], count: int, to: int | None = None
    ) -> tuple[int, bool]:
        """Drain workers of a pool that may, those with the fewest requests; return how many, and whether one is off.

        Args:
            time: s.
            mine: the places of the pool, (r,).
            count: the most.
            to: the pool that they change to; None = they stop.
        """
        up, freed = np.flatnonzero(mine & (self.state == UP)).tolist(), False
        least = self.fleet.pools[self.pool_of[np.argmax(mine)]].min_uptime
        allowed = [k for k in up if time >= self.places["ready_at"][k] + least]
        chosen = sorted(allowed, key=lambda k: (self._unfinished(k), -k))[:count]
        for k in chosen:
            self._drains += 1
            self.places["drained"][k] = self._drains
            self._enter(time, k, DRAINS)
            self.places["bound"][k] = 0 if to is None else to + 1
            if self._unfinished(k) == 0:
                self._enter(time, k, OFF)
                freed = True
        return len(chosen), freed

    def _cancel_drains(self, time: float, mine: NDArray[np.bool_], missing: int) -> int:
        """Cancel drains of a pool, the latest first, at most ``missing``; return how many."""
        draining = np.flatnonzero(mine & (self.state == DRAINS))
        latest = draining[np.argsort(-self.places["drained"][draining])][: max(0, missing)].tolist()
        for k in latest:
            self._enter(time, k, UP)
        return len(latest)

    def _enter(self, time: float, k: int, state: int) -> None:
        bound, self.places["bound"][k] = int(self.places["bound"][k]), 0
        place = self.places[k]
        drained = place["state"] == DRAINS
        place["state"], place["cut_at"] = state, math.inf
        if state == UP and not drained:
            place["until"] = time + self._life(k, int(place["lives"]))
            place["lives"] += 1
        elif state == DRAINS:
            limit = self.fleet.pools[self.pool_of[k]].drain_limit
            place["cut_at"] = math.inf if limit is None else time + limit
        elif state == DOWN:
            place["until"] = time + self.fleet.failures.repair
        elif state != UP:
            place["until"] = math.inf
        self.changes.append(Change(time, k, state))
        if state == OFF and bound > 0:
            self._change(time, bound - 1)


def seconds_in(
    changes: Sequence[Change], places: int, time: float, states: Sequence[int]
) -> NDArray[np.float64]:
    """Return the seconds until ``time`` that each place has spent in some states, (places,)."""
    found, since, within = np.zeros(places), np.zeros(places), np.zeros(places, np.bool_)
    for at, k, state in changes:
        if within[k]:
            found[k] += at - since[k]
        since[k], within[k] = at, state in states
    found[within] += np.maximum(0.0, time - since[within])
    return found
