"""How a run of a cluster follows its fleet: places open and close, requests move or are lost, autoscalers are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.checked_build import guarded
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import ConfigError, InvalidDecisionError, LivelockError, shown
from kvgym.simulator.cluster.fleet_view import Ahead, Counts, FleetView, counts_of, wanted
from kvgym.simulator.cluster.knowing import forget_worker
from kvgym.simulator.cluster.luck import DRAWN, Luck
from kvgym.simulator.cluster.members import DOWN, DRAINS, OFF, STARTING, UP, Change, Members, seconds_in
from kvgym.simulator.cluster.outside import Outside, refuse
from kvgym.simulator.cluster.router_view import PREFILL_ONLY, REJECT
from kvgym.simulator.cluster.tables import FLEET, TRIP, open_cluster
from kvgym.simulator.cluster.transfers import move
from kvgym.simulator.fleet import Fleet
from kvgym.simulator.prefix.empty import clear_caches
from kvgym.simulator.system import System
from kvgym.simulator.tables import CHANGE, CLOSED, CONTROL, DRAINING, LEAVE, MOVE, OK, OPEN, REFUSED, UNKNOWN
from kvgym.utils.user_code import calling

_OPENING = {OFF: CLOSED, STARTING: CLOSED, UP: OPEN, DRAINS: DRAINING, DOWN: CLOSED}

MOST_IDLE = 10_000
"""Questions in a row at which nothing runs, starts or arrives, after which a run is declared a livelock."""

MOST_FAILURES = 1_000
"""Failures in a row between which no user gets a token, after which a run is declared a livelock."""


class AutoscalerLike(Protocol):
    """The interface of autoscalers that a fleet needs; :class:`kvgym.policies.scaling.Autoscaler` has it."""

    @property
    def info(self) -> Any:
        """Name and description."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """What it observes beyond counters of the workers."""
        ...

    def initial(self, fleet: Fleet) -> Sequence[int]:
        """Return the workers of each pool that are ready at the start."""
        ...

    def next_time(self, time: float) -> float:
        """Return when it is asked next, after ``time``; inf = never."""
        ...

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return a target for each pool."""
        ...


@dataclass(frozen=True)
class Scaling:
    """How a fleet is scaled in a run.

    Attributes:
        autoscaler: already reset for the run; None = the workers of the start stay.
        luck: what is drawn.
        renew: prepares the policy of a worker that has started again, given its place and the number of its life,
            and returns it; None = policies stay as they are.
        ahead: all arrivals, for autoscalers that need ``"arrivals_ahead"``.
        pauses: whether the run pauses when the autoscaler is due, for targets from outside, instead of asking it.
    """

    autoscaler: AutoscalerLike | None
    luck: Luck
    renew: Callable[[int, int], Any] | None = None
    ahead: Ahead | None = None
    pauses: bool = False

    @classmethod
    def fixed(cls, fleet: Fleet) -> Scaling:
        """Return how a fleet is scaled that nothing else is known of."""
        return cls(None, Luck(fleet, {name: np.random.SeedSequence(0) for name in DRAWN}))


@dataclass(frozen=True)
class FleetRecord:
    """What a fleet did in a run.

    Attributes:
        fleet: its settings.
        changes: all changes of places, in order; initially ready ones first.
        targets: when targets changed, and the targets of the pools from then on.
        end: when the run ended, seconds; workers are billed until then.
        attempts: how often the requests came that came more than once, with their ids.
        lost_tokens: KV tokens of requests that were lost with their workers.
    """

    fleet: Fleet
    changes: tuple[Change, ...]
    targets: tuple[tuple[float, tuple[int, ...]], ...]
    end: float
    attempts: tuple[tuple[int, int], ...] = ()
    lost_tokens: int = 0

    def gpu_seconds(self) -> NDArray[np.float64]:
        """Return the billed GPU-seconds of each place, (r,): from the order to start until it is off, or the end."""
        gpus = np.array([self.fleet.pools[g].gpus for g in self.fleet.pool_of])
        return gpus * self.seconds_in(STARTING, UP, DRAINS)

    def seconds_in(self, *states: int) -> NDArray[np.float64]:
        """Return the seconds that each place spent in some states, (r,)."""
        return seconds_in(self.changes, self.fleet.num_places, self.end, states)


