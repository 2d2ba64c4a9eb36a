"""The instance on which no deterministic scheduler does well, and a schedule of it that does.

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
    """Return the adversary's workload against schedulers that start the first request at a given moment.

    A long request (s = 1, o = M - 1) arrives at 0. When it has √M/2 slots to go, at r = start + M - ⌊√M/2⌋,
    ⌊M/2⌋ short ones arrive (s = 1, o = 1): most of them find no memory until the long one is done. A scheduler that
    leaves nothing waiting for nothing starts at 0; against any other deterministic one, ``start`` is what it does.

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
    """Return the starts of the proof's offline schedule, int64 (1 + ⌊M/2⌋,), the long request first.

    Where the short ones arrive before the long one could be done, all of them run in one slot and the long one
    after them; else the long one runs at once. The total latency is at most 2.5 M + 1. (The paper lets a slot pass
    after the short ones; nothing needs it.)

    Args:
        memory: M, tokens, at least 4.
        start: b, as for :func:`theorem_4_1_workload`.
    """
    release = _release(memory, start)
    starts = np.full(1 + memory // 2, release, np.int64)
    starts[0] = 0 if release >= memory - 1 else release + 1
    return starts


def _release(memory: int, start: int) -> int:
    whole_number(memory, "memory", "a whole number ≥ 4, of 20 million at most", 4, 2 * MAX_REQUESTS)
    whole_number(start, "start", "a whole number ≥ 0", 0)
    return int(start) + int(memory) - math.isqrt(int(memory)) // 2
