"""Distributions of prompt and output lengths: immutable descriptions that sample tokens, whole numbers ≥ 1.

A continuous draw is rounded to the nearest whole number (halves up) and is at least 1; ``mean_len`` is the mean after
rounding. Limits on lengths are a separate step that reports its changes (:mod:`kvgym.workloads.limits`). Random
numbers are drawn in the order of the requests: the first n lengths of a longer sample equal the sample of n.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kvgym.workloads.base import MAX_TOKENS, Spec

Lengths = NDArray[np.int64]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]

NORMAL_P90 = 1.2815515655446004
"""The 90th percentile of the standard normal distribution."""


class LengthDistribution(Spec):
    """Base class of distributions of one length."""

    @property
    def mean_len(self) -> float:
        """Mean length after rounding, tokens."""
        raise NotImplementedError

    @property
    def max_len(self) -> int | None:
        """Largest possible length, tokens; None = unbounded."""
        raise NotImplementedError

    def sample(self, n: int, rng: np.random.Generator) -> Lengths:
        """Return ``n`` lengths, int64 (n,), tokens, ≥ 1."""
        raise NotImplementedError


class ConstantLength(LengthDistribution):
    """Always the same length.

    Attributes:
        value: tokens.
    """

    kind: Literal["constant"] = "constant"
    value: Tokens

    @property
    def mean_len(self) -> float:
        """The value."""
        return float(self.value)

    @property
    def max_len(self) -> int:
        """The value."""
        return self.value

    def sample(self, n: int, rng: np.random.Generator) -> Lengths:
        """Return ``n`` times the value."""
        return np.full(n, self.value, np.int64)


class UniformLength(LengthDistribution):
    """Uniform on the whole numbers from ``low`` to ``high``, both included.

    Attributes:
        low: shortest length, tokens.
        high: longest length, tokens.
    """

    kind: Literal["uniform"] = "uniform"
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> UniformLength:
        if self.high < self.low:
            raise ValueError(f"high = {self.high} is below low = {self.low}")
        return self

    @property
    def mean_len(self) -> float:
        """Middle of the range."""
        return 0.5 * (self.low + self.high)

    @property
    def max_len(self) -> int:
        """The upper end."""
        return self.high

    def sample(self, n: int, rng: np.random.Generator) -> Lengths:
        """Return ``n`` draws."""
        return rng.integers(self.low, self.high, n, dtype=np.int64, endpoint=True)


class DiscreteLength(LengthDistribution):
    """Discrete distribution: lengths with weights.

    Attributes:
        values: tokens.
        weights: relative frequencies, ≥ 0; None = equal weights.
    """

    kind: Literal["discrete"] = "discrete"
    values: tuple[Tokens, ...] = Field(min_length=1)
    weights: tuple[Annotated[float, Field(ge=0)], ...] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> DiscreteLength:
        if self.weights is not None and (len(self.weights) != len(self.values) or sum(self.weights) <= 0):
            raise ValueError(f"weights need one entry ≥ 0 per value ({len(self.values)}) and a sum > 0")
        return self

    @property
    def mean_len(self) -> float:
        """Weighted mean."""
        return float(np.average(self.values, weights=self.weights))

    @property
    def max_len(self) -> int:
        """The largest value."""
        return max(self.values)

    def sample(self, n: int, rng: np.random.Generator) -> Lengths:
        """Return ``n`` draws with replacement."""
        weights = np.ones(len(self.values)) if self.weights is None else np.asarray(self.weights)
        return np.asarray(self.values, np.int64)[draw_index(weights, rng.random(n))]


class LogNormalLength(LengthDistribution):
    """Lognormal distribution, rounded; given by its median and either mean, 90th percentile or sigma.

    sigma = √(2 ln(mean/median)) or ln(p90/median)/1.2816. The mean and percentile are those of the continuous
    distribution; :attr:`mean_len` is the mean after rounding.

    Attributes:
        median: tokens.
        mean: mean of the continuous distribution, tokens.
        p90: 90th percentile of the continuous distribution, tokens.
        sigma: standard deviation of the logarithm.
    """

    kind: Literal["lognormal"] = "lognormal"
    median: float = Field(gt=0)
    mean: float | None = Field(default=None, gt=0)
    p90: float | None = Field(default=None, gt=0)
    sigma: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _one_spread(self) -> LogNormalLength:
        given = [n for n in ("mean", "p90", "sigma") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of mean, p90 and sigma, got {given or 'none'}")
        if (self.mean or self.p90 or math.inf) < self.median:
            raise ValueError(f"{given[0]} must be at least the median {self.median}")
        return self

    @property
    def log_std(self) -> float:
        """Standard deviation of the logarithm, from the parameter that was given."""
        if self.mean is not None:
            return math.sqrt(2 * math.log(self.mean / self.median))
        if self.p90 is not None:
            return math.log(self.p90 / self.median) / NORMAL_P90
        return float(self.sigma or 0.0)

    @property
    def mean_len(self) -> float:
        """Mean after rounding, unlimited."""
        return self.limited_mean()

    @property
    def max_len(self) -> None:
        """Unbounded."""
        return None

    def limited_mean(self, low: int = 1, high: int | None = None) -> float:
        """Return the mean after rounding and clipping to [``low``, ``high``], tokens.

        E[L] = low + Σ_{k>low} P(L ≥ k), summed exactly to 2^20 and by the continuous tail beyond.
        """
        last = min(high if high is not None else 2**20, 2**20)
        total = low + float(self._survival(np.arange(low + 0.5, last)).sum())
        if high is None or high > last:
            end = math.inf if high is None else high + 0.5
            total += self._excess(last + 0.5) - self._excess(end)
        return total

    def sample(self, n: int, rng: np.random.Generator) -> Lengths:
        """Return ``n`` rounded draws."""
        draws = self.median * np.exp(self.log_std * rng.standard_normal(n))
        return np.minimum(np.maximum(np.floor(draws + 0.5), 1), MAX_TOKENS).astype(np.int64)

    def _survival(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return P(X ≥ x) of the continuous distribution."""
        from scipy.special import ndtr  # slow to import

        if self.log_std == 0:
            return (x <= self.median).astype(np.float64)
        return np.asarray(ndtr(np.log(self.median / x) / self.log_std), np.float64)

    def _excess(self, x: float) -> float:
        """Return E[(X − x)⁺] of the continuous distribution."""
        from scipy.special import ndtr

        s = self.log_std
        if s == 0 or math.isinf(x):
            return max(self.median - x, 0.0)
        if s > 37.0:  # e^(s²/2) would overflow
            return math.inf
        d = math.log(self.median / x) / s
        return float(self.median * math.exp(0.5 * s * s) * ndtr(d + s) - x * ndtr(d))


