"""Limits on every scheduler if memory is what the fluid equilibrium needs: Propositions 4 and 5.

Source: Ao, Luo, Simchi-Levi and Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory
Constraints", Sections 4.4 and 5.2, Appendix A.4. The paper proves neither in detail; the derivations here are our own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array
from scipy.stats import binom, poisson

from kvgym.errors import ConfigError
from kvgym.theory.checks import check_number
from kvgym.theory.fluid import class_load, fluid_equilibrium
from kvgym.utils.arguments import explained
from kvgym.workloads.classes import ClassStatistics

__all__ = [
    "best_throughput",
    "least_backlog",
    "least_latency",
    "service_rate",
    "unknown_types_equilibrium",
]

UNKNOWN_TYPES = (ClassStatistics("1", 1.0, 1.0, 1.0), ClassStatistics("2", 1.0, 1.0, 2.0))
"""The instance of Propositions 3 and 5: prompts of one token, outputs of one or two, one each per iteration."""

MOST_PIECES = 1_000_000
"""The most completions over which :func:`least_backlog` integrates."""

State: TypeAlias = tuple[int, int, int, int]


@explained
def service_rate(classes: Sequence[ClassStatistics], capacity: float, d0: float, d1: float) -> float:
    """Return the most requests per second that any scheduler completes in the long run, with C tokens of memory.

    A request puts its load, (l'+1)(l + l'/2) tokens on average over the classes, into batches; a batch of x <= C
    tokens takes d0 + d1 x seconds. So x / (d0 + d1 x) tokens per second at most, which is largest at x = C. At
    C = M* it is the arrival rate itself: the fluid equilibrium has no room for chance.

    Args:
        classes: the request types; their proportions count.
        capacity: C, KV tokens, > 0.
        d0: seconds per batch, > 0.
        d1: seconds per KV token of a batch, >= 0.
    """
    check_number("capacity", capacity, above=0)
    check_number("d0", d0, above=0)
    check_number("d1", d1, least=0)
    total = sum(c.rate for c in classes)
    load = sum(c.rate / total * class_load(c) for c in classes)
    return capacity / (d0 + d1 * capacity) / load


def least_backlog(rate: float, service: float, time: float) -> float:
    """Return a lower bound on the mean number of requests in the system at ``time``, for every scheduler.

    Requests of one type arrive in a Poisson process; under any schedule, completed work grows by at most ``service``
    requests per second. So the backlog is at least the queue of that fluid server. By Spitzer's identity for Lévy
    processes, the mean of this queue is the integral of E[(N(s) - service s)^+] / s from 0 to ``time``. At
    rate = service that is about sqrt(2 rate time / pi): Proposition 4's growth.

    Args:
        rate: arrivals per second, > 0.
        service: most requests completed per second, > 0; :func:`service_rate`.
        time: seconds, > 0.

    Raises:
        ConfigError: an argument out of range, or service x time above :data:`MOST_PIECES`.
    """
    check_number("rate", rate, above=0)
    check_number("service", service, above=0)
    check_number("time", time, above=0)

    pieces = service * time  # the integrand bends wherever service s is a whole number
    if pieces > MOST_PIECES:
        raise ConfigError(f"least backlog: {pieces:.3g} services' worth of time; at most {MOST_PIECES:,}")
    edges = np.append(np.arange(np.ceil(pieces)), pieces) / service
    points, weights = np.polynomial.legendre.leggauss(4)
    half = np.diff(edges)[:, None] / 2
    s = edges[:-1, None] + half * (1 + points)
    mean, level = rate * s, service * s
    k = np.floor(level)
    excess = mean * poisson.sf(k - 1, mean) - level * poisson.sf(k, mean)
    return float((half * weights * excess / s).sum())


@explained
def least_latency(rate: float, service: float, time: float) -> float:
    """Return a lower bound on the mean latency of requests that arrive within ``time`` seconds, for every scheduler.

    The sum of their latencies is the integral of the number in the system, and rate x time requests arrive. So the mean
    is the mean backlog over the time, :func:`least_backlog`, divided by the rate. At rate = service it grows as
    sqrt(time), Proposition 4.
    """
    points, weights = np.polynomial.legendre.leggauss(8)
    points = (points + 1) / 2
    # time x^2: the backlog grows as the square root.
    values = [2 * x * least_backlog(rate, service, time * x * x) for x in points]
    return float(weights @ values / 2) / rate


def best_throughput(capacity: int, *, known: bool, evictions: int = 1, share: float = 0.5) -> float:
    """Return the most output tokens per iteration that any scheduler gets in Proposition 5's instance.

    Prompts of one token, of which a share ends after one output token, the others after two; an iteration takes one
    second whatever it holds (d1 = 0), the paper's setting with K = 1 and M* = 9. Prompts never run out, which only
    helps. The best scheduler is found by value iteration over the content of memory: any number may start, run, pause
    or be evicted. With ``known``, types are known on arrival. Otherwise the first token reveals them; the types of up
    to ``evictions`` requests evicted after that are remembered, and these requests may start again. At C = 9
    it is 2.7060 with none remembered, 2.7086 with one, then 2.7093 and 2.7096: the fluid throughput is out of reach.

    Args:
        capacity: C, KV tokens, 3 … 12.
        known: whether types are known on arrival.
        evictions: the most evicted requests of known type that are remembered.
        share: probability of an output of one token, in (0, 1).

    Returns:
        Tokens per iteration, with ``known`` an upper bound of them; the fluid throughput at M* = 9 is 3.

    Raises:
        ConfigError: an argument out of range.
    """
    check_number("capacity", capacity, least=3, most=12, whole=True)
    check_number("evictions", evictions, least=0, most=4, whole=True)
    check_number("share", share, above=0, below=1)
    if (
        known
    ):  # three tokens of memory x iterations per output token of either type, with full batches throughout
        return capacity / 3
    return _Reveal(int(capacity), int(evictions), float(share)).value()


class _Reveal:
    """The decision process of :func:`best_throughput`.

    A state is (a, c, b, e): a prompts that are prefilled, of unknown type, and c known to be long; b that have their
    first token, hence long, of two; e long ones that were evicted. Between batches they hold 1, 1, 2 and no tokens.
    """

    def __init__(self, capacity: int, evictions: int, share: float) -> None:
        self.capacity, self.evictions, self.share = capacity, evictions, share

    def moves(self, state: State) -> Iterator[tuple[int, int, int, State]]:
        """Yield how many of a, c and b run, and the next state if none of a turns out to be long.

        Prompts of a that pause and new ones in their prefill hold a token each and are the next a, so that only their
        sum counts; likewise those of c with the remembered ones that start again.
        """
        a, c, b, e = state
        for run_b, keep_b, run_c, run_a in itertools.product(*(range(x + 1) for x in (b, b, c, a))):
            room = self.capacity - 3 * run_b - 2 * keep_b - 2 * run_c - 2 * run_a
            if room < 0 or run_b + keep_b > b:
                continue
            for next_c in range(min(room, c - run_c + e) + 1):
                known = c - run_c + e + (b - run_b - keep_b) - next_c
                remembered = min(self.evictions, known)
                for next_a in range(room - next_c + 1):
                    yield run_a, run_c, run_b, (next_a, next_c, keep_b + run_c, remembered)

    def value(self) -> float:
        """Return the best average reward: half-lazy relative value iteration, to within 1e-7.

        Raises:
            ConfigError: it does not settle.
        """
        index: dict[State, int] = {(0, 0, 0, 0): 0}
        states = [(0, 0, 0, 0)]
        rewards: list[float] = []
        entries: list[tuple[int, int, float]] = []
        firsts: list[int] = []
        at = 0
        while at < len(states):
            firsts.append(len(rewards))
            for run_a, _, run_b, (a, c, b, e) in self.moves(states[at]):
                for long, chance in enumerate(binom.pmf(range(run_a + 1), run_a, 1 - self.share)):
                    following = (a, c, b + long, e)
                    if following not in index:
                        index[following] = len(states)
                        states.append(following)
                    entries.append((len(rewards), index[following], chance))
                rewards.append(2.0 * run_b + self.share * run_a)
            at += 1
        rows, columns, chances = zip(*entries, strict=True)
        shape = (len(rewards), len(states))
        after, reward = csr_array((chances, (rows, columns)), shape), np.array(rewards)
        values = np.zeros(len(states))
        for _ in range(20_000):
            best = np.maximum.reduceat(reward + after @ values, firsts)
            change = best - values
            if np.ptp(change) < 1e-7:
                return float(change.mean())
            values = (values + best) / 2
            values -= values[0]
        raise ConfigError("value iteration did not settle; take a smaller capacity or fewer evictions")


def unknown_types_equilibrium() -> float:
    """Return M* of Proposition 5's instance with one second per iteration, KV tokens: 9."""
    return fluid_equilibrium(UNKNOWN_TYPES, 1.0, 0.0).memory
