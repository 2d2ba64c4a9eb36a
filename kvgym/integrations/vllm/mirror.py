"""The tables of a running vLLM worker, as policies of kvgym read them, and the decisions of a policy on them.

A mirror is a :class:`~kvgym.simulator.simulation.Simulation` in which requests come and go when the engine says so. Its
decisions are checked and applied by the simulator's own compiled code, with the engine's rules of memory: preempted
requests recompute from the front of the queue, and the KV of an output token is written with the next batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.checked_build import guarded, watched
from kvgym.compiling.records import sparse_zeros
from kvgym.policies.policy import CompiledPolicy, Policy, SystemInfo
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.simulator.boundary import RUN_TABLES
from kvgym.simulator.live import (
    ABORTS,
    ARRIVES,
    CORRECTS,
    DECIDES,
    ENDS,
    PLAN,
    PLANS,
    STEPS,
    Live,
    live_row,
    operate,
)
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import MAX_TIME, System
from kvgym.simulator.tables import ACTIVE, BAD_ADMIT, DECIDE, RUN, UNKNOWN, WAITING, WORKLOAD
from kvgym.utils.user_code import calling
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

ENDLESS = 2**31 - 1
"""Output length of all requests in the tables: the engine ends them, not the simulator."""


@dataclass(frozen=True)
class Place:
    """What a policy decides for.

    Attributes:
        kv_capacity: KV memory, tokens of whole blocks.
        block_size: tokens of a block.
        max_running: most running requests.
        token_budget: most tokens of an iteration.
        chunks: whether prompts may be processed in part.
        batch_time: duration of an iteration.
        max_len: longest prompt with its output, tokens.
        classes: rates and mean lengths of the classes, if the policy needs them.
        underestimates: see :class:`~kvgym.policies.policy.SystemInfo`.
        seed: seed of the policy.
    """

    kv_capacity: int
    block_size: int
    max_running: int
    token_budget: int
    chunks: bool
    batch_time: BatchTimeModel
    max_len: int
    classes: tuple[ClassStatistics, ...] = ()
    underestimates: frozenset[str] = frozenset()
    seed: np.random.SeedSequence = field(default_factory=lambda: np.random.SeedSequence(0))

    def system(self) -> System:
        """Return the system with the engine's rules."""
        return System(
            kv_capacity=self.kv_capacity,
            batch_time=self.batch_time,
            progress_on_evict="recompute",
            requeue="front",
            output_kv="next_iteration",
            block_size=self.block_size,
            horizon=MAX_TIME,
        )

    def info(self, needs: frozenset[str], rows: int) -> SystemInfo:
        """Return what the policy gets before it decides about up to ``rows`` requests."""
        predicts = needs & {"predicted_length", "length_interval"}
        return SystemInfo(
            kv_capacity=self.kv_capacity,
            prefill_emits=True,
            max_requests=rows,
            max_predicted_len=self.max_len if predicts else 0,
            seed=self.seed,
            batch_time=self.batch_time,
            first_token="counted",
            classes=self.classes if "class_rates" in needs else (),
            block_size=self.block_size,
            underestimates=self.underestimates & predicts,
        )


@dataclass
class Plan:
    """A decision as the engine carries it out.

    Attributes:
        act: RUN or WAIT.
        evict: slots of the requests that are preempted, in order.
        admit: requests that start, in order.
        put_back: requests that the policy admits and the engine does not start.
        limits: tokens by request, for those that run in part or not at all.
        tokens: tokens of the batch, prefix hits included.
        members: requests in the batch.
    """

    act: int
    evict: list[int]
    admit: list[int]
    put_back: list[int]
    limits: dict[int, int]
    tokens: int
    members: int


