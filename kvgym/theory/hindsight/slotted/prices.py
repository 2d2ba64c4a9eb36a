"""Lower bounds on the total latency from prices of memory, without a solver.

**Prices.** Give a token of memory in slot u a price p(u) ≥ 0. Every schedule pays at most M Σ p(u), so its total
latency is at least that plus what it pays, minus M Σ p(u); and the first two are at least the sum over requests of
the cheapest place for each alone. This is the Lagrangian relaxation of (3) in Jaillet et al., "Online Scheduling
for LLM Inference with KV Cache Constraints"; with the best prices it has the value of the integer program's
relaxation to 0 ≤ x ≤ 1, as each request's own problem is solved by one place.

**Chains.** That relaxation runs halves of requests side by side and so fills the memory, which ramps of s + 1 to
s + o cannot. Two requests with peaks w = s + o that sum to more than M keep a distance: at the completion of i, in the
slot in which it holds w_i, a request j that completes later and has begun holds w_j - (C_j - C_i) ≤ M - w_i; a request
that has not begun completes after at least o_j. Hence, with the room r_i = M - w_i next to i,

    C_j - C_i ≥ min(o_j, w_i + w_j - M) = w_j - max(s_j, r_i) > 0.

Requests with w > M/2 ("large") all keep this distance from each other, so in every schedule they form a chain in order
of completion. The bound replaces the cheapest place of each large request by the cheapest chain. A chain may hold a
request several times or never; the worth of a request in a chain is a second set of prices, paid back once for each
(as in time-indexed bounds for one machine). The cheapest chain is found by dynamic programming over time. Rooms below
the longest large prompt are grouped into up to :data:`LEVELS` levels, rounded up, which only shortens distances.

Requests that complete after the last slot considered cost at least the latency of the slot after it, and nothing for
memory; so the bound holds for schedules of any length. Prices are found by subgradient steps; the bound holds for any
prices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvgym.theory.hindsight.slotted.instance import Ints, SlottedRequests
from kvgym.theory.hindsight.slotted.price_kernels import FAR, ascend

LEVELS = 8
STEPS = 2_000
ROUNDING = 1e-6  # relative: a bound less than this above a whole number counts as that number
WORTH_SCALE = 30.0  # requests are worth tens of slots, a token of memory about one


@dataclass(frozen=True, eq=False)
class Prices:
    """A bound on the total latency and the prices that prove it.

    Attributes:
        bound: the total latency of every schedule is at least this, slots; a whole number, as latencies are.
        value: the same before rounding up.
        memory: price of a token of memory in each slot, float64 (last slot + 1,); entry 0 unused.
        worth: of each request in a chain, float64 (n,); 0 for those in none.
        chained: which requests are in chains, bool (n,).
    """

    bound: int
    value: float
    memory: NDArray[np.float64]
    worth: NDArray[np.float64]
    chained: NDArray[np.bool_]


def price_bound(
    requests: SlottedRequests,
    starts: Ints,
    *,
    chains: bool = True,
    steps: int = STEPS,
) -> Prices:
    """Return the bound from prices of memory, by default with chains of large requests.

    Args:
        requests: the requests, at least one.
        starts: a good schedule, which sets the last slot and the length of steps; the bound holds for any.
        chains: whether large requests keep their distances; False gives the plain relaxation.
        steps: steps of the ascent, for each of the two sets of prices.
    """
    done = starts + requests.output
    target = float((done - requests.arrival).sum())
    end = int(done.max()) + 20
    prices, worth = np.zeros(end + 1), np.zeros(len(requests))
    levels, rooms = np.full(len(requests), -1, np.int64), np.zeros(1, np.int64)
    value = _ascend(requests, levels, rooms, end, target, steps, prices, worth)
    if chains:
        levels, rooms = _levels(requests)
    chained = levels >= 0
    if chained.any():
        worth = np.where(chained, 1.5 * (done - requests.arrival), 0.0)
        plain, plain_prices = value, prices.copy()
        value = _ascend(requests, levels, rooms, end, target, steps, prices, worth)
        if value < plain:
            value, prices, worth, chained = plain, plain_prices, np.zeros(len(requests)), chained & False
    return Prices(rounded_up(value), value, prices, worth, chained)


def rounded_up(value: float) -> int:
    """Return the least whole number that a bound allows, after subtracting the rounding error of its sums."""
    return int(np.ceil(value - ROUNDING * max(1.0, abs(value))))


def separated(requests: SlottedRequests) -> NDArray[np.bool_]:
    """Return which requests are large, s + o > M/2, so that they keep distances; bool (n,)."""
    return np.asarray(2 * requests.peak > requests.memory)


def _levels(requests: SlottedRequests) -> tuple[Ints, Ints]:
    """Return the level of each request (-1 = not large) and the room of each level, rounded up."""
    large = separated(requests)
    room = requests.memory - requests.peak
    far = room >= requests.prompt[large].max(initial=0)
    levels = np.where(large & far, FAR, -1).astype(np.int64)
    near = np.unique(room[large & ~far])
    groups = [group for group in np.array_split(near, min(LEVELS, len(near)) or 1) if len(group)]
    rooms = np.zeros(1 + len(groups), np.int64)
    for level, group in enumerate(groups, 1):
        rooms[level] = group[-1]
        levels[large & ~far & np.isin(room, group)] = level
    return levels, rooms


def _ascend(
    requests: SlottedRequests,
    levels: Ints,
    rooms: Ints,
    end: int,
    target: float,
    steps: int,
    prices: NDArray[np.float64],
    worth: NDArray[np.float64],
) -> float:
    """Improve prices and worth in place; return the bound."""
    n, shape = len(requests), (len(rooms), end + requests.memory + 1)
    best_prices, best_worth = np.zeros_like(prices), np.zeros_like(worth)
    value = ascend(
        requests.arrival,
        requests.prompt,
        requests.output,
        requests.memory,
        levels,
        rooms,
        end,
        target,
        steps,
        WORTH_SCALE,
        prices,
        worth,
        best_prices,
        best_worth,
        np.zeros((2, end + 1)),
        np.zeros(shape),
        np.zeros(shape, np.int64),
        np.zeros(end + 1, np.int64),
        np.zeros(n, np.int64),
    )
    prices[:], worth[:] = best_prices, best_worth
    return float(value)
