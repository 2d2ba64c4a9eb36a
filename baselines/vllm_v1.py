"""The scheduler of vLLM's V1 engine: one token budget, running requests first, prompts in chunks, preemption.

Sources: the engine's pages on optimization and tuning and on scheduler configuration (docs.vllm.ai, V1 engine), and its
repository, vllm-project/vllm: ``vllm/v1/core/sched/scheduler.py``, ``vllm/v1/core/kv_cache_manager.py``,
``vllm/config/scheduler.py``, as of 2026. Hyperparameters have the engine's names and meanings.

The scheduler does not distinguish prefills and decodes: every request has prompt or output tokens to compute. Every
iteration follows these rules:

- Running requests come first, in order of activation. Each gets the tokens that it lacks, limited by
  ``long_prefill_token_threshold`` (if set) and by the rest of the budget ``max_num_batched_tokens``. Requests that
  find the budget spent keep their KV and skip the iteration.
- If the tokens of a running request do not fit into memory, it preempts others until they fit: the newest or, with
  priorities, the least urgent, and of equal ones the latest arrived. Later requests may use the tokens that a
  preempted request was given in this iteration. If a request preempts itself, those after it also skip the iteration.
- Only if no request was preempted, waiting requests start, in order of the queue or of priority, while the budget,
  ``max_num_seqs`` places and memory last. The first that does not fit ends admission. A request then takes only the
  memory of its first chunk, but all its tokens to compute must fit (``scheduler_reserve_full_isl``). Beside other
  running requests, the ``watermark`` must stay free.

A preempted request loses its KV, keeps its output tokens and returns to the front of the queue, or to its place by
priority. In kvgym these are settings of the system: ``first_token="counted"``, ``progress_on_evict="recompute"`` and
``requeue="front"`` reproduce the engine, as in scenario ``vllm-v1``. The order by priority is this policy's own and
applies under any ``requeue``.

Priority: in vLLM lower values come first; in kvgym larger values of the column ``priority`` are more important. The
policy follows kvgym's column, the negative of vLLM's value. Ties go by arrival, then by request id.

Deviations and readings:

- Here the KV of an output token is written with the batch that generates it; the engine writes it with the next
  batch. So every request takes one more token of memory, one iteration earlier. The same applies to the memory that
  must fit at a start.
- If the first running request preempts itself, the engine runs an empty step, which takes almost no time, and decides
  again. Here the requests after it are scheduled in the same iteration, and no waiting request starts.
- A request without a prompt left (handed over by a prefill worker, or swapped out and back) needs one token.
- Left out: prefix caching, speculative decoding, encoders, adapters, asynchronous scheduling, pipeline parallelism,
  KV connectors. ``max_num_partial_prefills`` and ``max_long_partial_prefills`` are configured in the engine but not
  read by this scheduler.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines.iteration_level import VLLM_RULES, whole_blocks_of
from kvgym.errors import ConfigError
from kvgym.kernels import (
    UNKNOWN,
    RuleDecision,
    RuleMemory,
    RuleView,
    admit,
    admit_tokens,
    evict,
    forget_left,
    full_tokens,
    has_place,
    heap_pop,
    heap_push,
    held_by,
    jit_inline,
    kv_growth,
    need_of,
    need_of_active,
    next_to_admit,
    pause_all,
    policy_kernel,
    request_key,
    rule_memory,
)
from kvgym.policy import (
    AUTO,
    CompiledPolicy,
    PolicyInfo,
    SystemInfo,
    register_policy,
    require,
    require_count,
    require_flag,
    require_fraction,
)
from kvgym.simulator.batch_time import Device
from kvgym.simulator.view import SystemView

# Layout of the parameters; the state is the heap of waiting requests by priority.
_MAX_TOKENS, _MAX_SEQS, _THRESHOLD, _BY_PRIORITY, _CHUNKED, _WHOLE_INPUT, _WATERMARK = range(7)

USUAL = (2048, 256)
"""The engine's token budget and maximum number of running requests on a small or unknown GPU, and on an A100."""

_GIB = 2**30

_PREEMPTED = -2  # marks a slot, instead of its planned tokens, while the decision is made


def engine_defaults(device: Device | None) -> tuple[int, int]:
    """Return the token budget and the maximum number of running requests that the engine chooses as an API server.

    Source: ``vllm/engine/arg_utils.py``, ``EngineArgs.get_batch_defaults``, as of version 0.28.0 (August 2026): by
    device memory, with an exception for the A100, on which larger batches were measured to be slower. Memory of
    an unknown device counts as 0.

    Args:
        device: the GPU; None = unknown.
    """
    if device is not None and device.memory >= 160 * _GIB:
        return 16384, 1024
    if device is not None and device.memory >= 70 * _GIB and "a100" not in device.name.lower():
        return 8192, 1024
    return USUAL


@jit_inline
def urgency(row: Any, i: int) -> int:
    """Return a key that is smaller for more urgent requests: by priority, then by arrival."""
    return request_key(-1 - row.priority, i)  # its negative would be too large for the lowest priority


