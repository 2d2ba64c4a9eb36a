"""Nested WAIT: requests sort themselves into segments of output length as they decode.

Source: R. Ao, G. Luo, D. Simchi-Levi, X. Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with
Memory Constraints", Algorithm 2, thresholds (12) and the practical rule of Section 6.2.

Readings, beside those of :mod:`kvgym.baselines.wait`: segment k holds stages l'_{k-1} + 1 … l'_k as in the
text (Algorithm 2's sets are one short), and the waiting queue, stage 0, belongs to segment 1. The entry of a
later segment is its first stage, l'_{k-1} + 1. A request leaves whenever it finishes, not only at the end of the
last segment; one that outlives the last boundary stays in the last segment. All classes are taken to have one
prompt length, the mean over arrivals.

Below the memory that Theorem 2 asks for, paused requests can fill the worker: nothing moves until the drain rule
sets in, and without it the run ends in the engine's livelock error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines.wait import (
    NUM_THRESHOLDS,
    PAPER,
    QUEUES,
    THRESHOLDS,
    ThresholdPolicy,
    drain_or_wait,
    evict_newest,
    num_stages,
    plan_all,
    start_batch,
    stop_draining,
)
from kvgym.errors import ConfigError
from kvgym.kernels import (
    RuleDecision,
    RuleMemory,
    RuleView,
    admit_while_fits,
    evict_latest,
    held_by,
    jit_inline,
    need_of,
    need_of_active,
    pause,
    policy_kernel,
    rule_memory,
)
from kvgym.policy import PolicyInfo, SystemInfo, numbers_of, register_policy, require

# The profile array holds, by output tokens made: how many active requests are there, and their segment.


@jit_inline
def plan_segments(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> tuple[int, int]:
    """Plan min(n_k, count) requests at each stage of the segments that run, and pause all others.

    Segments run up to the largest k such that every segment up to it has reached its threshold at its entry;
    segment 1 has, or this is not called.

    Returns:
        How many active requests run, and the memory needed.
    """
    params, profile, num_active = memory.params, memory.profile, view.worker.num_active
    m, segment_of = int(params[NUM_THRESHOLDS]), num_stages(view)
    for k in range(num_active):
        profile[view.active[k].num_output_tokens] += 1
    segments = 1
    while segments < m and (
        profile[int(params[THRESHOLDS + m + segments - 1])] >= params[THRESHOLDS + segments]
    ):
        segments += 1
    running, need = 0, 0
    for k in range(num_active - 1, -1, -1):  # from the newest: of each stage the surplus is paused
        slot = view.active[k]
        stage = slot.num_output_tokens
        segment = profile[segment_of + stage]
        if segment >= segments or profile[stage] > params[THRESHOLDS + segment]:
            profile[stage] -= 1
            need += held_by(view, slot)
            pause(decision, slot)
        else:
            running += 1
            need += need_of(view, slot)
    for k in range(num_active):
        profile[view.active[k].num_output_tokens] = 0
    return running, need


@policy_kernel
def nested_wait_kernel(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> None:
    """Algorithm 2, with the drain rule."""
    capacity, threshold = view.problem.kv_capacity, int(memory.params[THRESHOLDS])
    if view.worker.num_waiting >= threshold:
        running, need = plan_segments(view, decision, memory)
        if need > capacity:
            running = evict_newest(view, decision, need, running)
        else:
            admit_while_fits(view, decision, need, capacity, threshold)
        if running + decision.record.num_admit > 0:
            stop_draining(memory)
            start_batch(memory)
            return
        plan_all(view, decision)
    if drain_or_wait(view, decision, memory):
        need = need_of_active(view)
        if need > capacity:
            evict_latest(view, decision, need)
        else:
            admit_while_fits(view, decision, need, capacity, threshold)
        start_batch(memory)


@register_policy
class NestedWait(ThresholdPolicy):
    """Nested WAIT: thresholds by segment of output length, without knowing any length in advance."""

    info = PolicyInfo(
        name="nested_wait",
        summary="segments of output length run as far as each has reached its threshold at its entry",
        paper=PAPER,
        algorithm="Algorithm 2",
        needs=frozenset({"class_rates"}),
        pauses=True,
        evicts=True,
    )
    kernel = nested_wait_kernel

    def __init__(
        self,
        *,
        thresholds: str | int | Sequence[int] | None = None,
        segments: str | int | Sequence[int] | None = None,
        rule: str = "fluid",
        batch_limit: int = 128,
        drain: bool = True,
        patience: float | None = None,
    ) -> None:
        """Set segments, thresholds and drain rule.

        Args:
            thresholds: requests per stage, one for each segment as in ``"15/14/12/8"``, or one for all. None =
                computed by ``rule``.
            segments: ascending output lengths l'_1 < l'_2 < … at which segments end, as in
                ``"20/40/80/160"``; None = the mean output lengths of the classes, rounded.
            rule: ``"fluid"``, the least thresholds that satisfy (12) under the run's batch-time model, or
                ``"practical"``, proportional to the arrivals that reach each segment (Section 6.2).
            batch_limit: requests that the practical rule shares out over all stages.
            drain: as for ``wait``.
            patience: as for ``wait``; what counts towards a threshold are arrivals that reach the segment.
        """
        super().__init__(
            thresholds=thresholds, rule=rule, batch_limit=batch_limit, drain=drain, patience=patience
        )
        self.segments = None if segments is None else numbers_of("segments", segments)
        ends = np.array(self.segments or (1,))
        require(
            "segments",
            segments,
            bool(ends[0] >= 1 and (np.diff(ends) > 0).all()),
            "ascending whole numbers >= 1, or None",
        )

    def boundaries(self, system: SystemInfo) -> NDArray[np.int64]:
        """Return the output lengths at which segments end, int64 (m,)."""
        if self.segments is not None:
            return np.array(self.segments, dtype=np.int64)
        return np.unique([max(1, round(c.output_len)) for c in system.classes]).astype(np.int64)

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the shared parameters with the threshold of each segment, then the segments' ends.

        Raises:
            ConfigError: no thresholds satisfy (12), because more requests arrive than the worker can serve,
                their number is not that of the segments, or they cannot be computed because no class ends in
                some segment.
        """
        from kvgym.theory.nested import (
            nested_thresholds,
            practical_nested_thresholds,
        )  # SciPy is slow to load

        ends = self.boundaries(system)
        rates = np.array([c.rate for c in system.classes])
        lengths = np.array([max(1, round(c.output_len)) for c in system.classes])
        segment = np.minimum(np.searchsorted(ends, lengths), len(ends) - 1)
        ending = np.zeros(len(ends))
        np.add.at(ending, segment, rates)
        reaching = np.cumsum(ending[::-1])[::-1]
        thresholds = self.given_thresholds(len(ends), "segments")
        if thresholds is None and not ending.all():
            raise ConfigError(
                f"policy {self.info.name!r}: no class has its mean output in segment {int(ending.argmin()) + 1} "
                f"of {ends.tolist()}, so thresholds cannot be computed; give thresholds, or other segments"
            )
        if thresholds is None and self.rule == "fluid":
            prompt_len = float(rates @ [c.prompt_len for c in system.classes] / rates.sum())
            thresholds = self.computed_thresholds(
                lambda: nested_thresholds(ending, prompt_len, ends, system.batch_time)
            )
        elif thresholds is None:
            thresholds = practical_nested_thresholds(ending, ends, self.batch_limit)
        return np.concatenate([self.shared_params(thresholds, reaching), ends])

    def memory(self, system: SystemInfo) -> RuleMemory:
        """Return a counter and the segment for each number of output tokens."""
        ends, stages = self.boundaries(system), system.kv_capacity + 2
        profile = np.zeros(2 * stages, np.int32)
        profile[stages:] = np.minimum(np.searchsorted(ends, np.arange(stages), side="right"), len(ends) - 1)
        return rule_memory(self.params(system), state=np.zeros(QUEUES), profile=profile)
