"""Output lengths learned by the plain scheduler ``ranked``, written from docs/ranked.md ("Lengths")."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

INF = math.inf


class Grid(NamedTuple):
    """Bins of a logarithmic grid that begins at 0."""

    ends: list[float]
    bin_of: Callable[[float], int]
    prior: Callable[[int], float]
    strength: int

    def width(self, b: int) -> float:
        return self.ends[b] - (self.ends[b - 1] if b else 0.0)


def prior_of_ratio(b: int) -> float:
    j = b - 36
    if j < 0:
        return 0.0
    return 1 / (25 - j) if j < 24 else 1 - 2 ** (-1 / 12)


TOKENS = Grid(
    ends=[2 ** ((b + 1) / 8) for b in range(136)],
    bin_of=lambda x: 0 if x <= 1 else min(math.floor(8 * math.log2(x)), 135),
    prior=lambda b: 1 - 2 ** (-1 / 8),
    strength=2,
)
RATIOS = Grid(
    ends=[2 ** (-4 + (b + 1) / 12) for b in range(96)],
    bin_of=lambda x: 0 if x <= 1 / 16 else min(math.floor(12 * math.log2(16 * x)), 95),
    prior=prior_of_ratio,
    strength=4,
)


class Costs:
    """Gittins costs of the hazards of a grid."""

    def __init__(self, grid: Grid, hazard: list[float]) -> None:
        self.grid, self.hazard, self.found = grid, hazard, dict[int, float]()

    def at_start(self, b: int) -> float:
        if b not in self.found:
            self.found[b] = self.least_ratio(b)
        return self.found[b]

    def least_ratio(self, b: int) -> float:
        survival, service, success, least = 1.0, 0.0, 0.0, INF
        for i in range(b, len(self.hazard)):
            ending = survival * self.hazard[i]
            service += (survival - ending / 2) * self.grid.width(i)
            success += ending
            if success > 0:
                least = min(least, service / success)
            survival *= 1 - self.hazard[i]
            if survival < 0.001:
                break
        return least

    def __call__(self, x: float) -> float:
        ends, last = self.grid.ends, len(self.hazard) - 1
        if x >= ends[last]:
            return self.at_start(last)
        b = self.grid.bin_of(x)
        left, right = self.at_start(b), self.at_start(min(b + 1, last))
        return left + (right - left) * (x - ends[b] + self.grid.width(b)) / self.grid.width(b)


@dataclass
class Counts:
    """Requests of one group, by bins."""

    tokens: Counter[int] = field(default_factory=Counter)
    ratios: Counter[int] = field(default_factory=Counter)

    def add(self, output: int, predicted: int) -> None:
        self.tokens[TOKENS.bin_of(output)] += 1
        if predicted > 0:
            self.ratios[RATIOS.bin_of(output / predicted)] += 1


def hazards(
    grid: Grid, done: Counter[int], censored: Counter[int], k: int, prior: Callable[[int], float]
) -> list[float]:
    """Return the probability of ending in each reached bin, as if ``k`` more requests had followed the prior."""
    found, there = list[float](), 0
    for b in reversed(range(len(grid.ends))):
        there += done[b] + censored[b + 1]
        found.insert(0, (done[b] + k * prior(b)) / (there + k))
    return found


def learn(done: list[Counts], censored: list[Counts]) -> list[tuple[Costs, Costs]]:
    """Return the costs of each group, of tokens and of ratios."""
    usual = (
        hazards(TOKENS, done[0].tokens, censored[0].tokens, TOKENS.strength, TOKENS.prior),
        hazards(RATIOS, done[0].ratios, censored[0].ratios, RATIOS.strength, RATIOS.prior),
    )
    costs = [(Costs(TOKENS, usual[0]), Costs(RATIOS, usual[1]))]
    for ended, still in zip(done[1:], censored[1:], strict=True):
        if not ended.tokens:
            costs.append(costs[0])
            continue
        tokens = hazards(TOKENS, ended.tokens, still.tokens, 8, usual[0].__getitem__)
        ratios = hazards(RATIOS, ended.ratios, still.ratios, 8, usual[1].__getitem__)
        costs.append((Costs(TOKENS, tokens), Costs(RATIOS, ratios)))
    return costs
