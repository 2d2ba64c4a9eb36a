"""Nested WAIT: requests move through segments of output length as they decode.

Source: R. Ao, G. Luo, D. Simchi-Levi, X. Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with
Memory Constraints", Algorithm 2, thresholds (12) and the practical rule of Section 6.2.

Readings, in addition to those of :mod:`kvgym.baselines.thresholds.wait`: segment k holds stages l'_{k-1} + 1 … l'_k
as in the text (the sets of Algorithm 2 are one short). The waiting queue, stage 0, belongs to segment 1. The entry of
a later segment is its first stage, l'_{k-1} + 1. A request leaves whenever it finishes, not only at the end of the
last segment; one that outlives the last boundary stays in the last segment. All classes share one prompt length, the
mean over arrivals, unless there are groups. Section 5.1 says that other prompt lengths are handled as Algorithm 1
handles types, with a group of segments for each length (``groups``). As read here, every group has its own queue,
segments and thresholds. It meets (12) with its own arrivals and the time of a batch that is full in all groups, and
takes part in a batch if its first segment has reached its threshold.

For changing rates, ``peak`` takes thresholds from (15) with the worst shares p*_k. ``overflow`` chooses their drift
so that the memory bound (14), with theta of (20) or (21), is least. ``adjust`` estimates the rate of each group from
its arrivals; the shares that continue from segment to segment stay those of the mean rates.

With less memory than Theorem 2 requires, paused requests can fill the worker. Nothing moves then until the drain rule
starts; without it the run ends in the engine's livelock error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    first_of,
    forget_of_queue,
    join_queue,
    leave_queue,
    num_stages,
    plan_all,
    reached,
    rest,
    run_to,
    shared,
    start_batch,
    stop_draining,
)
from kvgym.baselines.thresholds.policy import PAPER, ThresholdPolicy
from kvgym.errors import ConfigError, shown
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
from kvgym.policies.hyperparameters import (
    hyperparameter,
    numbers_of,
    parsed,
    require,
)
from kvgym.policies.policy import PolicyInfo, SystemInfo, register_policy
from kvgym.workloads.classes import ClassStatistics

if TYPE_CHECKING:
    from kvgym.theory.groups import SegmentGroup

BATCHES = 1_000_000
"""Number of batches that ``overflow`` refers to; the bound grows with its logarithm."""

# The policy's own parameters: for each group the longest prompt, then for each threshold the end of its segment. The
# profile holds, by group and number of output tokens, a count of active requests and their threshold.


@jit_inline
def group_of(memory: PolicyMemory, prompt_len: int) -> int:
    """Return the group of a prompt: the first one with a limit of at least this length."""
    q, own = 0, rest(memory)
    while q < shared(memory.params).num_queues - 1 and prompt_len > memory.params[own + q]:
        q += 1
    return q


@jit_inline
def leave_queues(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Remove the admitted requests, which are first, from the queues of their groups."""
    for j in range(decision.record.num_admit):
        leave_queue(memory, group_of(memory, view.requests[decision.admit[j]].prompt_len))


