"""Nested WAIT with a group of segments for each prompt length: thresholds, and the memory that keeps them safe.

Source: Ao, Luo, Simchi-Levi and Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory
Constraints", Section 5.1, which says that prompts of different lengths are handled as types are in Algorithm 1,
with a group of segments for each length, and leaves the rest to the reader. Reading: every group meets
condition (12), or (15) where rates vary, with its own arrivals and the time of a batch that is full in all
groups. Notation as in :mod:`kvgym.theory.nested`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, shown
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.theory.buffers import MemoryBound, memory_bound
from kvgym.theory.checks import check_number, check_numbers
from kvgym.theory.fluid import least_thresholds, load_time
from kvgym.theory.nested import Floats, chain, ends_of, least_above, segment_memory, survival_probabilities
from kvgym.theory.time_varying import peak_arrivals, worst_arrivals, worst_survival
from kvgym.utils.arguments import explained, explained_class
from kvgym.workloads.classes import ClassStatistics, RateProfile

__all__ = [
    "SegmentGroup",
    "group_batch_time",
    "group_memory",
    "group_memory_bound",
    "group_thresholds",
    "safest_thresholds",
    "segment_loads",
    "split_thresholds",
]

SLACKS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Drifts that :func:`safest_thresholds` tries."""


@explained_class
@dataclass(frozen=True)
class SegmentGroup:
    """Requests of one prompt length, and the segments of their outputs.

    Attributes:
        prompt_len: l, tokens; a mean where lengths differ within the group.
        output_lens: l'_k, where the segments end, ascending, m of them.
        classes: one for each segment, in their order: the requests that end in it.
    """

    prompt_len: float
    output_lens: tuple[int, ...]
    classes: tuple[ClassStatistics, ...]

    def __post_init__(self) -> None:
        """Check that each segment has its class.

        Raises:
            ConfigError: it has not.
        """
        check_number("prompt_len", self.prompt_len, least=0)
        if len(ends_of(self.output_lens)) != len(self.classes):
            raise ConfigError(
                f"a group of segments needs a class for each, got {len(self.classes)} for {self.output_lens}"
            )

    def arrivals(self, window: float, *, peak: bool) -> float:
        """Return the arrivals expected in ``window`` seconds; with ``peak``, in the window with the most."""
        if not peak or all(c.profile is None for c in self.classes):
            return window * sum(c.rate for c in self.classes)
        pieces = common_pieces(self.classes)
        if pieces is None:  # no common period: the sum of the suprema is not below the supremum of the sum
            return sum(peak_arrivals(c, window) for c in self.classes)
        return worst_arrivals(*pieces[:2], window, pieces[2])

    def survival(self, *, peak: bool) -> Floats:
        """Return p_k, float64 (m-1,): the share of requests in segment k that go on; with ``peak`` p*_k, eq. (21)."""
        varying = peak and any(c.profile is not None for c in self.classes)
        if not varying:
            return survival_probabilities([c.rate for c in self.classes])
        pieces = common_pieces(self.classes)
        if pieces is not None:
            return worst_survival(*pieces[:2])
        spread = [c.profile.rates if c.profile is not None else (c.rate,) for c in self.classes]
        low, high = (np.array([pick(rates) for rates in spread]) for pick in (min, max))
        later = np.cumsum(high[::-1])[::-1][1:]
        return np.asarray(np.divide(later, low[:-1] + later))


def merged(classes: Sequence[ClassStatistics]) -> ClassStatistics:
    """Return one class for all requests of several: the sum of their rates, and mean lengths.

    If profiles have different periods, the rate is the sum of the largest rates.
    """
    if len(classes) == 1:
        return classes[0]
    rates = np.array([c.rate for c in classes])
    total = float(rates.sum())
    prompt, output = (rates @ [getattr(c, f"{x}_len") for c in classes] / total for x in ("prompt", "output"))
    profile = None
    if any(c.profile is not None for c in classes):
        pieces = common_pieces(classes)
        if pieces is None:
            profile = RateProfile(
                (0.0,), (sum(max(c.profile.rates) if c.profile else c.rate for c in classes),)
            )
        else:
            times, each, period = pieces
            profile = RateProfile(tuple(times.tolist()), tuple(each.sum(axis=0).tolist()), period)
    return ClassStatistics("+".join(c.name for c in classes), total, float(prompt), float(output), profile)


def common_pieces(classes: Sequence[ClassStatistics]) -> tuple[Floats, Floats, float | None] | None:
    """Return common times (t,), rates (m, t) and period of classes; None where their periods differ."""
    profiles = [c.profile or RateProfile((0.0,), (c.rate,)) for c in classes]
    periods = {c.profile.period for c in classes if c.profile is not None}
    if len(periods) > 1:
        return None
    times = np.unique(np.concatenate([p.times for p in profiles]))
    rates = [np.array(p.rates)[np.searchsorted(p.times, times, side="right") - 1] for p in profiles]
    return times, np.array(rates), periods.pop() if periods else None


@explained
def segment_loads(groups: Sequence[SegmentGroup]) -> Floats:
    """Return the load that one more request per stage of a segment adds to a full batch, float64 (thresholds, 5).

    Rows are the segments of all groups, one group after the other. Columns are requests in prefill, prompt
    tokens, sum of squared prompt lengths, requests that decode, and the tokens that they find in the cache.
    """
    rows = []
    for g in groups:
        begin = 0
        for end in g.output_lens:
            stages = end - begin
            context = stages * (g.prompt_len + (begin + end - 1) / 2)  # stage s finds l + s - 1 tokens
            prefill = (1.0, g.prompt_len, g.prompt_len**2) if begin == 0 else (0.0, 0.0, 0.0)
            rows.append((*prefill, float(stages), context))
            begin = end
    return np.array(rows)


