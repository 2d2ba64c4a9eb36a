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
from kvgym.policy import CompiledPolicy, Policy, SystemInfo
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.simulator.boundary import RUN_TABLES
from kvgym.simulator.live import ABORTS, ARRIVES, DECIDES, ENDS, STEPS, live_row, operate
from kvgym.simulator.policy_interface import rule_memory
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import MAX_TIME, System
from kvgym.simulator.tables import ACTIVE, DECIDE, RUN, UNKNOWN, WORKLOAD
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
        batch_time: duration of an iteration.
        max_len: longest prompt with its output, tokens.
        classes: rates and mean lengths of the classes, if the policy needs them.
        underestimates: see :class:`~kvgym.policy.SystemInfo`.
        seed: seed of the policy.
    """

    kv_capacity: int
    block_size: int
    max_running: int
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
        evict: slots of the requests that are preempted, in order.
        admit: requests that start, in order.
        put_back: requests that the policy admits and the engine does not start.
        limits: tokens by request, for those that run in part or not at all; None = all run in full.
        tokens: tokens of the batch, prefix hits included.
        members: requests in the batch.
    """

    evict: list[int]
    admit: list[int]
    put_back: list[int]
    limits: dict[int, int] | None
    tokens: int
    members: int


class Mirror(Simulation):
    """The worker of an engine.

    Args:
        place: what the policy decides for.
        policy: the policy; it is reset.
        needs: what it may observe.
        rows: requests that the tables hold, finished ones included.
    """

    def __init__(self, place: Place, policy: Policy, needs: frozenset[str], rows: int) -> None:
        ones = np.ones(rows, np.int64)
        table = RequestTable.from_columns(arrival_time=np.zeros(rows), prompt_len=ones, output_len=ones)
        super().__init__(place.system(), table, needs=needs, policy_name=policy.info.name)
        slots = min(place.max_running, self.active.shape[1])  # memories of policies have room for no more
        for name, kind in RUN_TABLES.items():
            if kind.length == "slots":
                setattr(self, name, guarded(sparse_zeros((1, slots), kind.dtype)))
        self.problem["num_requests"] = 0
        self.limits = np.full(rows, ENDLESS, np.int32)
        self._policy = policy
        with calling(policy, "policy", "reset"):
            policy.reset(place.info(needs, rows))
        self.set_policies([policy])
        if isinstance(policy, CompiledPolicy):
            self._load_kernel()
        memory = self._memory[0] if self._memory else rule_memory()
        batch_time, tables = self.system.batch_time.kernel, self.tables()
        self._row = live_row(tables, batch_time, self.batch_params, self._kernel, memory)
        self._held = tables, memory  # the row has only their addresses
        self._operate = watched(operate.compiled, self._described_run, self.check_memory)

    @property
    def used(self) -> int:
        """Rows of requests in use, finished ones included."""
        return int(self.problem["num_requests"][0])

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
        self.workload[i], self.limits[i] = row, limit
        self.problem["num_requests"] = i + 1
        return i

    def show_arrivals(self) -> None:
        """Queue the requests that have arrived by now."""
        self._operate(self._row, ARRIVES, 0)

    def end(self, i: int, aborted: bool) -> None:
        """Remove a request that has finished, or was aborted."""
        aborted = aborted or self.requests["status"][i] != ACTIVE
        self._operate(self._row, ABORTS if aborted else ENDS, i)

    def set_clock(self, now: float) -> None:
        """Set the time of the next decision, seconds."""
        self.workers["clock"] = now

    def correct_end(self, late: float) -> None:
        """Move the end of the last batch, and the tokens it delivered.

        Args:
            late: seconds by which a batch ended later than predicted.
        """
        was = float(self.worker["last_batch_end"])
        self.workers["last_batch_end"] = was + late
        slots = self.active[0, : int(self.worker["num_active"])]
        recent = slots["last_token_time"] == was
        slots["last_token_time"][recent] = was + late
        first = slots["request_id"][recent & (slots["num_output_tokens"] == 1)]
        self.requests["first_token_time"][first] = was + late

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
        self._raise_for_step(self._operate(self._row, STEPS, 0))
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

    def decide(self) -> None:
        """Let the policy write its decision into the tables.

        Raises:
            InvalidDecisionError: it is not well-formed.
            UserCodeError: a policy from outside kvgym raised an exception.
        """
        policy = self._policy
        if self._kernel is not None:
            self._operate(self._row, DECIDES, 0)
            return
        d = self.decision[0]
        d["act"], d["wait_until"] = RUN, np.inf
        d["explicit"] = d["num_admit"] = d["num_evict"] = d["num_put_back"] = 0
        with calling(policy, "policy", "schedule"):
            decision = policy.schedule(self.view)
        self._enter(decision)

    def plan(self, budget: int, chunks: bool) -> Plan:
        """Return the decision in the tables as the engine carries it out, and change the tables accordingly.

        What exceeds the token budget waits for the next iteration, in the order of running and then of starting
        requests. A request that would start without tokens waits. One that has all its output tokens gets none.

        Args:
            budget: most tokens of an iteration.
            chunks: whether prompts may be processed in part.
        """
        d, w = self.decision[0], self.workers[0]
        count, explicit = int(w["num_active"]), bool(d["explicit"])
        slots = self.active[0, :count]
        admit, evict = self.admit[0, : int(d["num_admit"])], self.evict[0, : int(d["num_evict"])].tolist()
        ids, runs = slots["request_id"], d["act"] == RUN
        complete = slots["num_output_tokens"] >= self.limits[ids]
        simple = runs and not explicit and not w["num_prefilling"] and not evict and not len(admit)
        if simple and count <= budget and not complete.any():
            return Plan([], [], [], None, count, count)
        left = slots["num_prefill_left"].astype(np.int64)
        given = np.where(left > 0, left, 1)
        fresh = self.requests["num_prefill_left"][admit].astype(np.int64)
        start = np.where(fresh > 0, fresh, 1)
        if explicit:
            for full, chosen in ((given, slots["planned"]), (start, self.admit_tokens[0, : len(admit)])):
                np.copyto(full, chosen, where=chosen != UNKNOWN)
        given[complete] = 0
        given[evict] = 0
        if not runs:
            given[:] = start[:] = 0
        wanted = np.concatenate([given, start])
        whole = np.concatenate([np.where(left > 0, left, 1), np.where(fresh > 0, fresh, 1)])
        tokens = wanted if wanted.sum() <= budget else self._within(wanted, budget, chunks)
        starts = tokens[count:] > 0
        plan = Plan(
            evict,
            admit[starts].tolist(),
            admit[~starts].tolist(),
            None,
            int(tokens.sum()),
            int(np.count_nonzero(tokens)),
        )
        partial = tokens < whole
        partial[evict] = False
        if partial.any():
            named = np.concatenate([ids, admit])
            plan.limits = dict(zip(named[partial].tolist(), tokens[partial].tolist(), strict=True))
            slots["planned"] = tokens[:count]
            d["explicit"] = 1
        if d["explicit"] or plan.put_back:
            self.admit_tokens[0, : len(plan.admit)] = tokens[count:][starts]
            self.admit[0, : len(plan.admit)] = plan.admit
            d["num_admit"] = len(plan.admit)
        return plan

    @staticmethod
    def _within(wanted: NDArray[np.int64], budget: int, chunks: bool) -> NDArray[np.int64]:
        """Return the tokens that fit into a budget; the first request that does not fit in whole is cut or skipped."""
        before = np.cumsum(wanted) - wanted
        cut: NDArray[np.int64] = np.clip(budget - before, 0, wanted)
        return cut if chunks else np.where(cut == wanted, cut, 0)

    def apply(self, plan: Plan) -> None:
        """Execute the decision in the tables, as :meth:`plan` left it.

        Raises:
            InvalidDecisionError: the worker cannot execute it; nothing has changed.
            LivelockError: the policy makes no progress.
        """
        self._raise_for_step(self._operate(self._row, STEPS, 0))
        if plan.put_back:
            self.relist(plan.put_back)

    def _raise_for_step(self, status: int) -> None:
        if status != DECIDE:
            self._raise_for(int(status))