@jit_inline
def plan_segments(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> tuple[int, int]:
    """Plan min(n_k, count) requests at each stage of the running segments, and pause all others.

    The segments of a group run up to the largest k such that all segments up to k have reached their thresholds at
    their entries. The caller ensures that at least one group has such a segment.

    Returns:
        The number of active requests that run, and the memory needed.
    """
    state, profile, num_active = memory.state, memory.profile, view.worker.num_active
    queues, stages = shared(memory.params).num_queues, num_stages(view)
    ends, segment_of = rest(memory) + queues, queues * stages
    base = begin_count(view, memory, segment_of)
    for k in range(num_active):
        slot = view.active[k]
        counted(
            profile, group_of(memory, slot.prompt_len) * stages + slot.num_output_tokens, base, num_active
        )
    for q in range(queues):
        t = first_of(memory, q)
        if reached(memory, q):
            t += 1
            while t < first_of(memory, q + 1) and (
                profile[q * stages + int(memory.params[ends + t - 1])] - base >= state[IN_FORCE + t]
            ):
                t += 1
        state[run_to(memory, q)] = t
    running, need, runs_to = 0, view.worker.kv_allocated, run_to(memory, 0)
    base = begin_count(view, memory, segment_of)
    for k in range(num_active):
        slot = view.active[k]
        q = group_of(memory, slot.prompt_len)
        at = q * stages + slot.num_output_tokens
        t = profile[segment_of + at]
        if t < state[runs_to + q] and counted(profile, at, base, state[IN_FORCE + t]):
            running += 1
            need += kv_growth(view.problem, slot, full_tokens(slot.num_prefill_left))
        else:
            pause(decision, slot)
    return running, need


@policy_kernel
def nested_wait_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Algorithm 2, with the drain rule."""
    capacity = view.problem.kv_capacity
    if shared(memory.params).adjust > 0:
        fade_counts(view, memory)
    for j in range(view.worker.num_left):
        i = left_request(view, j)
        forget_of_queue(memory, group_of(memory, view.requests[i].prompt_len), i)
    for j in range(view.worker.num_queued):
        i = view.queued[j]
        join_queue(view, memory, group_of(memory, view.requests[i].prompt_len), i)
    if shared(memory.params).adjust > 0:
        adjust_thresholds(view, memory)
    some = False
    for q in range(shared(memory.params).num_queues):
        some |= reached(memory, q)
    if some:
        running, need = plan_segments(view, decision, memory)
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


def ascending(name: str, value: Any) -> tuple[int, ...] | None:
    """Return given lengths, None if there are none: ConfigError if they are not ascending whole numbers ≥ 1."""
    given = None if value is None else numbers_of(name, value)
    ends = np.array(given or (1,))
    require(
        name, value, bool(ends[0] >= 1 and (np.diff(ends) > 0).all()), "ascending whole numbers >= 1, or None"
    )
    return given


@register_policy
class NestedWait(ThresholdPolicy):
    """Nested WAIT: thresholds for segments of output length, without knowing lengths in advance."""

    info = PolicyInfo(
        name="nested_wait",
        summary="runs the leading segments of output length that have reached their thresholds at their entries",
        paper=PAPER,
        algorithm="Algorithm 2",
        needs=frozenset({"class_rates"}),
        pauses=True,
        evicts=True,
    )
    kernel = nested_wait_kernel
    strict = True

    segments: Any = parsed(None, ascending)
    """ascending output lengths l'_1 < l'_2 < … at which segments end, as in ``"20/40/80/160"``, the same in all groups;
    None = the rounded mean output lengths of the classes."""
    groups: Any = parsed(None, ascending)
    """ascending maximum prompt lengths of all groups of segments but the last, as in ``"64"`` for two groups; None =
    one group for all prompts."""
    overflow: float | None = hyperparameter(
        None, lambda value: value is None or 0 < value < 1, "a probability between 0 and 1, or None"
    )
    """delta, the allowed probability that memory overflows within a million batches. ``slack`` is then chosen between 0
    and 2 so that bound (14) is least; the bound must fit the memory. None = use ``slack``."""

    def __post_init__(self) -> None:
        """Raise a ConfigError if ``overflow`` is given for thresholds that nothing computes, or with ``slack``."""
        super().__post_init__()
        self.groups = self.groups or ()
        chosen = self.thresholds is not None or self.rule == "practical" or self.slack
        if self.overflow is not None and chosen:
            raise ConfigError(
                f"overflow = {self.overflow} chooses the slack of thresholds that rule=fluid or rule=peak computes; "
                "leave out thresholds and slack"
            )

    def classes_of(self, system: SystemInfo) -> list[list[ClassStatistics]]:
        """Return the classes of each group, by their mean prompt length."""
        found: list[list[ClassStatistics]] = [[] for _ in range(len(self.groups) + 1)]
        for c in system.classes:
            found[int(np.searchsorted(self.groups, c.prompt_len)) if self.groups else 0].append(c)
        return found

    def boundaries(self, classes: Sequence[ClassStatistics]) -> NDArray[np.int64]:
        """Return the output lengths at which the segments of a group end, int64 (m,)."""
        if self.segments is not None:
            return np.array(self.segments, dtype=np.int64)
        return np.unique([max(1, round(c.output_len)) for c in classes] or [1]).astype(np.int64)

    def segment_groups(self, system: SystemInfo) -> list[SegmentGroup]:
        """Return the groups, with the requests that end in each of their segments.

        Raises:
            ConfigError: a group has no class, or no class ends in a segment, so that thresholds cannot be
            computed.
        """
        from kvgym.theory.groups import SegmentGroup, merged

        made = []
        for q, classes in enumerate(self.classes_of(system)):
            ends = self.boundaries(classes)
            ending: list[list[ClassStatistics]] = [[] for _ in ends]
            for c in classes:
                at = np.searchsorted(ends, max(1, round(c.output_len)))
                ending[min(int(at), len(ends) - 1)].append(c)
            if not all(ending):
                empty, where = next(k for k, found in enumerate(ending) if not found), ""
                if self.groups:
                    where = f" of group {q + 1} of prompts, {(*self.groups, 'longer')[q]}"
                raise ConfigError(
                    f"policy {shown(self.info.name)}: no class has its mean output in segment {empty + 1} of "
                    f"{ends.tolist()}{where}, so thresholds cannot be computed; give thresholds, or other segments"
                )
            rates = np.array([c.rate for c in classes])
            prompt_len = float(rates @ [c.prompt_len for c in classes] / rates.sum())
            made.append(SegmentGroup(prompt_len, tuple(ends.tolist()), tuple(map(merged, ending))))
        return made

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the shared parameters with the threshold of each segment, then the groups and the ends of segments.

        Raises:
            ConfigError: no thresholds satisfy (12) or (15), because more requests arrive than the worker can serve;
                their number differs from the number of segments; they cannot be computed, because no class ends in a
                segment; or the memory is too small for ``overflow``.
        """
        from kvgym.theory.groups import segment_loads  # SciPy is slow to load

        ends = [self.boundaries(classes) for classes in self.classes_of(system)]
        firsts = np.cumsum([0, *map(len, ends)])
        bounds = [*self.groups, np.inf]
        thresholds = self.given_thresholds(int(firsts[-1]), "segments")
        if thresholds is None:
            groups = self.segment_groups(system)
            thresholds = self.computed_thresholds(lambda: self.thresholds_for(groups, system))
            survival = np.concatenate([[0.0, *g.survival(peak=False)] for g in groups])
            loads, reaching = segment_loads(groups), [_tails([c.rate for c in g.classes]) for g in groups]
        else:  # nothing is computed, and nothing adjusts
            survival, loads = np.zeros(firsts[-1]), np.zeros((firsts[-1], 5))
            reaching = [_reaching(c, e) for c, e in zip(self.classes_of(system), ends, strict=True)]
        shared = self.shared_params(
            thresholds, np.concatenate(reaching), loads=loads, firsts=firsts, survival=survival
        )
        return np.concatenate([shared, bounds, *ends])

    def thresholds_for(self, groups: list[SegmentGroup], system: SystemInfo) -> NDArray[np.int64]:
        """Return the thresholds that hyperparameter ``rule`` gives, int64, group by group.

        Raises:
            ConfigError: no thresholds satisfy the rule.
        """
        from kvgym.theory.groups import group_thresholds, safest_thresholds
        from kvgym.theory.nested import practical_nested_thresholds

        if self.rule == "practical":
            rates = [[c.rate for c in g.classes] for g in groups]
            every = sum(map(sum, rates))
            parts = [
                practical_nested_thresholds(r, g.output_lens, self.batch_limit * sum(r) / every)
                for r, g in zip(rates, groups, strict=True)
            ]
            return np.concatenate(parts)
        peak = self.rule == "peak"
        if self.overflow is None:
            return group_thresholds(groups, system.batch_time, peak=peak, slack=self.slack)
        n, bound = safest_thresholds(groups, system.batch_time, BATCHES, self.overflow, peak=peak)
        if bound > system.kv_capacity:
            raise ConfigError(
                f"overflow = {self.overflow} takes {bound:,.0f} KV tokens by (14), the worker has "
                f"{system.kv_capacity:,}"
            )
        return n

    def queue_rates(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the mean arrivals per second of each group, float64 (queues,)."""
        return np.array([sum(c.rate for c in classes) for classes in self.classes_of(system)], dtype=float)

    def profile(self, system: SystemInfo) -> NDArray[np.int32]:
        """Return, for each group and number of output tokens, a counter and the threshold."""
        groups = self.classes_of(system)
        stages = self.num_counters(2 * len(groups), system) // (2 * len(groups))
        thresholds, first = [], 0
        for classes in groups:
            ends = self.boundaries(classes)
            segment = np.minimum(np.searchsorted(ends, np.arange(stages), side="right"), len(ends) - 1)
            thresholds.append(first + segment)
            first += len(ends)
        return np.concatenate([np.zeros(len(thresholds) * stages), *thresholds]).astype(np.int32)


def _tails(rates: Sequence[float]) -> NDArray[np.float64]:
    """Return the arrivals per second that reach each segment."""
    return np.cumsum(np.array(rates, float)[::-1])[::-1]


def _reaching(classes: Sequence[ClassStatistics], ends: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the arrivals per second that reach each segment, 0 if none do."""
    ending = np.zeros(len(ends))
    for c in classes:
        ending[min(int(np.searchsorted(ends, max(1, round(c.output_len)))), len(ends) - 1)] += c.rate
    return _tails(ending.tolist())