@jit_inline
def tokens_lacking(params: Any, prefill_left: int) -> int:
    """Return the tokens that a request needs in an iteration: all that it lacks, or less for a long prompt."""
    lacking, threshold = full_tokens(prefill_left), int(params[_THRESHOLD])
    return threshold if 0 < threshold < lacking else lacking


@jit_inline
def victim(view: RuleView, params: Any) -> int:
    """Return the next slot to preempt: the newest, or the least urgent, of those not preempted yet."""
    chosen, latest = UNKNOWN, 0
    for k in range(view.worker.num_active - 1, -1, -1):
        slot = view.active[k]
        if slot.planned == _PREEMPTED:
            continue
        if params[_BY_PRIORITY] == 0.0:
            return k
        due = urgency(view.requests[slot.request_id], slot.request_id)
        if chosen == UNKNOWN or due > latest:
            chosen, latest = k, due
    return chosen


@jit_inline
def schedule_running(view: RuleView, decision: RuleDecision, params: Any) -> tuple[int, int]:
    """Give the running requests their tokens; preempt if memory is short.

    Returns:
        The remaining budget, and the memory in use with all planned tokens.
    """
    w, active, capacity = view.worker, view.active, view.problem.kv_capacity
    budget, used = int(params[_MAX_TOKENS]), view.worker.kv_allocated
    if w.num_prefilling == 0 and w.num_active <= budget and need_of_active(view) <= capacity:
        return budget - w.num_active, need_of_active(view)  # the usual batch: all requests decode
    pause_all(view, decision)
    scheduled = k = 0
    while k < w.num_active and budget > 0:
        slot = active[k]
        if slot.planned != _PREEMPTED:
            tokens = min(tokens_lacking(params, slot.num_prefill_left), budget)
            growth = kv_growth(view.problem, slot, tokens)
            while slot.planned != _PREEMPTED and used + growth > capacity:
                v = victim(view, params)
                other = active[v]
                if other.planned > 0:
                    scheduled -= 1
                    budget += other.planned
                    used -= kv_growth(view.problem, other, other.planned)
                used -= held_by(view, other)
                other.planned = _PREEMPTED
                evict(decision, v)
            if slot.planned != _PREEMPTED:
                slot.planned = tokens
                scheduled += 1
                budget -= tokens
                used += growth
            elif scheduled > 0:
                break
        k += 1
    for j in range(decision.record.num_evict):
        active[decision.evict[j]].planned = UNKNOWN
    return budget, used


@jit_inline
def start_waiting(view: RuleView, decision: RuleDecision, memory: RuleMemory, budget: int, used: int) -> None:
    """Start waiting requests in order while budget, places and memory last."""
    w, d, params = view.worker, decision.record, memory.params
    max_seqs, by_priority = int(params[_MAX_SEQS]), params[_BY_PRIORITY] == 1.0
    while budget > 0 and w.num_active + d.num_admit < max_seqs and has_place(view, decision):
        i = next_to_admit(view, decision, memory.state, by_priority)
        if i == UNKNOWN:
            break
        row = view.requests[i]
        lacking = tokens_lacking(params, row.num_prefill_left)
        if lacking > budget and params[_CHUNKED] == 0.0:
            break
        tokens = min(lacking, budget)
        taken = held_by(view, row) + kv_growth(view.problem, row, tokens)
        room = view.problem.kv_capacity - used
        if w.num_active + d.num_admit > 0:
            room -= int(params[_WATERMARK])
        if taken > room or (params[_WHOLE_INPUT] == 1.0 and need_of(view, row) > room):
            break
        if tokens == full_tokens(row.num_prefill_left):
            admit(decision, i)
        else:
            admit_tokens(decision, i, tokens)
        budget -= tokens
        used += taken
        if by_priority:
            heap_pop(memory.state, 0)