def fleet_tables(system: System, requests: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the tables ``open_places``, ``fleet_tracker`` and ``trips`` of a cluster; empty without a fleet."""
    if system.fleet is None:
        return np.zeros(0, np.uint8), np.zeros(0, FLEET), np.zeros(0, TRIP)
    return np.zeros(len(system.workers), np.uint8), np.zeros(1, FLEET), np.zeros(requests, TRIP)


def settle_pause(simulation: Any, question: int) -> bool:
    """Do what the loop of a cluster has paused for, unless it is for its policies or its router; return whether so."""
    if simulation.changing_fleet is not None:
        return bool(simulation.changing_fleet.answer(question))
    if question == REFUSED:
        refuse(simulation, int(simulation.tracker[0]["error_request"]))
    return question == REFUSED


class Changing:
    """The fleet of a run.

    Args:
        simulation: the :class:`~kvgym.simulator.cluster.simulation.ClusterSimulation`.
        fleet: its settings.
        scaling: how it is scaled.
    """

    def __init__(self, simulation: Any, fleet: Fleet, scaling: Scaling) -> None:
        self._simulation, self._scaling = simulation, scaling
        autoscaler = scaling.autoscaler
        initial: Sequence[int] = [pool.count for pool in fleet.pools]
        if autoscaler is not None:
            with calling(autoscaler, "autoscaler", "initial"):
                initial = self._checked(autoscaler.initial(fleet), len(fleet.pools))
        initial = [min(n, pool.most) for n, pool in zip(initial, fleet.pools, strict=True)]
        used = sum(n * pool.gpus for n, pool in zip(initial, fleet.pools, strict=True))
        if used > fleet.limit:
            raise ConfigError(
                f"{used} GPUs at the start of a fleet with a budget of {fleet.budget}; expected at most that"
            )
        luck = scaling.luck
        self.outside = Outside(simulation, fleet, luck.crowd)
        self.members = Members(
            fleet,
            initial,
            self._unfinished,
            luck.startup,
            luck.life,
            self.outside.lose,
            fleet.kinds(simulation.system.workers),
        )
        self._lives, self._idle = [0] * fleet.num_places, 0
        self._before = self._present = Counts()
        self._failures, self._served = 0, 0  # since the users have that many tokens
        self._first, self._second = (
            np.array([worker.role != other for worker in simulation.system.workers])
            for other in ("decode", "prefill")
        )
        simulation.fleet_tracker["control"] = np.inf if autoscaler is None else self._next_time(-np.inf)
        self._follow(0)

    def _unfinished(self, k: int) -> int:
        """Return the unfinished requests of a place; a method, so that copies of a run have their own."""
        return int(self._simulation.workers["outstanding_requests"][k])

    def record(self) -> FleetRecord:
        """Return what the fleet has done so far."""
        m = self.members
        end = float(self._simulation.tracker[0]["clock"])
        attempts = self.outside.attempts
        again = tuple((i, int(attempts[i])) for i in np.flatnonzero(attempts > 1).tolist())
        return FleetRecord(m.fleet, tuple(m.changes), tuple(m.targets), end, again, self.outside.lost_tokens)

    def answer(self, question: int) -> bool:
        """Do what the loop has paused for; return whether the run goes on, or waits for its router or for targets."""
        if question == CHANGE:
            self.change()
        elif question == CONTROL and not self._scaling.pauses:
            self.control()
        elif question == LEAVE:
            self.outside.leave()
        elif question == REFUSED:
            self.outside.refuse(int(self._simulation.tracker[0]["error_request"]))
        else:
            return False
        return True

    def change(self) -> None:
        """Let places change their states now, and requests arrive again."""
        known = len(self.members.changes)
        self.members.advance(float(self._simulation.tracker[0]["clock"]))
        self.outside.advance()
        self._check_failures(self.members.changes[known:])
        self._follow(known)

    def control(self) -> None:
        """Ask the autoscaler for targets and let the places follow them.

        Raises:
            InvalidDecisionError: it does not return a whole number for each pool.
            LivelockError: it leaves requests without workers for ever.
        """
        autoscaler, view = self._scaling.autoscaler, self.view()
        assert autoscaler is not None
        with calling(autoscaler, "autoscaler", "scale"):
            answer = autoscaler.scale(view)
        self.follow_targets(view, answer)

    @property
    def lacks_targets(self) -> bool:
        """Whether the run has stopped for targets from outside, which :meth:`follow_targets` takes."""
        simulation = self._simulation
        now = simulation.tracker[0]["clock"]
        return self._scaling.pauses and bool(simulation.fleet_tracker["control"][0] <= now)

    def view(self) -> FleetView:
        """Return what an autoscaler observes now."""
        autoscaler = self._scaling.autoscaler
        needs = frozenset() if autoscaler is None else autoscaler.needs
        return FleetView(self._simulation, self.members, self._before, needs, self._scaling.ahead)

    def follow_targets(self, view: FleetView, answer: Any) -> None:
        """Let the places follow targets.

        Args:
            view: of this moment.
            answer: a target for each pool.

        Raises:
            InvalidDecisionError: they are not a whole number for each pool.
            LivelockError: they leave requests without workers for ever.
        """
        members, known = self.members, len(self.members.changes)
        members.set_targets(view.time, self._checked(answer, len(members.fleet.pools)))
        now = counts_of(self._simulation)
        self._check_progress(now)
        self._before, self._present = view.counts, now
        self._simulation.fleet_tracker["control"] = self._next_time(view.time)
        self._follow(known)

    def _checked(self, answer: Any, pools: int) -> tuple[int, ...]:
        try:
            found = wanted(answer)
        except Exception:  # user code may return anything
            found = ()
        if len(found) != pools:
            name = shown(self._scaling.autoscaler.info.name) if self._scaling.autoscaler else "?"
            raise InvalidDecisionError(
                f"autoscaler {name} returned {shown(answer)}; expected a whole number of workers for each of the "
                f"{pools} pools"
            )
        return found

    def _next_time(self, time: float) -> float:
        autoscaler = self._scaling.autoscaler
        assert autoscaler is not None
        with calling(autoscaler, "autoscaler", "next_time"):
            found = float(autoscaler.next_time(time))
        if not found > time:
            raise InvalidDecisionError(
                f"autoscaler {shown(autoscaler.info.name)} would be asked again at {found} s; expected a time after "
                f"{time} s"
            )
        return found

    def _check_progress(self, now: Counts) -> None:
        workers, before = self._simulation.workers, self._present
        same = (now.arrivals, now.completions, now.output_tokens) == (
            before.arrivals, before.completions, before.output_tokens,
        )  # fmt: skip
        coming = now.arrivals < len(self._simulation.workload)
        starts = self.members.may_recover or self.outside.due < np.inf
        quiet = same and not coming and not workers["num_active"].any() and not starts
        self._idle = self._idle + 1 if quiet else 0
        if self._idle > MOST_IDLE and self._scaling.autoscaler is not None:
            raise LivelockError(
                f"autoscaler {shown(self._scaling.autoscaler.info.name)} has been asked {MOST_IDLE} times while "
                f"requests lacked a worker and nothing ran or started (t = {now.time:.6g} s); its targets are "
                f"{list(self.members.target)}"
            )

    def _check_failures(self, changes: Sequence[Change]) -> None:
        failed = sum(change.state == DOWN for change in changes)
        if failed == 0:
            return
        served = int(self._simulation.workers["total_delivered_tokens"].sum())
        self._failures = failed + (self._failures if served == self._served else 0)
        self._served = served
        if self._failures > MOST_FAILURES:
            raise LivelockError(
                f"workers have failed {MOST_FAILURES} times since a user got a token (t = {changes[-1].time:.6g} s, "
                f"mtbf = {self.members.fleet.failures.mtbf:g} s); requests take longer than workers live"
            )

    # ------------------------------------------------------------ following

    def _follow(self, known: int) -> None:
        """Make the tables of the run agree with the states of places, of which all after ``known`` are new."""
        simulation, members = self._simulation, self.members
        new = members.changes[known:]
        for change in new:
            if change.state in (OFF, DOWN):
                self.outside.let_go(change.place)
                self._clear(change.place)
            elif change.state == UP and simulation.open_places[change.place] != DRAINING:
                self._begin_life(change.place)
            simulation.open_places[change.place] = _OPENING[change.state]
        tracker, is_open = simulation.fleet_tracker, simulation.open_places == OPEN
        tracker["open_first"], tracker["open_decode"] = (
            int((is_open & self._first).sum()),
            int((is_open & self._second).sum()),
        )
        tracker["due"] = min(members.due, self.outside.due)
        for change in new:
            k = change.place
            pool = members.fleet.pools[members.pool_of[k]]
            if (
                change.state == DRAINS
                and members.state[k] == DRAINS
                and pool.drain == "requeue"
                and self._first[k]
            ):
                self._requeue(k)

    def _begin_life(self, k: int) -> None:
        self._lives[k] += 1
        forget_worker(self._simulation, k)
        if self._lives[k] > 1 and self._scaling.renew is not None:
            self._simulation.renew_policy(k, self._scaling.renew(k, self._lives[k] - 1))

    def _clear(self, k: int) -> None:
        """Empty the prefix cache of a place that is off."""
        s = self._simulation
        if s.system.prefix_unit == 0:
            return
        if s.changed.shape[-1]:
            s.changed[k, s.contents["unit"][k] != UNKNOWN] = s.tracker[0]["clock"]
        s.units[k, : int(s.pool["num_rows"][k])] = np.zeros((), s.units.dtype)
        s.pool[k] = np.zeros((), s.pool.dtype)
        clear_caches({"pool": s.pool[k : k + 1], "contents": s.contents[k : k + 1]}, None)
        s.workers["kv_cached"][k] = 0

    def _requeue(self, k: int) -> None:
        """Route the waiting requests of a draining worker again, while another takes them."""
        s = self._simulation
        open_decode = int(s.fleet_tracker["open_decode"][0])
        s.fleet_tracker["open_decode"] = 0  # the question is not about a request that is handed over
        while s.fleet_tracker["open_first"][0] > 0 and s.workers["num_waiting"][k] > 0:
            i = int(s.workers["queue_head"][k])
            s.tracker["request"] = i
            answer = s.consult_router(s.cluster_view)
            s.tracker["request"], s.tracker["num_asked"] = UNKNOWN, 0
            if answer == REJECT and s.tracker[0]["sheds"]:
                break
            target = answer % PREFILL_ONLY
            if not (0 <= target < len(s.workers) and s.open_places[target] == OPEN):
                raise InvalidDecisionError(
                    f"router {shown(s.router.info.name)} sends request {i} to worker {target}, which takes no requests"
                )
            if s.problem[0]["keep_log"] and int(s.tracker[0]["num_moves"]) >= len(s.moves):
                s.moves = guarded(np.concatenate([s.moves, np.zeros(max(1, len(s.moves)), MOVE)]))
                s.forget_addresses()
            cluster = uncompiled(open_cluster)(*s.addresses())
            if uncompiled(move)(cluster, i, target) != OK:
                break  # it would go to a worker of another role, and stays
        s.fleet_tracker["open_decode"] = open_decode
