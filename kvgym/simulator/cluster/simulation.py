"""Python interface to runs of a cluster: the tables of several workers behind a router."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.checked_build import check, guarded, watched
from kvgym.compiling.kernel import Kernel, uncompiled
from kvgym.compiling.pointers import address_of, function_handle
from kvgym.errors import InvalidDecisionError, KVGymError, LivelockError, shown
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE, params_of
from kvgym.simulator.boundary import RUN_TABLES
from kvgym.simulator.cluster.changing import Changing, FleetRecord, Scaling, fleet_tables, settle_pause
from kvgym.simulator.cluster.event_queue import empty_event_queue
from kvgym.simulator.cluster.knowing import (
    TABLES,
    knowledge_tables,
    python_router_view,
    router_of_request,
    with_states_of,
    write_figures,
)
from kvgym.simulator.cluster.links import link_tables
from kvgym.simulator.cluster.loop import (
    ASK_POLICY,
    ASK_ROUTER,
    RESUME_DECISION,
    RESUME_NOTHING,
    RESUME_REASSIGN,
    RESUME_ROUTE,
    ask_router,
    run_cluster,
)
from kvgym.simulator.cluster.router_view import (
    ROUTER_SIGNATURE,
    RouterView,
    session_tables,
)
from kvgym.simulator.cluster.routers import RouterLike, move_of, named, refused_move, refused_route
from kvgym.simulator.cluster.tables import (
    BATCH_TIME,
    POLICY,
    REASSIGNING,
    ROUTER,
    ROW,
    SHARED,
)
from kvgym.simulator.decision import Decision
from kvgym.simulator.policy_interface import POLICY_SIGNATURE, check_memories, policy_memory
from kvgym.simulator.recording.progress import in_slices
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.simulator.tables import (
    BAD_MOVE,
    BAD_ROUTE,
    BUDGET,
    CONTROL,
    DECIDE,
    ENDLESS_MOVES,
    ITERATION,
    LOG_FULL,
    MOVE,
    REASSIGN,
    ROUTE,
    UNKNOWN,
)
from kvgym.simulator.tiers.kernel import connect_tiers
from kvgym.simulator.view import ClusterView
from kvgym.utils.user_code import calling
from kvgym.workloads.table import RequestTable

_FOREVER = 1_000_000_000

_OWN = ("last_worker", "link", "ports", "flows", "stage", *TABLES)
"""Tables of its own that a cluster's run changes, besides its events and its fleet."""


