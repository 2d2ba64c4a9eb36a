"""The worth of a batch: the value of its tokens, reduced for late ones, over a power of its duration."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kvgym.baselines.ranked.active import list_dues
from kvgym.baselines.ranked.layout import (
    BETWEEN,
    DEADLINES,
    FIRST_DUE,
    NUM_GAPS,
    PRESSURE,
    SHORTEST,
    list_at,
    listed_dues_at,
)
from kvgym.baselines.ranked.scoring import prompt_ratio
from kvgym.baselines.ranked.weights import weights_in
from kvgym.kernels import PolicyMemory, PolicyView, jit, jit_inline

HOPELESS = 0.7
"""Larger batches are not tried once the worth falls below this share of the best."""

HALF_ROOM = 2048.0
"""Free memory, tokens, at which ``cost_room`` counts half: a few batches of prompts."""


class Worth(NamedTuple):
    """The value of a batch, and its duration, s."""

    value: float
    seconds: float


@jit_inline
def prompt_worth(view: PolicyView, memory: PolicyMemory) -> Any:
    """Return the worth of a prompt token, in decodes: by its time, and more while requests wait and memory is free.

    Overwrites ``view.load``.
    """
    p, reals = weights_in(memory.params), memory.reals
    free = 1.0 - view.worker.kv_allocated / view.problem.kv_capacity
    power = (p.prefill_pressure + p.prefill_room * free) * reals[PRESSURE]
    return p.prefill_value * prompt_ratio(view, memory) * math.exp(power)


@jit
def number_below(reals: Any, start: int, end: int, limit: float) -> int:
    """Return how many of ``reals[start:end]`` are below a limit."""
    below = 0
    for j in range(start, end):
        below += 1 if reals[j] < limit else 0
    return below


@jit_inline
def number_late(view: PolicyView, memory: PolicyMemory, seconds: float, taken: int) -> int:
    """Return how many active requests would get their next token late because of a batch of this duration.

    The first ``taken`` listed requests, which are in the batch, are late if it ends after their deadline; the others,
    if it leaves less time than the shortest batch. Deadlines that cannot be met do not count. Between two rankings,
    requests listed in the last one are late if the batch takes longer than the gap allowed between their tokens.
    """
    reals, end = memory.reals, view.worker.clock + seconds
    if memory.state[BETWEEN] == 1:
        gaps = listed_dues_at(view)
        return number_below(reals, gaps, gaps + memory.state[NUM_GAPS], seconds)
    if end + reals[SHORTEST] <= reals[FIRST_DUE]:
        return 0
    dues = list_dues(view, memory)
    staying = memory.state[list_at(view)]
    late = number_below(reals, dues, dues + taken, end)
    return late + number_below(reals, dues + taken, dues + staying, end + reals[SHORTEST])


@jit_inline
def cost_power(view: PolicyView, memory: PolicyMemory) -> Any:
    """Return the power of the duration that divides a batch's value, from queue, active requests and memory."""
    p, w = weights_in(memory.params), view.worker
    free = view.problem.kv_capacity - w.kv_allocated
    waiting = w.num_waiting / (1 + w.num_active + w.num_waiting)
    power = p.cost + p.cost_pressure * memory.reals[PRESSURE]
    power += (p.cost_room + p.cost_waiting * waiting) * (free / (free + HALF_ROOM))
    if p.cost_active != 0.0:
        power += p.cost_active * math.log(1.0 + w.num_active)
    return max(power, p.cost_least)


@jit_inline
def bounds_of_power(times: float, power: float) -> tuple[float, float]:
    """Return a lower and an upper bound of ``times ** power``, for times ≥ 1 and powers from 1 to 2.

    The series of x^p at 1 is an upper bound up to its second term, and a lower bound up to its third.
    """
    longer = times - 1.0
    second = 0.5 * power * (power - 1.0) * longer * longer
    most = 1.0 + power * longer + second
    least = most + (power - 2.0) / 3.0 * longer * second
    return least * (1.0 - 1e-9), most * (1.0 + 1e-9)


@jit_inline
def pays(memory: PolicyMemory, batch: Worth, best: Worth, power: float) -> bool:
    """Return whether a batch has a higher worth than the best so far: value over duration to this power.

    Two bounds on the power usually decide without computing it. The value of the best is -inf if there is
    none.
    """
    if best.value == -math.inf:
        return True
    if 1.0 <= power <= 2.0 and best.value > 0.0 and batch.seconds >= best.seconds:
        ratio = batch.value / best.value
        least, most = bounds_of_power(batch.seconds / best.seconds, power)
        if ratio > most:
            return True
        if ratio < least:
            return False
    shortest = memory.reals[SHORTEST]
    return batch.value / (batch.seconds / shortest) ** power > best.value / (best.seconds / shortest) ** power


@jit_inline
def hopeless(batch: Worth, best: Worth, power: float) -> bool:
    """Return whether a batch is worth less than HOPELESS of the best."""
    if best.value <= 0.0:
        return False
    ratio, times = batch.value / best.value, batch.seconds / best.seconds
    if 1.0 <= power <= 2.0 and times >= 1.0:
        least, most = bounds_of_power(times, power)
        if ratio < HOPELESS * least:
            return True
        if ratio > HOPELESS * most:
            return False
    return ratio < HOPELESS * times**power


@jit_inline
def judge(view: PolicyView, memory: PolicyMemory, value: float, taken: int) -> Worth:
    """Return the worth of the batch in ``view.load``, reduced for every next token that it makes late.

    The batch contains the first ``taken`` of the ranked active requests.
    """
    seconds = max(view.batch_time(view.load, view.batch_params), 1e-9)
    late = number_late(view, memory, seconds, taken) if memory.state[DEADLINES] == 1 else 0
    if late > 0:
        value *= math.exp(-weights_in(memory.params).late * late)
    return Worth(value, seconds)


@jit
def no_deadline_behind(view: PolicyView, memory: PolicyMemory, taken: int) -> bool:
    """Return whether no ranked request after the first ``taken`` has a deadline that a larger batch could meet."""
    if memory.reals[FIRST_DUE] == math.inf:
        return True
    dues = list_dues(view, memory)
    return number_below(memory.reals, dues + taken, dues + memory.state[list_at(view)], math.inf) == 0
