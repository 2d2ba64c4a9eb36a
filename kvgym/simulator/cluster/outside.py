"""Requests of a fleet that are outside of its workers: lost, refused or given up, and whether they arrive again.

A user goes away if the first token has not come within the patience. The request leaves its queue, or its batch, at
once; a batch that runs makes no token for it. A user may try again after going away, or being refused by the router;
the patience then starts again. A request that is lost with its worker arrives again without its user; the patience goes
on. A first token that comes at the very time of the patience is served.
"""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np

from kvgym.compiling.kernel import uncompiled
from kvgym.simulator.boundary import count_arrival, next_arrival_time, reveal_next, sessions_of
from kvgym.simulator.cluster.lacking import join_lacking, leave_lacking
from kvgym.simulator.cluster.losses import empty_worker, forget_source, leave_cluster, restart
from kvgym.simulator.cluster.luck import Crowd
from kvgym.simulator.cluster.tables import Cluster, open_cluster, run_of
from kvgym.simulator.fleet import Fleet
from kvgym.simulator.sessions import end_turn
from kvgym.simulator.tables import ABORTED, FAILED, OUTSIDE, SHED, UNKNOWN


class Outside:
    """The requests outside, and the users that wait.

    Args:
        simulation: the :class:`~kvgym.simulator.cluster.simulation.ClusterSimulation`.
        fleet: settings of its fleet.
        crowd: the users.

    Attributes:
        attempts: how often each request has come, int64 (n,).
        lost_tokens: KV tokens of requests that were lost.
    """

    def __init__(self, simulation: Any, fleet: Fleet, crowd: Crowd) -> None:
        n = len(simulation.requests)
        self._simulation, self._fleet, self._crowd = simulation, fleet, crowd
        self.attempts, self._tries = np.ones(n, np.int64), np.zeros(n, np.int64)
        self.lost_tokens = 0
        self._opened: tuple[Any, Cluster] | None = None
        self._returns: list[tuple[float, int, int]] = []  # heap of time, request and its attempt
        self._deadlines: list[tuple[float, int, int]] = []  # heap of time, request and the try of its user
        self._patience = crowd.patience(n)
        self._least = np.minimum.accumulate(self._patience[::-1])[::-1]  # of the requests from each one on
        self._known = 0  # requests with deadlines, as they have arrived
        first = [k for k, worker in enumerate(simulation.system.workers) if worker.role != "decode"]
        self._room = int(simulation.system.usable_capacities[first].min()) if fleet.keep_tokens else 0
        for name in ("lacking_head", "lacking_tail"):
            simulation.fleet_tracker[name] = UNKNOWN
        simulation.trips["since"], simulation.trips["source"] = math.nan, UNKNOWN
        simulation.fleet_tracker["leaving"] = self._next_deadline(0.0)

    @property
    def due(self) -> float:
        """When the next request arrives again; inf = none does."""
        while self._returns and not self._comes(*self._returns[0]):
            heapq.heappop(self._returns)
        return self._returns[0][0] if self._returns else math.inf

    def _comes(self, time: float, i: int, attempt: int) -> bool:
        return bool(self.attempts[i] == attempt and self._simulation.requests["status"][i] == OUTSIDE)

    def _tables(self) -> Cluster:
        """Return the tables; opening them takes longer than most uses of them."""
        addresses = self._simulation.addresses()
        if self._opened is None or self._opened[0] is not addresses:
            self._opened = addresses, tables_of(self._simulation)
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        """Drop the opened tables, which are views of the arrays of this run."""
        return {**vars(self), "_opened": None}

    # ------------------------------------------------------------ losses

    def lose(self, k: int) -> None:
        """Take all requests from worker ``k``, which stops now; they arrive again, or end."""
        c, time = self._tables(), self._clock
        lost = np.zeros(len(self.attempts), np.int64)
        count = uncompiled(empty_worker)(c, k, lost)
        for i in sorted(lost[:count].tolist()):
            self.lost_tokens += int(c.requests[i].num_kv_tokens)
            if self._fleet.on_loss == "fail":
                self._end(c, i, FAILED)
            else:
                c.workers[k].total_recomputed_tokens += uncompiled(restart)(c, i, self._room)
                self._come_again(c, i, time + self._fleet.retry_delay)

    def let_go(self, k: int) -> None:
        """Note that worker ``k`` has stopped with nothing lost."""
        if int(self._simulation.tracker[0]["transfer_head"]) != UNKNOWN:
            uncompiled(forget_source)(self._tables(), k, np.zeros(len(self.attempts), np.int64))

    def advance(self) -> None:
        """Let the requests that arrive again now lack a worker."""
        time = self._clock
        while self.due <= time:
            since, i, _ = heapq.heappop(self._returns)
            uncompiled(join_lacking)(self._tables(), i, since)

    def _come_again(self, c: Cluster, i: int, time: float) -> None:
        if c.requests[i].status != OUTSIDE:
            c.fleet[0].lacking += 1
        c.requests[i].status = OUTSIDE
        self.attempts[i] += 1
        heapq.heappush(self._returns, (time, i, int(self.attempts[i])))

    def _end(self, c: Cluster, i: int, status: int) -> None:
        if c.requests[i].status == OUTSIDE:
            c.fleet[0].lacking -= 1
        end_request(c, i, status)

    # ------------------------------------------------------------ users

    def refuse(self, i: int) -> None:
        """End request ``i``, which the router has just refused, unless its user tries again."""
        c = self._tables()
        if c.requests[i].status == OUTSIDE:
            uncompiled(leave_lacking)(c, i)
        else:
            uncompiled(count_arrival)(uncompiled(run_of)(c, 0))
        self._go_away(c, i, SHED)

    def leave(self) -> None:
        """Let the users go away that have waited for too long."""
        time, c = self._clock, self._tables()
        self._meet(time, c)
        while self._deadlines and self._deadlines[0][0] <= time:
            _, i, tries = heapq.heappop(self._deadlines)
            if self._waits(i, tries):
                self._give_up(c, i)
        self._simulation.fleet_tracker["leaving"] = self._next_deadline(time)

    def _meet(self, time: float, c: Cluster) -> None:
        """Note the deadlines of the users that have arrived; others that find no worker lack one from then on."""
        while c.fleet[0].open_first == 0 and (
            uncompiled(next_arrival_time)(c.problems[0], c.tracker, c.workload) <= time
        ):
            run = uncompiled(run_of)(c, 0)
            i = uncompiled(reveal_next)(run)
            c.requests[i].status = OUTSIDE
            c.fleet[0].lacking += 1
            uncompiled(join_lacking)(c, i, c.workload[i].arrival_time + c.problems[0].api_time)
            uncompiled(count_arrival)(run)
        for i in range(self._known, c.tracker.next_arrival):
            if self._patience[i] < math.inf:
                heapq.heappush(self._deadlines, (float(c.workload[i].arrival_time + self._patience[i]), i, 0))
        self._known = int(c.tracker.next_arrival)

    def _next_deadline(self, time: float) -> float:
        """Return when a user may give up next, after ``time``: one that waits, or the next that arrives."""
        while self._deadlines and not self._waits(*self._deadlines[0][1:]):
            heapq.heappop(self._deadlines)
        first = self._deadlines[0][0] if self._deadlines else math.inf
        if self._known == len(self._patience):
            return first
        arrival = float(self._simulation.workload["arrival_time"][self._known])
        following = (max(time, arrival) if arrival < math.inf else time) + float(self._least[self._known])
        return max(min(first, following), math.nextafter(time, math.inf))

    def _waits(self, i: int, tries: int) -> bool:
        r = self._simulation.requests[i]
        return bool(self._tries[i] == tries and r["status"] < ABORTED and math.isnan(r["first_token_time"]))

    def _give_up(self, c: Cluster, i: int) -> None:
        if not math.isnan(c.trips[i].since):
            uncompiled(leave_lacking)(c, i)
        uncompiled(leave_cluster)(c, i)
        self._go_away(c, i, ABORTED)

    def _go_away(self, c: Cluster, i: int, status: int) -> None:
        tries, time = int(self._tries[i]), self._clock
        self._tries[i] += 1  # so that no deadline of this try counts
        if not self._crowd.tries_again(i, tries):
            self._end(c, i, status)
            return
        if (had := uncompiled(restart)(c, i, 0)) > 0:
            c.workers[c.requests[i].worker].total_recomputed_tokens += had
        again = time + self._fleet.users.delay
        self._come_again(c, i, again)
        if self._patience[i] < math.inf:
            heapq.heappush(self._deadlines, (again + float(self._patience[i]), i, tries + 1))
        self.advance()
        tracker = self._simulation.fleet_tracker
        tracker["due"] = min(float(tracker["due"][0]), self.due)
        tracker["leaving"] = min(float(tracker["leaving"][0]), self._next_deadline(time))

    @property
    def _clock(self) -> float:
        return float(self._simulation.tracker[0]["clock"])


def tables_of(simulation: Any) -> Cluster:
    """Return the tables of a :class:`~kvgym.simulator.cluster.simulation.ClusterSimulation` for plain Python."""
    found: Cluster = uncompiled(open_cluster)(*simulation.addresses())
    return found


def refuse(simulation: Any, i: int) -> None:
    """End request ``i``, which the router of a cluster without a fleet has refused when it arrived."""
    c = tables_of(simulation)
    uncompiled(count_arrival)(uncompiled(run_of)(c, 0))
    end_request(c, i, SHED)


def end_request(c: Cluster, i: int, status: int) -> None:
    """Let request ``i`` end without being finished; in the closed loop the next turn of its session follows."""
    c.requests[i].status = status
    if len(c.turns):
        sessions = uncompiled(sessions_of)(uncompiled(run_of)(c, 0))
        uncompiled(end_turn)(sessions, c.problems[0], i, c.tracker.clock, c.tracker.next_arrival)
