"""WAIT: a type of request runs only when enough of its requests have accumulated at the door.

Source: R. Ao, G. Luo, D. Simchi-Levi, X. Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with
Memory Constraints", Algorithm 1, thresholds (11) and the practical rule of Section 6.1. The paper's model is
``first_token="decode"``, ``progress_on_evict="lost"``, ``requeue="back"``; the rule works under the others too.

Readings, shared with Nested WAIT (:mod:`kvgym.baselines.nested_wait`):

- A request is at stage 0 while it waits in the queue, whatever it kept over an eviction, and at stage s + 1 when
  it is active with s output tokens. Of every stage those run that were activated first.
- What does not fit is evicted LIFO: those picked last at this very moment are not admitted, then the latest
  activated go, paused ones included, until the batch and what is paused beside it fit. If nothing of the batch
  would be left, nobody is evicted, and the policy goes on as if no type had reached its threshold. So the oldest
  active request is never evicted, and with the drain rule every run ends. With the paper's first-token rule no
  stage of Algorithm 1 ever holds more than n_j requests: nothing is evicted where the capacity is at least M^π.
- Thresholds count requests and follow from the paper's conditions, in which memory is tokens, whatever the block size
  of the system; admission and eviction count blocks. M^π is then to be read as the blocks of its requests.
- The last requests of a finite trace never reach a threshold. The drain rule, which the paper does not have,
  serves them: once ``patience`` seconds have passed with neither an arrival nor a batch, everything active runs
  in full and up to a threshold of each type is admitted, iteration by iteration, until a type has reached its
  threshold again or nothing is active.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.kernels import (
    REQUEUE_ARRIVAL,
    REQUEUE_FRONT,
    UNKNOWN,
    WAIT,
    RuleDecision,
    RuleMemory,
    RuleView,
    admit,
    evict,
    evict_latest,
    has_place,
    held_by,
    jit,
    jit_inline,
    need_of,
    need_of_active,
    pause,
    policy_kernel,
    rule_memory,
)
from kvgym.policy import (
    CompiledPolicy,
    PolicyInfo,
    SystemInfo,
    numbers_of,
    register_policy,
    require,
    require_count,
    require_flag,
)

PAPER = "Ao et al., Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory Constraints"

# Layout of the state array, shared with Nested WAIT: whether the last decision was to wait (its latest end is
# reals[0]) and whether the drain rule is in force. Then, here, a queue for each class: heads, tails, lengths,
# and for every request the next one of its class.
_HOLDING, _DRAINING, QUEUES = 0, 1, 2

# Layout of the parameters, shared with Nested WAIT; the thresholds follow.
NUM_THRESHOLDS, DRAIN, PATIENCE, THRESHOLDS = 0, 1, 2, 3


@jit
def num_stages(view: RuleView) -> int:
    """Return a number above every stage that a request can reach."""
    return view.problem.kv_capacity + 2


@jit
def evict_newest(view: RuleView, decision: RuleDecision, need: int, running: int) -> int:
    """Evict LIFO until the planned batch fits; returns how many of the ``running`` requests are left."""
    k = view.worker.num_active - 1
    while need > view.problem.kv_capacity and k >= 0:
        slot = view.active[k]
        if slot.planned == 0:
            need -= held_by(view, slot)
        else:
            need -= need_of(view, slot)
            running -= 1
        slot.planned = UNKNOWN
        evict(decision, k)
        k -= 1
    return running


@jit
def plan_all(view: RuleView, decision: RuleDecision) -> None:
    """Take a plan back: everything active runs in full, nobody is evicted or admitted."""
    d = decision.record
    if d.explicit == 1:
        for k in range(view.worker.num_active):
            view.active[k].planned = UNKNOWN
    d.explicit = d.num_admit = d.num_evict = 0


@jit_inline
def start_batch(memory: RuleMemory) -> None:
    """Note that a batch runs."""
    memory.state[_HOLDING] = 0


@jit_inline
def stop_draining(memory: RuleMemory) -> None:
    """Go back to thresholds."""
    memory.state[_DRAINING] = 0


@jit
def drain_or_wait(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> bool:
    """Return True if everything is to be drained now; else decide to wait for the next arrival."""
    w, state, reals = view.worker, memory.state, memory.reals
    if memory.params[DRAIN] == 1.0:
        if w.num_active == 0:
            state[_DRAINING] = 0
        if state[_HOLDING] == 0 or w.num_queued > 0:
            reals[0] = w.clock + memory.params[PATIENCE]
        if reals[0] <= w.clock:
            state[_DRAINING] = 1
        if state[_DRAINING] == 1:
            return True
        decision.record.wait_until = reals[0]
    decision.record.act = WAIT
    state[_HOLDING] = 1
    return False


@jit_inline
def join_class(view: RuleView, state: Any, m: int, i: int) -> None:
    """Add request ``i`` to the queue of its class, where it stands in the waiting queue."""
    r, requeue = view.requests[i], view.problem.requeue
    c = r.class_id
    head, tail, following = QUEUES + c, QUEUES + m + c, QUEUES + 3 * m
    state[QUEUES + 2 * m + c] += 1
    before, at = UNKNOWN, UNKNOWN
    if r.num_evictions > 0 and requeue == REQUEUE_FRONT:
        at = state[head]
    elif r.num_evictions > 0 and requeue == REQUEUE_ARRIVAL:
        at = state[head]
        while at != UNKNOWN and at < i:
            before, at = at, state[following + at]
    else:
        before = state[tail]
    state[following + i] = at
    if before == UNKNOWN:
        state[head] = i
    else:
        state[following + before] = i
    if at == UNKNOWN:
        state[tail] = i


@jit_inline
def leave_classes(view: RuleView, decision: RuleDecision, state: Any, m: int) -> None:
    """Take those admitted, who stood first, out of the queues of their classes."""
    for j in range(decision.record.num_admit):
        i = decision.admit[j]
        c = view.requests[i].class_id
        state[QUEUES + c] = state[QUEUES + 3 * m + i]
        if state[QUEUES + c] == UNKNOWN:
            state[QUEUES + m + c] = UNKNOWN
        state[QUEUES + 2 * m + c] -= 1


@jit_inline
def admit_by_class(
    view: RuleView, decision: RuleDecision, memory: RuleMemory, need: int, below: bool
) -> None:
    """Admit up to n_j requests of each class in queue order while they fit, class by class.

    With ``below``, classes that have not reached their threshold take part as well.
    """
    state, m = memory.state, int(memory.params[NUM_THRESHOLDS])
    for c in range(m):
        threshold = int(memory.params[THRESHOLDS + c])
        if not below and state[QUEUES + 2 * m + c] < threshold:
            continue
        i = state[QUEUES + c]
        for _ in range(threshold):
            if i == UNKNOWN:
                break
            need += need_of(view, view.requests[i])
            if need > view.problem.kv_capacity or not has_place(view, decision):
                return
            admit(decision, i)
            i = state[QUEUES + 3 * m + i]


@jit_inline
def plan_thresholds(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> tuple[int, int]:
    """Plan min(n_j, n_js) requests of each class that has reached its threshold, at each stage; pause others.

    The profile counts the planned requests by class and stage and is zero before and after.

    Returns:
        How many active requests run, and the memory needed.
    """
    params, state, profile = memory.params, memory.state, memory.profile
    m, stages = int(params[NUM_THRESHOLDS]), num_stages(view)
    running, need = 0, 0
    for k in range(view.worker.num_active):
        slot = view.active[k]
        threshold = int(params[THRESHOLDS + slot.class_id])
        at = slot.class_id * stages + slot.num_output_tokens + 1
        if state[QUEUES + 2 * m + slot.class_id] >= threshold and profile[at] < threshold:
            profile[at] += 1
            running += 1
            need += need_of(view, slot)
        else:
            need += held_by(view, slot)
            pause(decision, slot)
    for k in range(view.worker.num_active):
        profile[view.active[k].class_id * stages + view.active[k].num_output_tokens + 1] = 0
    return running, need


@policy_kernel
def wait_kernel(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> None:
    """Algorithm 1, with the drain rule."""
    state, capacity, m = memory.state, view.problem.kv_capacity, int(memory.params[NUM_THRESHOLDS])
    for j in range(view.worker.num_queued):
        join_class(view, state, m, view.queued[j])
    reached = False
    for c in range(m):
        reached |= state[QUEUES + 2 * m + c] >= memory.params[THRESHOLDS + c]
    if reached:
        running, need = plan_thresholds(view, decision, memory)
        if need > capacity:
            running = evict_newest(view, decision, need, running)
        else:
            admit_by_class(view, decision, memory, need, False)
        if running + decision.record.num_admit > 0:
            stop_draining(memory)
            leave_classes(view, decision, state, m)
            start_batch(memory)
            return
        plan_all(view, decision)
    if drain_or_wait(view, decision, memory):
        need = need_of_active(view)
        if need > capacity:
            evict_latest(view, decision, need)
        else:
            admit_by_class(view, decision, memory, need, True)
        leave_classes(view, decision, state, m)
        start_batch(memory)


class ThresholdPolicy(CompiledPolicy):
    """What WAIT and Nested WAIT share: where thresholds come from, and the drain rule."""

    def __init__(
        self,
        *,
        thresholds: str | int | Sequence[int] | None = None,
        rule: str = "fluid",
        batch_limit: int = 128,
        drain: bool = True,
        patience: float | None = None,
    ) -> None:
        """Set thresholds and drain rule.

        Args:
            thresholds: requests per stage, whole numbers ≥ 1, one for each class (or segment) as in
                ``"20/10/5"``, or one for all. None = computed by ``rule``.
            rule: ``"fluid"``, the least thresholds that the paper's condition admits under the run's
                batch-time model, or ``"practical"``, those of its experiments, which share out
                ``batch_limit``.
            batch_limit: B of the practical rule, requests.
            drain: whether requests that reach no threshold are served after ``patience`` seconds. Without
                it the end of a finite trace is a deadlock.
            patience: seconds without arrival or batch after which the drain rule begins; None = ten times
                the mean time that arrivals take to reach a threshold, the slowest one's, at least 1 s.
        """
        self.thresholds = None if thresholds is None else numbers_of("thresholds", thresholds)
        require("thresholds", thresholds, min(self.thresholds or (1,)) >= 1, "whole numbers >= 1, or None")
        require("rule", rule, rule in ("fluid", "practical"), "fluid or practical")
        require_count("batch_limit", batch_limit)
        require_flag("drain", drain)
        require(
            "patience",
            patience,
            patience is None or 0 < patience < np.inf,
            "a number of seconds > 0, or None",
        )
        self.rule, self.batch_limit, self.drain, self.patience = rule, batch_limit, drain, patience

    def given_thresholds(self, count: int, what: str) -> NDArray[np.int64] | None:
        """Return the thresholds of the constructor, int64 (count,), or None if they are to be computed.

        Raises:
            ConfigError: their number is neither 1 nor ``count``.
        """
        if self.thresholds is None:
            return None
        if len(self.thresholds) not in (1, count):
            raise ConfigError(
                f"policy {self.info.name!r}: thresholds = {self.thresholds}, but there are {count} {what}; "
                "expected one threshold for each, or one for all"
            )
        return np.broadcast_to(np.array(self.thresholds, dtype=np.int64), (count,))

    def computed_thresholds(self, compute: Callable[[], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return what ``compute`` returns, thresholds of shape (m,).

        Raises:
            ConfigError: no thresholds satisfy the paper's condition.
        """
        try:
            return compute()
        except ConfigError as error:
            raise ConfigError(
                f"policy {self.info.name!r}: {error}; lower the rates, or give thresholds or rule=practical"
            ) from error

    def shared_params(self, thresholds: NDArray[np.int64], rates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return number of thresholds, drain, patience in seconds, and the thresholds.

        Args:
            thresholds: of each class or segment, shape (m,).
            rates: arrivals per second that count towards each, shape (m,); 0 = none.
        """
        some = rates > 0
        slowest = float((thresholds[some] / rates[some]).max()) if some.any() else 0.0
        patience = max(1.0, 10.0 * slowest) if self.patience is None else self.patience
        return np.array([len(thresholds), self.drain, patience, *thresholds], dtype=np.float64)


@register_policy
class Wait(ThresholdPolicy):
    """Waiting for Accumulated Inference Threshold: types run together, each with a threshold of its own."""

    info = PolicyInfo(
        name="wait",
        summary="a class runs when enough of it wait, and a threshold of it at every stage",
        paper=PAPER,
        algorithm="Algorithm 1",
        needs=frozenset({"class", "class_rates"}),
        pauses=True,
        evicts=True,
    )
    kernel = wait_kernel

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the shared parameters with the threshold of each class.

        Raises:
            ConfigError: no thresholds satisfy (11), because more requests arrive than the worker can serve,
                or their number is not that of the classes.
        """
        from kvgym.theory.fluid import practical_thresholds, wait_thresholds  # SciPy is slow to load

        thresholds = self.given_thresholds(len(system.classes), "classes")
        if thresholds is None and self.rule == "fluid":
            thresholds = self.computed_thresholds(lambda: wait_thresholds(system.classes, system.batch_time))
        elif thresholds is None:
            thresholds = practical_thresholds(system.classes, self.batch_limit)
        return self.shared_params(thresholds, np.array([c.rate for c in system.classes]))

    def memory(self, system: SystemInfo) -> RuleMemory:
        """Return empty queues of the classes, and a counter for each class and stage."""
        m = len(system.classes)
        state = np.full(QUEUES + 3 * m + system.max_requests, UNKNOWN, dtype=np.int64)
        state[[_HOLDING, _DRAINING]] = 0
        state[QUEUES + 2 * m : QUEUES + 3 * m] = 0
        profile = np.zeros(m * (system.kv_capacity + 2), np.int32)
        return rule_memory(self.params(system), state=state, profile=profile)