AnyLength = Annotated[
    ConstantLength | UniformLength | DiscreteLength | LogNormalLength, Field(discriminator="kind")
]
"""Any distribution of one length, distinguished by ``kind``."""


class PairDistribution(Spec):
    """Base class of distributions of (prompt, output) pairs."""

    @property
    def mean_prompt_len(self) -> float:
        """Mean prompt length, tokens."""
        raise NotImplementedError

    @property
    def mean_output_len(self) -> float:
        """Mean output length, tokens."""
        raise NotImplementedError

    def sample(
        self, n: int, prompt_rng: np.random.Generator, output_rng: np.random.Generator
    ) -> tuple[Lengths, Lengths]:
        """Return ``n`` prompt and ``n`` output lengths, int64 (n,) each, tokens.

        With two generators, prompts do not change when only the output distribution changes, and samples of
        different n are consistent.
        """
        raise NotImplementedError


class IndependentLengths(PairDistribution):
    """Prompt and output drawn independently.

    Attributes:
        prompt: distribution of the prompt length.
        output: distribution of the output length.
    """

    kind: Literal["independent"] = "independent"
    prompt: AnyLength
    output: AnyLength

    @property
    def mean_prompt_len(self) -> float:
        """Mean of ``prompt``."""
        return self.prompt.mean_len

    @property
    def mean_output_len(self) -> float:
        """Mean of ``output``."""
        return self.output.mean_len

    def sample(
        self, n: int, prompt_rng: np.random.Generator, output_rng: np.random.Generator
    ) -> tuple[Lengths, Lengths]:
        """Return the pairs."""
        return self.prompt.sample(n, prompt_rng), self.output.sample(n, output_rng)


class FillLengths(PairDistribution):
    """Output uniform on 1 … kv_capacity − prompt, so that any request fits alone (MC-SF, Section 5.1).

    Attributes:
        prompt: distribution of the prompt length, bounded below ``kv_capacity``.
        kv_capacity: memory of the worker M, tokens.
    """

    kind: Literal["fill"] = "fill"
    prompt: AnyLength
    kv_capacity: int = Field(ge=2)

    @model_validator(mode="after")
    def _room(self) -> FillLengths:
        longest = self.prompt.max_len
        if longest is None or longest >= self.kv_capacity:
            raise ValueError(f"prompts must stay below kv_capacity = {self.kv_capacity}, got up to {longest}")
        return self

    @property
    def mean_prompt_len(self) -> float:
        """Mean of ``prompt``."""
        return self.prompt.mean_len

    @property
    def mean_output_len(self) -> float:
        """(1 + kv_capacity − E[prompt]) / 2."""
        return 0.5 * (1 + self.kv_capacity - self.prompt.mean_len)

    def sample(
        self, n: int, prompt_rng: np.random.Generator, output_rng: np.random.Generator
    ) -> tuple[Lengths, Lengths]:
        """Return the pairs."""
        prompt = self.prompt.sample(n, prompt_rng)
        output = 1 + np.floor(output_rng.random(n) * (self.kv_capacity - prompt)).astype(np.int64)
        return prompt, output


class EmpiricalPairs(PairDistribution):
    """Recorded (prompt, output) pairs, drawn jointly with replacement, which keeps their correlation.

    Attributes:
        prompt_len: tokens.
        output_len: tokens, as many as prompts.
    """

    kind: Literal["pairs"] = "pairs"
    prompt_len: tuple[Tokens, ...] = Field(min_length=1)
    output_len: tuple[Tokens, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _paired(self) -> EmpiricalPairs:
        if len(self.prompt_len) != len(self.output_len):
            raise ValueError(f"{len(self.prompt_len)} prompts but {len(self.output_len)} outputs")
        return self

    @property
    def mean_prompt_len(self) -> float:
        """Mean of the given prompts."""
        return float(np.mean(self.prompt_len))

    @property
    def mean_output_len(self) -> float:
        """Mean of the given outputs."""
        return float(np.mean(self.output_len))

    def sample(
        self, n: int, prompt_rng: np.random.Generator, output_rng: np.random.Generator
    ) -> tuple[Lengths, Lengths]:
        """Return the pairs; only ``prompt_rng`` is used."""
        index = prompt_rng.integers(0, len(self.prompt_len), n)
        return np.asarray(self.prompt_len, np.int64)[index], np.asarray(self.output_len, np.int64)[index]


def draw_index(weights: NDArray[np.float64], uniforms: NDArray[np.float64]) -> Lengths:
    """Return the index that each uniform in [0, 1) selects under ``weights`` (m,), ≥ 0; int64 (n,)."""
    cumulative = np.cumsum(weights)
    index = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
    return np.asarray(np.minimum(index, np.flatnonzero(weights)[-1]), np.int64)
