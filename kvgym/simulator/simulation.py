"""Python interface to runs of one worker: owns the tables, steps or runs to the end, explains failures."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.checked_build import CHECKED, check, guarded, watched
from kvgym.compiling.kernel import Kernel, uncompiled
from kvgym.compiling.pointers import runs_compiled
from kvgym.compiling.records import as_records
from kvgym.errors import ConfigError, InvalidDecisionError, KVGymError, LivelockError, shown
from kvgym.simulator import loop
from kvgym.simulator.batch_time import duration_error, params_of
from kvgym.simulator.beginning import tables_at_first
from kvgym.simulator.boundary import RUN_TABLES, Run
from kvgym.simulator.decision import STATUS_NAMES, Decision, described_lengths, enter_decision
from kvgym.simulator.policy_interface import PolicyDecision, PolicyMemory, check_memories, check_room
from kvgym.simulator.recording.progress import in_slices
from kvgym.simulator.system import System
from kvgym.simulator.tables import (
    ACTIVE,
    BAD_ADMIT,
    BAD_EVICT,
    BAD_TOKENS,
    BAD_WAIT,
    BUDGET,
    DEADLOCK,
    DECIDE,
    DONE,
    HORIZON,
    ITERATION,
    LOG_FULL,
    MOVE,
    NO_MEMORY,
    OK,
    STALLED,
    TOO_MANY,
    UNKNOWN,
    WAITING,
)
from kvgym.simulator.tiers.kernel import connect_tiers
from kvgym.simulator.view import SystemView
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_flag
from kvgym.utils.user_code import calling
from kvgym.workloads.table import RequestTable

_tables_of = operator.attrgetter(*RUN_TABLES)
_MARGIN_ADVICE = "If it evicts and readmits the same requests for ever, it needs a larger protection margin."


class Simulation:
    """One run of one worker over a request table; for several workers see :class:`ClusterSimulation`.

    Use :func:`kvgym.simulate` to run a policy to the end. Step by step: :meth:`start`, then
    :meth:`step` with a :class:`~kvgym.simulator.decision.Decision` chosen from :attr:`view`, while they return True.

    Args:
        system: the worker and its settings.
        table: the requests.
        needs: what the policy may observe, see :data:`kvgym.policies.policy.NEEDS`.
        policy_name: name of the policy in messages.
        log: keep a row per iteration.
        compiled: run compiled code; False runs the same functions as plain Python.
        seed: of the drafts that are right, with speculation.
    """

    problem: NDArray[Any]
    tracker: NDArray[Any]
    workers: NDArray[Any]
    decision: NDArray[Any]
    load: NDArray[Any]
    workload: NDArray[Any]
    requests: NDArray[Any]
    active: NDArray[Any]
    queued: NDArray[Any]
    finished: NDArray[Any]
    admit: NDArray[Any]
    evict: NDArray[Any]
    admit_tokens: NDArray[Any]
    gap_counts: NDArray[np.int64]
    gap_sums: NDArray[np.float64]
    log: NDArray[Any]
    pool: NDArray[Any]
    turns: NDArray[Any]
    extras: NDArray[Any]
    tier: NDArray[Any]
    lower: NDArray[Any]

    @explained
    def __init__(
        self,
        system: System,
        table: RequestTable,
        *,
        needs: frozenset[str] = frozenset(),
        policy_name: str = "decision",
        log: bool = False,
        compiled: bool = True,
        seed: int = 0,
    ) -> None:
        system.check_fits(table)
        self.system, self.table, self.needs, self.policy_name = system, table, needs, policy_name
        self.compiled, log = runs_compiled(compiled), check_flag(log, "log")
        made = tables_at_first(system, table, needs, log=log, seed=seed)
        vars(self).update({name: guarded(table) for name, table in made.items()} if CHECKED else made)
        self.moves = guarded(np.zeros(0, MOVE))  # of a cluster with a router that moves requests
        self.batch_params = guarded(params_of(system.batch_time))
        self.policies: Sequence[Any] = ()  # of each worker, see set_policies
        self._kernel: Kernel | None = None
        self._memory: list[PolicyMemory] = []
        self._addresses: Any = None  # of the tables, computed on demand
        self._ended = False

    # ------------------------------------------------------------ running

    @property
    def current(self) -> int:
        """Index of the worker that decides."""
        return 0

    @property
    def view(self) -> SystemView:
        """What a policy observes of that worker; a new object, as a cycle would keep tables in memory after a run."""
        return SystemView(self)

    @property
    def worker(self) -> Any:
        """The record of the worker that decides."""
        return self.workers[self.current]

    def batch_time_of(self, worker: int) -> tuple[Kernel, NDArray[np.float64]]:
        """Return the batch-time kernel of a worker and its parameters."""
        return self.system.batch_time.kernel, self.batch_params

    def tables(self) -> Run:
        """Return the tables of all workers, as compiled entry points take them."""
        return Run(*_tables_of(self))

    def tables_of(self, worker: int) -> dict[str, NDArray[Any]]:
        """Return the tables of a worker by name; its own tables have a leading axis of length 1."""
        return {
            name: array if table.shared else array[worker : worker + 1]
            for (name, table), array in zip(RUN_TABLES.items(), self.tables(), strict=True)
        }

    def python_tables(self) -> dict[str, Any]:
        """Return the tables of all workers by name, as views that uncompiled code can use."""
        return {
            name: as_records(array) if array.dtype.names else array
            for name, array in zip(RUN_TABLES, self.tables(), strict=True)
        }

    def __getstate__(self) -> dict[str, Any]:
        """Drop addresses: a copy, or another process, computes its own."""
        return {**vars(self), "_addresses": None}

    def row(self) -> NDArray[np.int64]:
        """Return the addresses of a single worker's tables and policy, see :func:`~kvgym.simulator.loop.worker_row`."""
        if self._addresses is None:
            memory = self._held = check_memories(self._memory, self.policy_name)  # a row has addresses
            self._addresses = loop.worker_row(
                self.tables(), *self.batch_time_of(0), self._kernel, memory, compiled=self.compiled
            )
            connect_tiers(self, self._addresses[None])
        return self._addresses

    def _call(self, entry: Any, last: int) -> int:
        """Call an entry point, compiled or as plain Python; extend the log when it is full."""
        call = (
            watched(entry.compiled, self._described_run, self.check_memory)
            if self.compiled
            else uncompiled(entry)
        )
        status = int(call(self.row(), last))
        while status == LOG_FULL:
            self.log = guarded(np.concatenate([self.log, np.zeros(len(self.log), ITERATION)]))
            self._addresses = None
            resumed = loop.ADVANCES if last < 0 else 0 if entry is loop.step_worker else last
            status = int(call(self.row(), resumed))
        return status

    def set_policies(self, policies: Sequence[Any]) -> None:
        """Set the policy of each worker; compiled ones decide in :meth:`run`.

        :func:`kvgym.policies.runner.prepare_run` does this with policies that it has reset for the run.

        Args:
            policies: one for each worker.

        Raises:
            ConfigError: the number of policies is wrong.
        """
        if len(policies) != len(self.workers):
            raise ConfigError(
                f"{len(policies)} policies for {len(self.workers)} workers; expected one for each"
            )
        self.policies, self._kernel, self._addresses = policies, None, None

    def _load_kernel(self) -> None:
        """Load the kernel of the policies and the memory that their ``reset`` prepared, for the rest of the run.

        Raises:
            KVGymError: no compiled policy has been set.
            ConfigError: the kernels differ, or a memory was prepared for another run, so that compiled code would
                access it out of bounds.
        """
        if self._kernel is not None:
            return
        self._addresses = None
        kernels = {getattr(policy, "kernel", None) for policy in self.policies} or {None}
        if None in kernels:
            raise KVGymError(
                "the simulation has no compiled policy to run; make it with prepare_run, or step it by decisions"
            )
        if len(kernels) > 1:
            raise ConfigError(
                "the policies of the workers have different kernels; expected copies of one policy"
            )
        for k, policy in enumerate(self.policies):
            capacity, block = int(self.problem[k]["kv_capacity"]), self.system.block_size
            check_room(policy.room, self.policy_name, capacity, block, self.table, self.needs)
        with calling(self.policies[0], "policy", "arguments"):
            self._memory = [policy.arguments() for policy in self.policies]
        (self._kernel,) = kernels

    def run(self, *, budget: int | None = None) -> bool:
        """Run under the compiled policies that :meth:`set_policies` has set.

        Args:
            budget: decisions after which to pause; None = run to the end.

        Returns:
            True when the run has ended, False when the budget is used up.

        Raises:
            KVGymError: no compiled policy has been set.
            ConfigError: a policy was not reset for this run.
            InvalidDecisionError: the worker cannot execute a decision of the policy.
            LivelockError: the run would never end.
        """
        self._load_kernel()
        full = self.system.prefix_unit or len(self.turns) + len(self.extras)
        plain = loop.run_full_loop if full else loop.run_loop
        entry = loop.run_spec_loop if self.system.speculation else plain
        status = in_slices(lambda most: self._call(entry, most), budget, self)
        if status != BUDGET:
            self._raise_for(status)
        return status != BUDGET

    def start(self) -> bool:
        """Advance to the next decision; False if there is none, now or before the horizon."""
        self._ended = False
        return self._settle(self._advance(0))

    def step(self, decision: Decision) -> bool:
        """Execute a decision and advance to the next boundary; False when the run has ended.

        Raises:
            InvalidDecisionError: the worker cannot execute it; nothing has changed.
            LivelockError: the run would never end.
            KVGymError: the run has ended already.
        """
        if self._ended:
            raise KVGymError(f"the run has ended ({self._where()}); start a new Simulation")
        self._enter(decision)
        return self._settle(self._advance(1))

    def _advance(self, act: int) -> int:
        """Execute the decision in the tables if ``act`` is 1, then advance to the next boundary."""
        if self.system.speculation:
            return self._call(loop.run_spec_loop, loop.STEPS if act else loop.ADVANCES)
        return self._call(loop.step_worker, act)

    def _settle(self, status: int) -> bool:
        if status == DECIDE:
            return True
        self._raise_for(status)
        self._ended = True
        return False

    def _enter(self, decision: Decision) -> None:
        """Write a decision into the tables.

        Raises:
            InvalidDecisionError: it is not well-formed; nothing has been written.
        """
        k = self.current
        enter_decision(
            decision,
            PolicyDecision(self.decision[k], self.admit[k], self.admit_tokens[k], self.evict[k]),
            self.active[k, : int(self.worker["num_active"])],
            len(self.requests),
            refuse=self._invalid,
            status_of=self._status_of,
        )

    # ------------------------------------------------------------ failures

    @property
    def kv_capacity(self) -> int:
        """KV memory of the worker that decides, tokens of whole blocks."""
        return int(self.problem[self.current]["kv_capacity"])

    def _status_of(self, i: int) -> str:
        if not 0 <= i < len(self.requests):
            return f"unknown (ids are 0 … {len(self.requests) - 1})"
        status = int(self.requests["status"][i])
        where = ""
        if (
            len(self.workers) > 1
            and status in (WAITING, ACTIVE)
            and self.requests["worker"][i] != self.current
        ):
            where = f" on worker {int(self.requests['worker'][i])}"
        return STATUS_NAMES[status] + where

    def check_memory(self, blamed: str) -> None:
        """Check, in the checked build, that compiled code has not written outside the tables.

        Args:
            blamed: the code that may have done so, for the message.

        Raises:
            OutOfBoundsError: it has written outside them.
        """
        check(
            blamed, {**dict(zip(RUN_TABLES, self.tables(), strict=True)), "batch_params": self.batch_params}
        )

    def _described_run(self) -> str:
        return f"policy {self.policy_name!r}, {self._where()}"

    def _where(self) -> str:
        w = self.worker
        worker = f"worker {self.current}, " if len(self.workers) > 1 else ""
        return f"{worker}iteration {int(w['iteration'])}, t = {float(w['clock']):.6g} s"

    def _invalid(self, what: str) -> InvalidDecisionError:
        return InvalidDecisionError(f"policy {self.policy_name!r}, {self._where()}: the decision {what}")

    def _blocked(self) -> str:
        """Name the request that the policy would admit next; if unknown, the first and the shortest that wait."""
        found = None
        if self.policies:
            policy = self.policies[self.current]
            with calling(policy, "policy", "blocking"):
                found = policy.blocking(self.view)
        whole = isinstance(found, int | np.integer) and not isinstance(found, bool)
        if found is not None and whole and 0 <= found < len(self.requests):  # anything else is not a request
            return f"Request {found}, which it would admit next, {described_lengths(self.requests[found])}"
        waiting = self.view.waiting
        head, shortest = waiting.request_id[0], waiting.request_id[waiting.prompt_len.argmin()]
        if head == shortest:
            return f"Request {head}, the first in the queue, {described_lengths(self.requests[head])}"
        first, other = (described_lengths(self.requests[i]) for i in (head, shortest))
        return f"Request {head}, the first in the queue, {first}, and {shortest}, the shortest, {other}"

    def _raise_for(self, status: int) -> None:
        """Raise the error for a status of the engine; return if the run ended normally."""
        if status in (OK, DONE, HORIZON):
            return
        w, t = self.worker, self.tracker[0]
        request, needed, available = (int(t[n]) for n in ("error_request", "error_needed", "error_available"))
        which = f"request {request}" if request != UNKNOWN else "its active requests"
        counts = f"{int(w['num_active'])} active, {int(w['num_waiting'])} waiting"
        fruitless = int(w["decisions"]) - int(w["last_progress"]) - 1
        advice = self.policies[self.current].info.livelock_advice if self.policies else ""
        if status == STALLED and not int(w["num_active"]) and w["total_evicted"] == w["evicted_before"]:
            raise LivelockError(
                f"policy {shown(self.policy_name)}, {self._where()}: it has admitted no request for {fruitless} "
                f"decisions with an empty worker ({int(w['num_waiting'])} waiting, kv_capacity {self.kv_capacity}). "
                f"{advice or f'{self._blocked()}. Try less margin, tighter predictions or longer training'}"
            )
        if status == STALLED:
            raise LivelockError(
                f"policy {shown(self.policy_name)}, {self._where()}: nothing new has been computed for {fruitless} "
                f"decisions ({counts}, {int(w['total_evicted'])} evictions so far, kv_capacity {self.kv_capacity}); "
                f"the policy makes no progress. {advice or _MARGIN_ADVICE}"
            )
        if status == DEADLOCK:
            raise LivelockError(
                f"policy {shown(self.policy_name)}, {self._where()}: it waits for the next arrival, but there is none "
                f"({counts}); the run can never end. A policy with thresholds needs a drain rule."
            )
        if status == NO_MEMORY:
            blocks = f" in blocks of {self.system.block_size}" if self.system.block_size > 1 else ""
            raise self._invalid(
                f"does not fit: with {which} the next iteration needs {needed} KV tokens{blocks}, kv_capacity is "
                f"{available} ({counts}, {int(w['kv_allocated'])} tokens in use; admits "
                f"{self._listed(self.admit, 'num_admit')}, evicts {int(self.decision[self.current]['num_evict'])})"
            )
        if status == BAD_EVICT:
            raise self._invalid(
                f"evicts request {request} twice"
                if request != UNKNOWN
                else f"evicts slot {needed}; slots are 0 … {available - 1}"
            )
        if status == BAD_ADMIT:
            state = self._status_of(request)
            raise self._invalid(
                f"admits request {request}, which is {state}"
                + (" but listed twice" if state == "waiting" else "; only waiting requests can be admitted")
            )
        if status == BAD_TOKENS:
            raise self._invalid(f"gives request {request} {needed} tokens; valid: 0 … {available}")
        if status == TOO_MANY:
            raise self._invalid(f"makes {needed} requests active; at most {available} can be")
        if status == BAD_WAIT:
            until = float(self.decision[self.current]["wait_until"])
            raise self._invalid(f"waits until {until:g} s, which is not later than now")
        error = duration_error(status, w, self.load[self.current], self._described_run())
        if error is not None:
            raise error
        raise KVGymError(f"engine returned unknown status {status}")

    def _listed(self, ids: NDArray[np.int32], count: str) -> str:
        values = [int(i) for i in ids[self.current, : int(self.decision[self.current][count])]]
        return str(values if len(values) <= 8 else [*values[:8], "…"])
