"""Prices on a worker's time: the bound for loads at which batches are neither full nor empty.

Let a batch last D ≥ F + Σ m_i (a floor without the constants that only some batches have). Consider a request that
needs o batches, any β in [0, 1], and weights λ_j = 1 / o of its steps. It stays at least as long as its batches last.
And it ends no sooner than a uniformly drawn moment t_j of its j-th batch, plus the time that must still follow,
tail_j. Hence

    C_i - a_i ≥ (1 - β) Σ_b D_b + β Σ_j λ_j (t_j + tail_j - a_i).

Batches of a worker do not overlap. With a price p(t) ≥ 0 per second of a worker's time, Σ (C_i - a_i) is therefore at
least the sum over batches, at their moments t, of

    D (p(t) + (1 - β) n) + β Σ_i λ_i t        [n requests in the batch]

minus r ∫ p(t) dt for r workers, plus the tails. The cost of a batch is at least a sum over its requests. For any θ in
[0, 1], p F = θ p F + (1 - θ) p F ≥ θ p F + (1 - θ) p F Σ k_i / M, as memory allows no more. And n Σ m_i ≥ (Σ √m_i)²
(Cauchy) ≥ 2 y Σ √m_i - y² for all y. So with y² = θ p F / (1 - β)

    D (p + (1 - β) n) ≥ Σ_i [p m_i + (1 - β) F + (1 - θ) p F k_i / M + 2 √((1 - β) θ p F m_i)].

Each step is then placed where this plus β λ t is least, at or after the earliest time at which it can run. That gives a
bound for every price. A good price balances demand for time and its supply; it is found by raising the price where
demand exceeds supply. A prefill in several chunks costs no less than one in a single batch: √ is concave, and every
chunk comes before the last (its memory is left out). The same applies to tokens that a prefill makes again.

For a stream of equal requests the bound is a fluid's: each stays for o F / (1 - ρ) s, where ρ is the share of
time spent on m_i. Price and demand are as in Walras' auction; the relaxation is Lagrange's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvgym.theory.hindsight.calibrated.lines import Floats

Ints = NDArray[np.int64]

CELLS, ROUNDS, FIRST_ROUNDS = 48, 40, 12
"""Intervals of time with a price each; updates of the prices, and updates before the best market is chosen."""

LEAST_PRICE = 1e-9


@dataclass(frozen=True)
class Steps:
    """Groups of equal steps that requests need, each in a batch of its own.

    Attributes:
        release: when the first of a group can be there at the earliest, seconds, float64 (g,).
        own: m_i, seconds that one takes of its batch, float64 (g,).
        held: k_i, tokens that the request holds at its end, 0 to leave that out, float64 (g,).
        count: steps of the group, float64 (g,).
        weight: λ, one over the steps of the request, float64 (g,).
        constant: F, seconds of any batch.
        capacity: M, tokens.
        tails: Σ_i Σ_j λ_j (tail_j - a_i), seconds.
        workers: r.
        end: about when all might be done, seconds.
    """

    release: Floats
    own: Floats
    held: Floats
    count: Floats
    weight: Floats
    constant: float
    capacity: float
    tails: float
    workers: int
    end: float


class Market:
    """Prices for steps, and the resulting bound.

    Args:
        steps: the demand.
        share: β.
    """

    def __init__(self, steps: Steps, share: float) -> None:
        self.steps, self.share = steps, share
        edges = np.linspace(float(steps.release.min()), steps.end, CELLS + 1)
        self._length = np.maximum(np.diff(edges), 1e-12)
        moment = np.maximum(edges[None, :-1], steps.release[:, None])
        over = edges[None, 1:] <= steps.release[:, None]
        late = share * steps.weight[:, None]
        self._late = np.where(over, np.inf, late * moment)
        self._after = share * steps.weight * np.maximum(steps.end, steps.release)
        self._root = np.sqrt(steps.own)
        mean = np.average(steps.own, weights=steps.count)
        held = np.average(steps.held, weights=steps.count)
        full = steps.capacity / held if held > 0 else np.inf  # requests in a batch that fills the memory
        # Above this price batches of the best size would need more than the memory.
        with np.errstate(invalid="ignore"):
            self._dear = np.nan_to_num(
                full**2 * (1 - share) * mean / max(steps.constant, 1e-12), posinf=np.inf
            )
        self.price = np.full(CELLS, self._first_price())
        self._round = 0
        self.best = -np.inf

    def _demand(self, price: Floats) -> tuple[Floats, Floats, Floats]:
        """Return seconds per unit of m, of k and of √m demanded at the prices, and so their costs over the price."""
        theta = np.minimum(1.0, self._dear / price)
        root = np.sqrt((1 - self.share) * theta * self.steps.constant / price)
        return theta, (1 - theta) * self.steps.constant / self.steps.capacity, root

    def _first_price(self) -> float:
        """Return the constant price at which demand for time equals its supply."""
        low, high, s = LEAST_PRICE, 1e9, self.steps
        supply = s.workers * float(self._length.sum())
        for _ in range(40):
            middle = float(np.sqrt(low * high))
            _, memory, root = self._demand(np.array([middle]))
            asked = float((s.count * (s.own + memory[0] * s.held + root[0] * self._root)).sum())
            low, high = (middle, high) if asked > supply else (low, middle)
        return low

    def improve(self, rounds: int) -> None:
        """Update the prices ``rounds`` times, and keep the best bound on Σ C_i - a_i."""
        s = self.steps
        supply = s.workers * self._length
        for _ in range(rounds):
            price = self.price
            _, memory, root = self._demand(price)
            cost = (
                self._late
                + (s.own[:, None] + memory * s.held[:, None] + 2 * root * self._root[:, None]) * price
            )
            cell = cost.argmin(axis=1)
            least = cost[np.arange(len(cell)), cell]
            outside = self._after < least
            paid = np.where(outside, self._after, least) + (1 - self.share) * s.constant
            total = float((s.count * paid).sum()) + self.share * s.tails - float((supply * price).sum())
            self.best = max(self.best, total)
            asked = s.count * (s.own + memory[cell] * s.held + root[cell] * self._root)
            demand = np.bincount(cell[~outside], weights=asked[~outside], minlength=CELLS)
            step = 0.5 / (1 + self._round / 8)
            self.price = np.maximum(price * np.exp(np.clip(step * (demand / supply - 1), -1, 1)), LEAST_PRICE)
            self._round += 1


def priced(choices: list[Steps], shares: tuple[float, ...]) -> float:
    """Return the best bound on Σ C_i - a_i, seconds.

    Args:
        choices: the steps needed, one per floor.
        shares: values of β to try.
    """
    markets = [Market(steps, share) for steps in choices for share in shares]
    for market in markets:
        market.improve(FIRST_ROUNDS)
    best = max(markets, key=lambda market: market.best)
    best.improve(ROUNDS)
    return best.best


def groups_of(first: Ints, decodes: Ints, groups: int) -> list[tuple[Ints, Ints, Ints]]:
    """Return for each group of decodes the requests that have some, and the tokens that the first and the next find."""
    found: list[tuple[Ints, Ints, Ints]] = []
    for g in range(groups):
        begin, end = (first + decodes * part // groups for part in (g, g + 1))
        some = np.flatnonzero(end > begin)
        found.append((some, begin[some], end[some]))
    return found