class ClusterSimulation(Simulation):
    """One run of a cluster over a request table.

    Use :func:`kvgym.simulate` to run a policy to the end. Step by step: :meth:`start`, then :meth:`step` with a
    decision for worker :attr:`current` while they return True. To route from outside, make it without a router and
    :meth:`run` it: it pauses whenever :attr:`pending` is a request that :meth:`assign` must give a worker.

    Args:
        system: the workers and their settings.
        table: the requests.
        router: already reset for the run; None to route from outside.
        needs: what the policy may observe.
        policy_name: for messages.
        log: keep a row per iteration.
        compiled: run compiled code; False runs the same functions as plain Python.
        scaling: how a fleet is scaled; None = its workers stay.
        others: where the cluster has several routers, the others, which have been reset as well.
    """

    sent: NDArray[Any]

    def __init__(
        self,
        system: System,
        table: RequestTable,
        router: RouterLike | None,
        *,
        needs: frozenset[str] = frozenset(),
        policy_name: str = "decision",
        log: bool = False,
        compiled: bool = True,
        scaling: Scaling | None = None,
        others: Sequence[RouterLike] = (),
    ) -> None:
        super().__init__(system, table, needs=needs, policy_name=policy_name, log=log, compiled=compiled)
        t = self.tracker[0]
        t["num_prefill_workers"] = system.num_prefill_workers
        t["request"] = UNKNOWN
        t["reassigns"] = router is not None and router.reassigns
        if log and t["reassigns"]:
            self.moves = guarded(np.zeros(max(1, len(table)), MOVE))
        for name in ("handoff_head", "handoff_tail", "transfer_head", "transfer_tail"):
            t[name] = UNKNOWN
        self.events = empty_event_queue(len(self.workers))
        self.session, self.last_worker = map(guarded, session_tables(table))
        models = {id(worker.batch_time): worker.batch_time for worker in system.all_workers}
        params = {key: guarded(params_of(model)) for key, model in models.items()}
        self.worker_params = [params[id(worker.batch_time)] for worker in system.all_workers]
        self._memory = [policy_memory()] * len(self.workers)
        self._router_memory: tuple[Any, Any] = (np.zeros(1), np.zeros(1, np.int64))
        write_figures(system, self.problem)
        self.open_places, self.fleet_tracker, self.trips = map(guarded, fleet_tables(system, len(table)))
        links = link_tables(system, len(self.requests))
        self.link, self.ports, self.flows = (guarded(links[name]) for name in ("link", "ports", "flows"))
        self.stage = guarded(np.zeros(len(self.requests) if system.local_prefill else 0, np.uint8))
        vars(self).update(knowledge_tables(system, self.workers, len(table)))
        self.set_router(router, others)
        self.changing_fleet = None
        if system.fleet is not None:
            self.changing_fleet = Changing(self, system.fleet, scaling or Scaling.fixed(system.fleet))

    def fleet_record(self) -> FleetRecord | None:
        """Return what the fleet has done so far; None without one."""
        return None if self.changing_fleet is None else self.changing_fleet.record()

    def renew_policy(self, k: int, policy: Any) -> None:
        """Give worker ``k`` a policy that has been reset, as it has started again."""
        if self._kernel is not None:
            self._memory[k], self._addresses = policy.arguments(), None

    def forget_addresses(self) -> None:
        """Compute the addresses of tables again, as one of them is another array now."""
        self._addresses = None

    def set_router(self, router: RouterLike | None, others: Sequence[RouterLike] = ()) -> None:
        """Set the router, which has been reset for the run, and others as for the class; None to route from outside."""
        self.router, self._ask_router, self._addresses = router, ASK_ROUTER, None
        self.tracker[0]["sheds"], self._others = router is not None and router.sheds, tuple(others)
        self._router_kernels: list[Kernel | None] = [None, None]  # route, reassign
        with calling(router, "router", "compiled_rule"):
            rule = None if router is None else router.compiled_rule(len(self.workers))
        if rule is not None:
            self._ask_router = 0
            *self._router_kernels, self._router_memory = rule
            self._router_memory = with_states_of(self._router_memory, others, len(self.workers))

    def consult_router(self, view: ClusterView) -> int:
        """Return what the router would answer now, as compiled routers do; nothing executes it.

        Raises:
            InvalidDecisionError: the answer is not well-formed.
        """
        question = REASSIGN if view.boundary is not None else ROUTE
        if self._ask_router:
            return self._answer(question, view)
        call = ask_router.compiled if self.compiled else uncompiled(ask_router)
        return int(call(*self.addresses(), question))

    def batch_time_of(self, worker: int) -> tuple[Kernel, NDArray[np.float64]]:
        """Return the batch-time kernel of a worker and its parameters."""
        return self.system.all_workers[worker].batch_time.kernel, self.worker_params[worker]

    def changing(self) -> list[NDArray[Any]]:
        """Return all arrays that a run under compiled policies changes, including those of the policies.

        Their contents, and the state of a router outside, are enough to restore a run without a log.
        """
        fixed = {"problem", "log", "chain", "script", "children"} | (
            {"workload"} if self.system.sessions == "open" else set()
        )
        names = [*(name for name in RUN_TABLES if name not in fixed), "events", *_OWN]
        if self.changing_fleet is not None:
            names += ["open_places", "fleet_tracker", "trips"]
        return [*(getattr(self, name) for name in names), *(part for own in self._memory for part in own)]

    @property
    def current(self) -> int:
        """Index of the worker that decides."""
        return int(self.tracker[0]["worker"])

    @property
    def pending(self) -> int | None:
        """The request that waits for a worker, None if there is none."""
        i = int(self.tracker[0]["request"])
        return None if i == UNKNOWN else i

    @property
    def cluster_view(self) -> ClusterView:
        """The cluster as the router observes it now."""
        prefill, r = int(self.tracker[0]["num_prefill_workers"]), len(self.workers)
        handed_over = int(self.tracker[0]["handoff_head"]) != UNKNOWN
        if handed_over and len(self.fleet_tracker):
            handed_over = bool(self.fleet_tracker["open_decode"][0] > 0)
        stage = range(prefill, r) if handed_over else range(prefill or r)
        request, boundary = int(self.tracker[0]["request"]), int(self.tracker[0]["asking"])
        return ClusterView(self, request, stage, boundary if request == UNKNOWN else None)

    def router_view(self, view: ClusterView) -> RouterView:
        """Return the view of a router's kernel, for uncompiled code (:func:`kvgym.compiling.kernel.uncompiled`)."""
        return python_router_view(self.addresses(), view)

    def known_workers(self, view: ClusterView) -> NDArray[Any]:
        """Return the rows of workers as the router knows them."""
        return self.router_view(view).workers if len(self.sent) else self.workers

    def check_memory(self, blamed: str) -> None:
        """Check the arrays of workers, policies and router as well."""
        super().check_memory(blamed)
        for k, memory in enumerate(self._memory):
            check(f"{blamed}, worker {k}", {**memory._asdict(), "batch_params": self.worker_params[k]})
        params, state = self._router_memory
        names = ("moves", "open_places", "fleet_tracker", "trips", "session", *_OWN)
        own = {name: getattr(self, name) for name in names}
        check(blamed, {**own, "router_params": params, "router_state": state})

    def _handle_of(self, function: Any, signature: Any) -> tuple[int, int]:
        """Return the two numbers by which the compiled core finds a kernel."""
        found = function.compiled if self.compiled else uncompiled(function)
        return function_handle(found, signature, compiled=self.compiled)

    def addresses(self) -> tuple[Any, ...]:
        """Return addresses and lengths of all tables, and handles, as the compiled loop takes them."""
        if self._addresses is None:
            self._addresses = self._find_tables()
        found: tuple[Any, ...] = self._addresses
        return found

    def _find_tables(self) -> tuple[Any, ...]:
        """Return addresses and lengths of all tables, and the handles of the functions of every worker."""
        check_memories(self._memory, self.policy_name)
        params, state = self._router_memory
        shared = [*(getattr(self, name) for name in list(SHARED)[:-2]), params, state]
        count = len(self._memory)
        rows, sizes = np.zeros((2, count, len(ROW)), np.int64)
        for j, (name, table) in enumerate(RUN_TABLES.items()):
            array = getattr(self, name)
            rows[:, j] = address_of(array)
            if not table.shared and array.size:
                rows[:, j] += np.arange(count) * array.strides[0]
            sizes[:, j] = array.shape[-1]
        self._tier_rows = np.concatenate([table[:, : len(RUN_TABLES)] for table in (rows, sizes)], axis=1)
        connect_tiers(self, self._tier_rows)
        for k, memory in enumerate(self._memory):
            own: list[NDArray[Any]] = [*memory, self.worker_params[k]]
            rows[k, len(RUN_TABLES) :] = [address_of(array) for array in own]
            sizes[k, len(RUN_TABLES) :] = [len(array) for array in own]
        handles = np.zeros((count, 8), np.int64)
        models = [worker.batch_time.kernel for worker in self.system.all_workers]
        found = {kernel: self._handle_of(kernel, BATCH_TIME_SIGNATURE) for kernel in set(models)}
        handles[:, BATCH_TIME : BATCH_TIME + 2] = [found[kernel] for kernel in models]
        for at, kernel, signature in (
            (POLICY, self._kernel, POLICY_SIGNATURE),
            (ROUTER, self._router_kernels[0], ROUTER_SIGNATURE),
            (REASSIGNING, self._router_kernels[1], ROUTER_SIGNATURE),
        ):
            if kernel is not None:
                handles[:, at : at + 2] = self._handle_of(kernel, signature)
        return (
            np.array([address_of(table) for table in shared], np.int64),
            np.array([len(table) for table in shared], np.int64),
            rows,
            sizes,
            handles,
        )

    def _drive(self, resume: int, ask: int, budget: int) -> int:
        """Call the core, and extend the log when it is full."""
        entry = (
            watched(run_cluster.compiled, self._described_run, self.check_memory)
            if self.compiled
            else uncompiled(run_cluster)
        )
        while True:
            addresses = self.addresses()
            if resume not in (RESUME_ROUTE, RESUME_REASSIGN):
                self.tracker[0]["request"] = UNKNOWN
            status = int(entry(*addresses, resume, ask, budget))
            if status != ROUTE:
                self.tracker[0]["request"] = UNKNOWN
            if status != LOG_FULL:
                return status
            if self.tracker[0]["reassigns"] and self.tracker[0]["num_moves"] == len(self.moves):
                self.moves = guarded(np.concatenate([self.moves, np.zeros(len(self.moves), MOVE)]))
            else:
                more = np.zeros(max(len(self.log), len(self.workers)), ITERATION)
                self.log = guarded(np.concatenate([self.log, more]))
            self._addresses, resume = None, RESUME_NOTHING

    def run(self, *, budget: int | None = None) -> bool:
        """Run under the compiled policies that have been set.

        Args:
            budget: decisions after which to pause; None = run to the end.

        Returns:
            True when the run has ended; False when the budget is used up, or when a request is pending.

        Raises:
            KVGymError: no compiled policy has been set.
            ConfigError: a policy was not reset for this run.
            InvalidDecisionError: the cluster cannot execute a decision of the policy or the router.
            LivelockError: the run would never end.
        """
        self._load_kernel()
        return self._continue(RESUME_NOTHING, budget)

    def _continue(self, resume: int, limit: int | None) -> bool:
        def advance(most: int) -> int:
            nonlocal resume
            self.tracker[0]["used"] = 0
            status = self._drive(resume, self._ask_router, most)
            while (answered := self._choose(status)) is not None:
                status = self._drive(answered, self._ask_router, most)
            resume = RESUME_NOTHING
            return status

        status = in_slices(advance, limit, self)
        if status in (BUDGET, ROUTE, CONTROL):
            return False
        self._raise_for(status)
        self._ended = True
        return True

    def assign(self, worker: int, *, budget: int | None = None) -> bool:
        """Assign a worker to the pending request and continue as in :meth:`run`.

        Raises:
            InvalidDecisionError: there is no pending request, or it may not go to this worker.
        """
        if self.pending is None:
            raise InvalidDecisionError("no request waits for a worker")
        allowed = self.cluster_view.allowed
        if not isinstance(worker, int | np.integer) or worker not in allowed:
            raise InvalidDecisionError(
                f"request {self.pending} cannot go to worker {shown(worker)}; valid: {named(allowed)}"
            )
        self.tracker[0]["route"] = worker
        return self._continue(RESUME_ROUTE, budget)

    def _choose(self, question: int) -> int | None:
        """Call the router for the pending request's worker or for a move, or change the fleet.

        Returns:
            How to resume; None if the question is for the caller.
        """
        if settle_pause(self, question):
            return RESUME_NOTHING
        if question not in (ROUTE, REASSIGN) or self.router is None:
            return None
        self.tracker[0]["route"] = self._answer(question, self.cluster_view)
        return RESUME_REASSIGN if question == REASSIGN else RESUME_ROUTE

    def _answer(self, question: int, view: ClusterView) -> int:
        """Call a router in Python; return its answer as compiled routers do."""
        assert self.router is not None
        if question == REASSIGN:
            return move_of(self, self.router, view)
        only_one = len(view.candidates) == 1 and not (self.system.local_prefill or self.router.sheds)
        router = self.router
        if self._others:
            router = (router, *self._others)[router_of_request(self.addresses(), view.request_id)]
        with calling(router, "router", "route"):
            chosen = view.candidates[0] if only_one else router.route(view)
        try:
            return int(np.int64(operator.index(chosen)))
        except Exception:  # user code may raise any exception
            raise InvalidDecisionError(
                f"router {shown(self.router.info.name)} returned {shown(chosen)} for request {view.request_id}; "
                "expected the index of a worker"
            ) from None

    def start(self) -> bool:
        """Advance to the first decision of a worker; False if there is none."""
        return self._ask(RESUME_NOTHING)

    def step(self, decision: Decision) -> bool:
        """Execute a decision of worker :attr:`current` and advance to the next; False when the run has ended.

        Raises:
            InvalidDecisionError: the worker cannot execute it; nothing has changed.
            LivelockError: the run would never end.
            KVGymError: the run has ended already.
        """
        if self._ended:
            raise KVGymError(f"the run has ended ({self._where()}); start a new simulation")
        self._enter(decision)
        return self._ask(RESUME_DECISION)

    def _ask(self, resume: int) -> bool:
        self.tracker[0]["used"] = 0
        status = self._drive(resume, ASK_POLICY | ASK_ROUTER, _FOREVER)
        while (answered := self._choose(status)) is not None:
            status = self._drive(answered, ASK_POLICY | ASK_ROUTER, _FOREVER)
        if status in (ROUTE, REASSIGN):
            raise KVGymError("stepping a cluster needs a router")
        return self._settle(status)

    def _raise_for(self, status: int) -> None:
        if status == BAD_ROUTE:
            t = self.tracker[0]
            answer = int(t["error_needed"])
            raise InvalidDecisionError(refused_route(self, self.router, int(t["error_request"]), answer))
        if status == BAD_MOVE and self.router is not None:
            t = self.tracker[0]
            request, worker = int(t["error_request"]), int(t["error_needed"])
            raise InvalidDecisionError(refused_move(self, self.router, request, worker))
        if status == ENDLESS_MOVES and self.router is not None:
            raise LivelockError(
                f"router {shown(self.router.info.name)} has moved more requests than there are at one boundary of "
                f"worker {int(self.tracker[0]['asking'])} ({self._where()}); it must return None or UNKNOWN when "
                "it is done"
            )
        if status == DECIDE:
            return
        super()._raise_for(status)