@explained
def group_batch_time(
    groups: Sequence[SegmentGroup], thresholds: NDArray[np.generic], batch_time: BatchTimeModel
) -> float:
    """Return Delta T, seconds of a batch that is full in all segments of all groups.

    Args:
        groups: the groups.
        thresholds: requests per stage of every segment, one group after the other.
        batch_time: the batch-time model.
    """
    per_stage = check_numbers("thresholds", thresholds, least=0)
    prefills, tokens, squares, decodes, context = per_stage @ segment_loads(groups)
    return load_time(
        batch_time,
        prefills=prefills,
        prefill_tokens=tokens,
        prefill_squares=squares,
        decodes=decodes,
        decode_context=context,
    )


@explained
def group_memory(groups: Sequence[SegmentGroup], thresholds: NDArray[np.generic]) -> float:
    """Return M^pi of all groups together, KV tokens; arguments as :func:`group_batch_time`."""
    parts = zip(groups, split_thresholds(groups, thresholds), strict=True)
    return sum(segment_memory(n, g.prompt_len, g.output_lens) for g, n in parts)


@explained
def group_thresholds(
    groups: Sequence[SegmentGroup],
    batch_time: BatchTimeModel,
    *,
    peak: bool = False,
    slack: float = 0.0,
    max_memory: float | None = None,
) -> NDArray[np.int64]:
    """Return the least whole thresholds with which every group satisfies (12), int64, one group after the other.

    With one group they are those of :func:`kvgym.theory.nested.nested_thresholds`, or with ``peak`` of
    :func:`kvgym.theory.time_varying.time_varying_thresholds`.

    Args:
        groups: the groups, at least one.
        batch_time: the batch-time model.
        peak: (15) in place of (12): the most arrivals of any interval, and the worst case p*_k.
        slack: every threshold must exceed (1 + slack) times what reaches it, as in ``nested_thresholds``.
        max_memory: KV tokens that M^pi must not exceed; None = no limit.

    Raises:
        ConfigError: no thresholds exist within the limits.
    """
    check_number("slack", slack, least=0)
    if not len(groups):
        raise ConfigError("at least one group of segments is needed")
    survival = [g.survival(peak=peak) for g in groups]

    def step(n: Floats) -> Floats:
        window = group_batch_time(groups, n, batch_time)
        firsts = (least_above((1 + slack) * g.arrivals(window, peak=peak)) for g in groups)
        return np.concatenate([chain(first, p, slack) for first, p in zip(firsts, survival, strict=True)])

    return least_thresholds(
        step,
        np.concatenate([chain(1, p, slack) for p in survival]),
        lambda n: group_memory(groups, n),
        max_memory,
        condition="(15)" if peak else "(12)",
    )


@explained
def group_memory_bound(
    groups: Sequence[SegmentGroup],
    thresholds: NDArray[np.generic],
    num_batches: float,
    delta: float,
    *,
    peak: bool = False,
) -> float:
    """Return the KV tokens that suffice over ``num_batches`` batches with probability >= 1 - ``delta``.

    Eq. (14) with theta_k of (20), with ``peak`` of (21); the probability is shared out over the groups by the number
    of their queues between segments. Infinite where a segment has no drift. Arguments as :func:`group_thresholds`.
    """
    queues = max(1, sum(len(g.output_lens) - 1 for g in groups))
    total = 0.0
    for g, n in zip(groups, split_thresholds(groups, thresholds), strict=True):
        own = max(1, len(n) - 1)
        bound: MemoryBound = memory_bound(
            n,
            g.prompt_len,
            g.output_lens,
            [c.rate for c in g.classes],
            num_batches,
            delta * own / queues,
            survival=g.survival(peak=peak),
        )
        total += bound.total
    return total


@explained
def safest_thresholds(
    groups: Sequence[SegmentGroup],
    batch_time: BatchTimeModel,
    num_batches: float,
    delta: float,
    *,
    peak: bool = False,
) -> tuple[NDArray[np.int64], float]:
    """Return the thresholds of least memory bound among the drifts :data:`SLACKS`, and the bound.

    More drift means a larger batch and shorter queues between segments; (14) is the sum of both.

    Raises:
        ConfigError: no drift has thresholds that satisfy the condition.
    """
    best: tuple[NDArray[np.int64], float] | None = None
    failure: ConfigError | None = None
    for slack in SLACKS:
        try:
            n = group_thresholds(groups, batch_time, peak=peak, slack=slack)
        except ConfigError as error:  # a larger drift has none either
            failure = error
            break
        bound = group_memory_bound(groups, n, num_batches, delta, peak=peak)
        if best is None or bound < best[1]:
            best = n, bound
    if best is None or not math.isfinite(best[1]):
        raise failure or ConfigError("every drift leaves a queue between segments without bound")
    return best


@explained
def split_thresholds(
    groups: Sequence[SegmentGroup], thresholds: NDArray[np.generic]
) -> list[NDArray[np.float64]]:
    """Return the thresholds of each group, float64.

    Raises:
        ConfigError: there are not as many thresholds as segments.
    """
    lengths = [len(g.output_lens) for g in groups]
    if np.shape(thresholds) != (sum(lengths),):
        raise ConfigError(
            f"expected {sum(lengths)} thresholds, one for each segment, got {shown(thresholds)}"
        )
    return np.split(check_numbers("thresholds", thresholds, least=0), np.cumsum(lengths)[:-1])
