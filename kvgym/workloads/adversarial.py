"""The adversarial instance for deterministic schedulers, and a good offline schedule for it.

Source: Jaillet et al., "Online Scheduling for LLM Inference with KV Cache Constraints", Theorem 4.1 and Appendix B.1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvgym.utils.checks import whole_number
from kvgym.workloads.arrivals import TimestampArrivals
from kvgym.workloads.base import MAX_REQUESTS
from kvgym.workloads.lengths import ConstantLength
from kvgym.workloads.spec import RequestClass, WorkloadSpec


def theorem_4_1_workload(memory: int, start: int = 0) -> WorkloadSpec:
    """Return the adversary's workload against schedulers that start the first request at a given time.

    A long request (s = 1, o = M - 1) arrives at 0. When √M/2 slots of it remain, at r = start + M - ⌊√M/2⌋, ⌊M/2⌋
    short requests arrive (s = 1, o = 1). Most of them have no memory until the long one has finished. A
    work-conserving scheduler starts at 0; for any other deterministic scheduler, pass its start.

    Classes are ``long`` and ``short``. The paper prints r = b + M - √M/2 and once b + (M - 1) - √M/2; this is the
    first.

    Args:
        memory: M, tokens, at least 4.
        start: b, when the scheduler starts the long request.

    Raises:
        ConfigError: a memory or a start that is too small.
    """
    release = _release(memory, start)
    one = ConstantLength(value=1)
    return WorkloadSpec(
        name=f"mcsf-adversarial-{memory}",
        description=f"a long request, and {memory // 2} short ones when it is nearly done, M = {memory} (MC-SF 4.1)",
        classes=(
            RequestClass(
                name="long",
                arrivals=TimestampArrivals(times=(0.0,)),
                prompt=one,
                output=ConstantLength(value=memory - 1),
            ),
            RequestClass(
                name="short",
                arrivals=TimestampArrivals(times=(float(release),) * (memory // 2)),
                prompt=one,
                output=one,
            ),
        ),
        duration=release + 1,
    )


def theorem_4_1_schedule(memory: int, start: int = 0) -> NDArray[np.int64]:
    """Return the start times of the proof's offline schedule, int64 (1 + ⌊M/2⌋,), the long request first.

    If the short requests arrive before the long one could finish, all of them run in one slot and the long one runs
    after them; otherwise the long one starts at once. The total latency is at most 2.5 M + 1. (The paper has an idle
    slot after the short ones, which is not needed.)

    Args:
        memory: M, tokens, at least 4.
        start: b, as for :func:`theorem_4_1_workload`.
    """
    release = _release(memory, start)
    starts = np.full(1 + memory // 2, release, np.int64)
    starts[0] = 0 if release >= memory - 1 else release + 1
    return starts


def _release(memory: int, start: int) -> int:
    whole_number(memory, "memory", "a whole number from 4 to 20 million", 4, 2 * MAX_REQUESTS)
    whole_number(start, "start", "a whole number ≥ 0", 0)
    return int(start) + int(memory) - math.isqrt(int(memory)) // 2
