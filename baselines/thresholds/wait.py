"""WAIT: a class of requests runs only after enough of them have accumulated in the queue.

Source: R. Ao, G. Luo, D. Simchi-Levi, X. Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with
Memory Constraints", Algorithm 1, thresholds (11) and the practical rule of Section 6.1. The paper's model is
``first_token="decode"``, ``progress_on_evict="lost"``, ``requeue="back"``; the policy works with the others too.

Readings, shared with Nested WAIT (:mod:`kvgym.baselines.thresholds.nested_wait`):

- The paper's types are the workload's classes. A request is at stage 0 while it waits in the queue, even if it kept
  progress over an eviction, and at stage s + 1 while it is active with s output tokens. At every stage the requests
  activated first run.
- Overflow is evicted LIFO: requests picked last at this boundary are not admitted, then the latest activated are
  evicted, paused ones included, until the batch and the paused requests fit. If no request of the batch would remain,
  none is evicted, and the policy continues as if no type had reached its threshold. So the oldest active request is
  never evicted, and with the drain rule every run ends. With the paper's first-token rule, no stage of Algorithm 1
  ever holds more than n_j requests: none is evicted if the capacity is at least M^π.
- Thresholds count requests and follow from the paper's conditions, in which memory is tokens regardless of the
  system's block size. Admission and eviction count blocks; read M^π as the blocks of its requests.
- The last requests of a finite trace never reach a threshold. The drain rule, which the paper does not have, serves
  them. It starts after ``patience`` seconds without an arrival or a batch. Then, in every iteration, all active
  requests run in full and up to a threshold of each type is admitted, until a type has reached its threshold again or
  no request is active.
- Rates may change over time. The rule ``peak`` takes thresholds from (15), which the paper states for Nested WAIT: no
  full batch may be smaller than the arrivals of any interval of its duration. It knows the rates as functions of time
  (from the workload's classes) but no request. Section 2.2 also mentions dynamically adjusted thresholds, without a
  method. Here (``adjust``) a rate is estimated from past arrivals, each weighted by e^(-age / adjust), starting at
  the mean rate. The condition is solved again every sixteenth of ``adjust`` seconds; thresholds with a full batch
  larger than the memory are not used.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines.thresholds.counting import (
    IN_FORCE,
    adjust_thresholds,
    admit_by_queue,
    begin_count,
    counted,
    drain_or_wait,
    evict_newest,
    fade_counts,
    forget_of_queue,
    join_queue,
    leave_queue,
    num_stages,
    plan_all,
    reached,
    run_to,
    shared,
    start_batch,
    stop_draining,
)
from kvgym.baselines.thresholds.policy import PAPER, ThresholdPolicy
from kvgym.kernels import (
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    evict_latest,
    full_tokens,
    jit_inline,
    kv_growth,
    left_request,
    need_of_active,
    pause,
    policy_kernel,
)
from kvgym.policies.policy import PolicyInfo, SystemInfo, register_policy


@jit_inline
def leave_queues(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Remove the admitted requests, which are first, from the queues of their classes."""
    for j in range(decision.record.num_admit):
        leave_queue(memory, view.requests[decision.admit[j]].class_id)


@jit_inline
def plan_thresholds(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> tuple[int, int]:
    """Plan min(n_j, n_js) requests at each stage of every class that has reached its threshold; pause the others.

    The profile counts the planned requests by class and stage.

    Returns:
        The number of active requests that run, and the memory needed.
    """
    profile, state, stages = memory.profile, memory.state, num_stages(view)
    running, need, quotas = 0, view.worker.kv_allocated, run_to(memory, 0)
    classes = shared(memory.params).num_queues
    base = begin_count(view, memory, classes * stages)
    for c in range(classes):
        state[quotas + c] = state[IN_FORCE + c] if reached(memory, c) else 0
    for k in range(view.worker.num_active):
        slot = view.active[k]
        at = slot.class_id * stages + slot.num_output_tokens + 1
        if counted(profile, at, base, state[quotas + slot.class_id]):
            running += 1
            need += kv_growth(view.problem, slot, full_tokens(slot.num_prefill_left))
        else:
            pause(decision, slot)
    return running, need


@policy_kernel
def wait_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Algorithm 1, with the drain rule."""
    capacity = view.problem.kv_capacity
    if shared(memory.params).adjust > 0:
        fade_counts(view, memory)
    for j in range(view.worker.num_left):
        i = left_request(view, j)
        forget_of_queue(memory, view.requests[i].class_id, i)
    for j in range(view.worker.num_queued):
        i = view.queued[j]
        join_queue(view, memory, view.requests[i].class_id, i)
    if shared(memory.params).adjust > 0:
        adjust_thresholds(view, memory)
    some = False
    for c in range(shared(memory.params).num_queues):
        some |= reached(memory, c)
    if some:
        running, need = plan_thresholds(view, decision, memory)
        if need > capacity:
            running = evict_newest(view, decision, need, running)
        else:
            admit_by_queue(view, decision, memory, need, False)
        if running + decision.record.num_admit > 0:
            stop_draining(memory)
            leave_queues(view, decision, memory)
            start_batch(memory)
            return
        plan_all(view, decision)
    if drain_or_wait(view, decision, memory):
        need = need_of_active(view)
        if need > capacity:
            evict_latest(view, decision, need)
        else:
            admit_by_queue(view, decision, memory, need, True)
        leave_queues(view, decision, memory)
        start_batch(memory)


@register_policy
class Wait(ThresholdPolicy):
    """Waiting for Accumulated Inference Threshold: classes run together, each with its own threshold."""

    info = PolicyInfo(
        name="wait",
        summary="a class runs when its threshold of requests waits, with up to that many at every stage",
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
            ConfigError: no thresholds satisfy (11) or (15), because more requests arrive than the worker can serve;
                or their number differs from the number of classes.
        """
        # SciPy is slow to load
        from kvgym.theory.fluid import practical_thresholds, wait_thresholds
        from kvgym.theory.time_varying import time_varying_wait_thresholds

        classes = system.classes
        find = {"fluid": wait_thresholds, "peak": time_varying_wait_thresholds}
        thresholds = self.given_thresholds(len(classes), "classes")
        if thresholds is None and self.rule == "practical":
            thresholds = practical_thresholds(classes, self.batch_limit)
        elif thresholds is None:
            thresholds = self.computed_thresholds(
                lambda: find[self.rule](classes, system.batch_time, slack=self.slack)
            )
        prompt, output = (np.array([getattr(c, f"{x}_len") for c in classes]) for x in ("prompt", "output"))
        context = output * (prompt + (output - 1) / 2)
        return self.shared_params(
            thresholds,
            np.array([c.rate for c in classes]),
            loads=np.column_stack([np.ones(len(classes)), prompt, prompt**2, output, context]),
            firsts=np.arange(len(classes) + 1),
        )

    def profile(self, system: SystemInfo) -> NDArray[np.int32]:
        """Return zeroed counters, one for each class and stage."""
        return np.zeros(self.num_counters(len(system.classes), system), np.int32)