@policy_kernel
def vllm_v1_kernel(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> None:
    """Schedule running requests first, and waiting ones only in an iteration without preemption."""
    w = view.worker
    forget_left(view, memory.state, 0)
    for j in range(w.num_queued if memory.params[_BY_PRIORITY] == 1.0 else 0):
        i = view.queued[j]
        heap_push(memory.state, 0, urgency(view.requests[i], i))
    budget, used = schedule_running(view, decision, memory.params)
    if decision.record.num_evict == 0:
        start_waiting(view, decision, memory, budget, used)


def _check_budget(budget: int | str, seqs: int | str) -> None:
    """Raise an error if the budget is below the maximum number of running requests, as the engine does."""
    if isinstance(budget, int) and isinstance(seqs, int) and budget < seqs:
        raise ConfigError(
            f"max_num_batched_tokens = {budget} is below max_num_seqs = {seqs}; expected a token for every running "
            "request at least"
        )


@register_policy
class VLLMV1(CompiledPolicy):
    """vLLM's V1 engine: a token budget for running and then waiting requests, preemption by recomputation."""

    info = PolicyInfo(
        name="vllm_v1",
        summary="running requests first, then waiting ones, within one token budget; preempts the newest",
        paper="vLLM project, documentation and source of the V1 engine (docs.vllm.ai)",
        algorithm="scheduler",
        chunks_prefill=True,
        pauses=True,
        evicts=True,
        rules=VLLM_RULES,
        auto=tuple(zip(("max_num_batched_tokens", "max_num_seqs"), USUAL, strict=True)),
        budget="max_num_batched_tokens",
    )
    kernel = vllm_v1_kernel

    def __init__(
        self,
        *,
        max_num_batched_tokens: int | str = AUTO,
        max_num_seqs: int | str = AUTO,
        long_prefill_token_threshold: int = 0,
        policy: str = "fcfs",
        enable_chunked_prefill: bool = True,
        scheduler_reserve_full_isl: bool = True,
        watermark: float = 0.0,
    ) -> None:
        """Set the budget, the limits and the order; names and defaults are the engine's.

        Args:
            max_num_batched_tokens: tokens per iteration; a decode is one. ``"auto"``: the engine's default for the
                GPU as an API server: 16,384 from 160 GiB of memory on, 8,192 from 70 GiB on except on an A100, and
                2,048 otherwise, also on unknown hardware.
            max_num_seqs: maximum number of running requests. ``"auto"``: the engine's default by the same table
                (1,024, 1,024 and 256), at most ``max_num_batched_tokens``.
            long_prefill_token_threshold: maximum tokens of one prompt in an iteration; 0 = no limit.
            policy: ``"fcfs"``, or ``"priority"``: by priority, then by arrival, waiting requests start and running
                ones are preempted.
            enable_chunked_prefill: whether a prompt may start with a part that fits into the remaining budget. If
                not, it waits until the budget holds all of it (or all up to ``long_prefill_token_threshold``). A
                prompt longer than the whole budget never starts: the engine refuses models with a longer context;
                here the run ends with an error that names the request.
            scheduler_reserve_full_isl: whether a request starts only if all its tokens to compute fit into memory,
                not just its first chunk.
            watermark: fraction of the memory that stays free when a request starts beside others, in [0, 1).

        Raises:
            ConfigError: a value is out of range, or the budget is below ``max_num_seqs``, which the engine also
                refuses.
        """
        for name, value in (
            ("max_num_batched_tokens", max_num_batched_tokens),
            ("max_num_seqs", max_num_seqs),
        ):
            if value != AUTO:
                require(name, value, isinstance(value, int) and value >= 1, f"a whole number ≥ 1, or {AUTO}")
        require_count("long_prefill_token_threshold", long_prefill_token_threshold, least=0)
        require("policy", policy, policy in ("fcfs", "priority"), "fcfs or priority")
        require_flag("enable_chunked_prefill", enable_chunked_prefill)
        require_flag("scheduler_reserve_full_isl", scheduler_reserve_full_isl)
        require_fraction("watermark", watermark)
        _check_budget(max_num_batched_tokens, max_num_seqs)
        self.max_num_batched_tokens, self.max_num_seqs = max_num_batched_tokens, max_num_seqs
        self.long_prefill_token_threshold, self.policy = long_prefill_token_threshold, policy
        self.enable_chunked_prefill = enable_chunked_prefill
        self.scheduler_reserve_full_isl, self.watermark = scheduler_reserve_full_isl, watermark

    def resolve(self, system: SystemInfo) -> dict[str, Any]:
        """Return the budget and the number of running requests that the engine chooses for the GPU, unless given.

        Raises:
            ConfigError: the engine's budget is below the given ``max_num_seqs``.
        """
        budget, seqs = engine_defaults(system.batch_time.device)
        found: dict[str, Any] = {}
        if self.max_num_batched_tokens == AUTO:
            found["max_num_batched_tokens"] = budget
            _check_budget(budget, self.max_num_seqs)
        else:
            budget = int(self.max_num_batched_tokens)
        if self.max_num_seqs == AUTO:
            found["max_num_seqs"] = min(seqs, budget)
        return found

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the hyperparameters, with the watermark in tokens of whole blocks, rounded down like the engine's."""
        watermark = whole_blocks_of(system, self.watermark)
        limits = {"max_num_batched_tokens": self.max_num_batched_tokens, "max_num_seqs": self.max_num_seqs}
        return np.array([
            *(limits | self.resolve(system)).values(), self.long_prefill_token_threshold,
            self.policy == "priority", self.enable_chunked_prefill, self.scheduler_reserve_full_isl, watermark,
        ], dtype=np.float64)  # fmt: skip

    def memory(self, system: SystemInfo) -> RuleMemory:
        """Return the heap of waiting requests."""
        return rule_memory(self.params(system), state=np.zeros(1 + system.max_requests))

    def blocking(self, view: SystemView) -> int | None:
        """Return the first waiting request in the policy's order, which no other may pass."""
        waiting = view.waiting
        if len(waiting) == 0:
            return None
        if self.policy == "fcfs":
            return int(waiting.request_id[0])
        return int(
            waiting.request_id[np.lexsort((waiting.request_id, -waiting.priority.astype(np.int64)))[0]]
        )
