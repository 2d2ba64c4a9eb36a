"""Lower bounds on the end and on the longest latency from the distances that large requests keep.

Large requests (s + o > M/2) complete at distances of at least w_j - max(s_j, M - w_i), w = s + o, see
:mod:`kvgym.theory.hindsight.slotted.prices`. With peaks cut to M - max s this is at least (h_i + h_j)/2 for
h = 2w - M, so that m of them take, from the first completion to the last, Σ h less half of the first's and the last's.
"""

from __future__ import annotations

import numpy as np

from kvgym.theory.hindsight.slotted.instance import Ints, SlottedRequests
from kvgym.theory.hindsight.slotted.prices import separated

MANY = 300  # moments of arrival among which all spans are looked at


def _halves(requests: SlottedRequests) -> tuple[Ints, Ints, Ints]:
    """Return arrivals, outputs and h of the large requests, in order of arrival."""
    large = separated(requests)
    longest = int(requests.prompt[large].max(initial=0))
    halves = 2 * np.minimum(requests.peak[large], requests.memory - longest) - requests.memory
    some = halves > 0
    return requests.arrival[large][some], requests.output[large][some], halves[some]


def _chain(output: Ints, halves: Ints) -> int:
    """Return slots from the arrival of the first of these requests to the last completion, at least."""
    doubled = (2 * output - halves).min() + 2 * halves.sum() - halves.max()
    return max(int(-(-int(doubled) // 2)), int(output.max()))


def earliest_chained_end(requests: SlottedRequests) -> int:
    """Return a moment before which the large requests are not all done, 0 where there are none."""
    arrival, output, halves = _halves(requests)
    return max(
        (int(r) + _chain(output[arrival >= r], halves[arrival >= r]) for r in np.unique(arrival)), default=0
    )


def least_chained_longest(requests: SlottedRequests) -> int:
    """Return slots that the longest latency of the large requests has at least, 0 where there are none.

    Those that arrive from r to r' keep the last of them, which arrived by r', until the end of their chain. Only
    spans among the first :data:`MANY` moments are looked at.
    """
    arrival, output, halves = _halves(requests)
    moments = np.unique(arrival)[:MANY]
    best = 0
    for at, last in enumerate(moments):
        for first in moments[: at + 1]:
            span = (arrival >= first) & (arrival <= last)
            best = max(best, int(first - last) + _chain(output[span], halves[span]))
    return best