class Mirror(Simulation):
    """The worker of an engine.

    Args:
        place: what the policy decides for.
        policy: the policy; it is reset.
        needs: what it may observe.
        rows: requests that the tables hold, finished ones included.

    Attributes:
        used: rows in use.
        live: tables of the plan.
    """

    def __init__(self, place: Place, policy: Policy, needs: frozenset[str], rows: int) -> None:
        ones = np.ones(rows, np.int64)
        table = RequestTable.from_columns(arrival_time=np.zeros(rows), prompt_len=ones, output_len=ones)
        super().__init__(place.system(), table, needs=needs, policy_name=policy.info.name)
        slots = min(place.max_running, self.active.shape[1])  # memories of policies have room for no more
        for name, kind in RUN_TABLES.items():
            if kind.length == "slots":
                setattr(self, name, guarded(sparse_zeros((1, slots), kind.dtype)))
        self.problem["num_requests"] = self.used = 0
        self.live = Live(
            np.zeros(1, PLAN),
            np.full(rows, ENDLESS, np.int32),
            *(np.zeros(2 * slots, np.int32) for _ in range(3)),
        )
        self.live.plan["budget"], self.live.plan["chunks"] = place.token_budget, place.chunks
        self._counts = self.live.plan.view(
            np.int64
        )  # fields of single rows, without a search for their names
        self._clock, self._batch_end = self.workers["clock"], self.workers["last_batch_end"]
        self._policy = policy
        with calling(policy, "policy", "reset"):
            policy.reset(place.info(needs, rows))
        self.set_policies([policy])
        if isinstance(policy, CompiledPolicy):
            self._load_kernel()
        self._row = live_row(self.row(), self.live)
        self._operate = watched(operate.compiled, self._described_run, self.check_memory)

    @property
    def running(self) -> NDArray[np.int32]:
        """Ids of the running requests, in order of their slots."""
        ids: NDArray[np.int32] = self.active["request_id"][0, : int(self.worker["num_active"])]
        return ids

    # ------------------------------------------------------------ what the engine does

    def arrive(self, limit: int, **columns: Any) -> int:
        """Add a request that :meth:`show_arrivals` queues; return its id.

        Args:
            limit: most output tokens.
            **columns: fields of the workload; lengths and classes that are not given are unknown, SLOs infinite.
        """
        i = self.used
        row = np.zeros(1, WORKLOAD)[0]
        for name in ("predicted_len", "predicted_low", "predicted_high", "class_id"):
            row[name] = UNKNOWN
        row["ttft_slo"] = row["tbt_slo"] = np.inf
        row["output_len"] = ENDLESS
        for name, value in columns.items():
            row[name] = value
        self.workload[i], self.live.most_output[i] = row, limit
        self.problem["num_requests"] = self.used = i + 1
        return i

    def show_arrivals(self) -> None:
        """Queue the requests that have arrived by now."""
        self._operate(self._row, ARRIVES, 0, 0.0)

    def end(self, i: int, aborted: bool) -> None:
        """Remove a request that has finished, or was aborted."""
        aborted = aborted or self.requests["status"][i] != ACTIVE
        self._operate(self._row, ABORTS if aborted else ENDS, i, 0.0)

    def set_clock(self, now: float) -> None:
        """Set the time of the next decision, seconds."""
        self._clock[0] = now

    def correct_end(self, late: float) -> None:
        """Move the end of the last batch, and the tokens it delivered.

        Args:
            late: seconds by which a batch ended later than predicted.
        """
        self._operate(self._row, CORRECTS, 0, late)

    @property
    def clock(self) -> float:
        """Time of the next decision, seconds."""
        return float(self._clock[0])

    @property
    def batch_end(self) -> float:
        """Predicted end of the last batch, seconds."""
        return float(self._batch_end[0])

    def correct_progress(self, k: int, computed: int, total: int) -> None:
        """Set what a running request has computed, after a hit in the engine's prefix cache.

        Args:
            k: its slot.
            computed: KV tokens.
            total: tokens of its prompt and its output so far, the next one excluded.
        """
        slot = self.active[0, k]
        slot["num_kv_tokens"] = computed
        slot["num_prefill_left"] = max(total - computed, 0)
        if total <= computed and slot["num_output_tokens"] == total - slot["prompt_len"]:
            slot["num_output_tokens"] += 1  # the rest of the prompt was found, so the batch made a token
        self.count_memory()

    def count_memory(self) -> None:
        """Count memory and prompts again from the slots."""
        w, size = self.workers[0], int(self.problem["block_size"][0])
        slots = self.active[0, : int(w["num_active"])]
        kv = slots["num_kv_tokens"].astype(np.int64)
        held = -(-kv // size) * size
        w["kv_tokens"], w["kv_allocated"] = kv.sum(), held.sum()
        w["num_full"] = np.count_nonzero(held == kv)
        w["num_prefilling"] = np.count_nonzero(slots["num_prefill_left"])

    def restore(
        self, running: Sequence[tuple[int, int, int, bool]], waiting: Sequence[tuple[int, int]], now: float
    ) -> None:
        """Give requests the progress that they have in the engine; all are new here, see :meth:`arrive`.

        The policy finds all in the list of requests that were taken away, and those that wait among the queued ones:
        so it forgets what it has stored of them.

        Args:
            running: id, KV tokens, output tokens, and whether the prompt is incomplete, in the engine's order.
            waiting: id and output tokens, in the engine's order.
            now: seconds.
        """
        if not running and not waiting:
            return
        self.show_arrivals()
        d, count = self.decision[0], len(running)
        d["act"], d["explicit"], d["num_admit"], d["num_evict"] = RUN, 1, count, 0
        self.admit[0, :count] = [i for i, *_ in running]
        self.admit_tokens[0, :count] = 0
        self._raise_for_step(self._operate(self._row, STEPS, 0, 0.0))
        for k, (_, computed, output, chunked) in enumerate(running):
            slot = self.active[0, k]
            slot["num_kv_tokens"] = slot["num_kv_best"] = computed
            slot["num_output_tokens"] = slot["num_delivered_tokens"] = output
            slot["num_prefill_left"] = slot["prompt_len"] + output - computed if chunked else 0
            slot["last_token_time"] = self.requests["first_token_time"][slot["request_id"]] = (
                now if output else np.nan
            )
        self.count_memory()
        for i, output in waiting:
            r = self.requests[i]
            r["num_output_tokens"] = r["num_delivered_tokens"] = output
            r["num_prefill_left"] = r["prompt_len"] + output
        self.workers["last_batch_end"] = now
        w, order = self.workers[0], [i for i, _ in waiting]
        self.requests["queue_next"][order] = [*order[1:], UNKNOWN][: len(order)]
        self.requests["queue_prev"][order] = [UNKNOWN, *order[:-1]][: len(order)]
        w["queue_head"], w["queue_tail"] = (order[0], order[-1]) if order else (UNKNOWN, UNKNOWN)
        self.relist(order, [i for i, *_ in running])

    def relist(self, waiting: Sequence[int], others: Sequence[int] = ()) -> None:
        """List waiting requests for the policy as taken away and queued again, and others as taken away."""
        w, queued = self.workers[0], self.queued[0]
        for i in waiting:
            queued[int(w["num_queued"])] = i
            w["num_queued"] += 1
        for i in (*waiting, *others):
            w["num_left"] += 1
            queued[len(queued) - int(w["num_left"])] = i

    # ------------------------------------------------------------ what the policy decides

    def decide(self) -> Plan:
        """Let the policy decide; return the decision in the tables as the engine carries it out.

        Raises:
            InvalidDecisionError: it is not well-formed.
            UserCodeError: a policy from outside kvgym raised an exception.
        """
        policy = self._policy
        if self._kernel is not None:
            self._operate(self._row, DECIDES, 0, 0.0)
        else:
            d = self.decision[0]
            d["act"], d["wait_until"] = RUN, np.inf
            d["explicit"] = d["num_admit"] = d["num_evict"] = d["num_put_back"] = 0
            with calling(policy, "policy", "schedule"):
                decision = policy.schedule(self.view)
            self._enter(decision)
            self._operate(self._row, PLANS, 0, 0.0)
        _, _, tokens, members, starting, waiting, leaving, limited, act = self._counts.tolist()
        plan = Plan(act, [], [], [], {}, tokens, members)
        if leaving:
            plan.evict = self.evict[0, :leaving].tolist()
        if starting + waiting:
            admit = self.admit[0, : starting + waiting].tolist()
            plan.admit, plan.put_back = admit[:starting], admit[starting:]
        if limited:
            columns = (column[:limited].tolist() for column in (self.live.limited, self.live.limits))
            plan.limits = dict(zip(*columns, strict=True))
        return plan

    def apply(self, plan: Plan) -> None:
        """Execute the decision in the tables, as :meth:`decide` left it.

        Raises:
            InvalidDecisionError: the worker cannot execute it; nothing has changed.
            LivelockError: the policy makes no progress.
        """
        if plan.put_back:
            self._check_put_back(plan)
        self._raise_for_step(self._operate(self._row, STEPS, 0, 0.0))
        if plan.put_back:
            self.relist(plan.put_back)

    def _check_put_back(self, plan: Plan) -> None:
        """Check the requests that the worker will not start, and hence not check: they must wait, and be named once.

        Raises:
            InvalidDecisionError: they do not.
        """
        wrong = [
            i
            for i, status in zip(plan.put_back, self.requests["status"][plan.put_back], strict=True)
            if status != WAITING
        ]
        chosen = [*plan.admit, *plan.put_back]
        if not wrong and len(set(chosen)) < len(chosen):
            wrong = [i for i in plan.put_back if chosen.count(i) > 1]
        if wrong:
            self.tracker["error_request"] = wrong[0]
            self._raise_for(BAD_ADMIT)

    def _raise_for_step(self, status: int) -> None:
        if status != DECIDE:
            self._raise_for(int(status))
