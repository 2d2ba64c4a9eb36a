"""Predictors of output lengths, which schedulers may observe before the true lengths are known.

A predictor fills the predicted columns and the forecasts of a request table and changes nothing else; all predictions
are whole numbers of tokens ≥ 1. Random numbers are drawn in the order of the requests. Any of them can be renewed while
a request decodes, as predictors that read the model's state do.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kvgym.errors import WorkloadError
from kvgym.workloads.base import MAX_TOKENS, Spec
from kvgym.workloads.forecasts import Forecasts, tenths_of
from kvgym.workloads.lengths import Lengths, Tokens
from kvgym.workloads.table import RequestTable

Bucket = Tokens | Literal["power_of_two"] | tuple[Tokens, ...]
"""A width in tokens, powers of two, or increasing upper edges."""


class Predictor(Spec):
    """Base class of predictors.

    Attributes:
        renew_every: output tokens after which a prediction is renewed; None = never.
        renew_error: standard deviation σ of the logarithm of the error of the first renewal. The renewal after t of o
            tokens predicts t + (o - t) exp(σ z) with a standard normal z, rounded, at least t + 1.
        renew_decay: factor of σ from one renewal to the next.
        only_needed: in runs of scenarios, only policies that need predictions observe them; those that use
            predictions where requests carry them do without, see :func:`kvgym.experiments.resolving.requests_for`.
    """

    only_needed: bool = False
    renew_every: Tokens | None = None
    renew_error: float = Field(default=0.5, ge=0, le=10)
    renew_decay: float = Field(default=0.9, gt=0, le=1)

    def apply(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` with its predicted columns and forecasts filled."""
        predicted = self._predict(table, rng)
        if self.renew_every is None:
            return predicted
        every, forecasts = self.renew_every, predicted.forecasts
        tenths = None if forecasts is None else forecasts.tenths
        count = (table.output_len - 1) // every
        stage = 1 + np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        made, output = stage * every, np.repeat(table.output_len, count)
        error = self.renew_error * self.renew_decay ** (stage - 1) * rng.standard_normal(len(stage))
        left = np.maximum(np.floor((output - made) * np.exp(error) + 0.5), 1)
        renewed = np.minimum(made + left, MAX_TOKENS).astype(np.int64)
        return predicted.replace(forecasts=Forecasts(tenths, every, renewed, np.cumsum(count) - count, count))

    def _predict(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` with the predictions on arrival."""
        raise NotImplementedError


class NoPrediction(Predictor):
    """No predictions; policies that need them are refused."""

    kind: Literal["none"] = "none"

    def _predict(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` without predicted columns."""
        return _predicted(table, None, None, None)


class ExactPrediction(Predictor):
    """The true output length."""

    kind: Literal["exact"] = "exact"

    def _predict(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` with predictions equal to the true lengths."""
        return _predicted(table, table.output_len, None, None)


class NoisyPrediction(Predictor):
    """Uniform in ((1 − ε) o, (1 + ε) o), rounded to the nearest whole number, at least 1.

    Source: MC-SF, Section 5.2.2, with ε ∈ {0.2, 0.5, 0.8}.

    Attributes:
        epsilon: relative error ε, 0 to 1.
    """

    kind: Literal["noisy"] = "noisy"
    epsilon: float = Field(ge=0, le=1)

    def _predict(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` with noisy predictions."""
        factor = 1 + self.epsilon * (2 * rng.random(len(table)) - 1)
        guess = np.maximum(np.floor(factor * table.output_len + 0.5), 1).astype(np.int64)
        return _predicted(table, guess, None, None)


class UpperBoundPrediction(Predictor):
    """An upper bound of the output length: ⌈factor · o⌉, rounded up to the end of its bucket.

    Attributes:
        factor: ≥ 1.
        bucket: width in tokens, ``"power_of_two"`` or increasing upper edges; None = no buckets.
    """

    kind: Literal["upper_bound"] = "upper_bound"
    factor: float = Field(default=1.0, ge=1)
    bucket: Bucket | None = None

    @model_validator(mode="after")
    def _increasing(self) -> UpperBoundPrediction:
        _check_edges(self.bucket)
        return self

    def _predict(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` with predictions ≥ the true lengths."""
        bound = np.maximum(np.ceil(self.factor * table.output_len).astype(np.int64), table.output_len)
        if self.bucket is not None:
            bound = _bucket(bound, self.bucket)[1]
        return _predicted(table, bound, None, None)


class IntervalPrediction(Predictor):
    """An interval [low, high] that contains the output length, from exactly one of three sources.

    Attributes:
        epsilon: low uniform in ((1 − ε) o, o), high uniform in (o, (1 + ε) o), rounded outwards.
        bucket: the bucket of the length, as in :class:`UpperBoundPrediction`.
        bounds: one (low, high) for all requests; a length outside is an error.
        point: value of ``predicted_output_len``: none, or the low end, high end or middle of the interval.
    """

    kind: Literal["interval"] = "interval"
    epsilon: float | None = Field(default=None, ge=0)
    bucket: Bucket | None = None
    bounds: tuple[Tokens, Tokens] | None = None
    point: Literal["none", "low", "middle", "high"] = "none"

    @model_validator(mode="after")
    def _one_source(self) -> IntervalPrediction:
        given = [name for name in ("epsilon", "bucket", "bounds") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of epsilon, bucket and bounds, got {given or 'none'}")
        if self.bounds is not None and self.bounds[1] < self.bounds[0]:
            raise ValueError(f"bounds {self.bounds} must be low ≤ high")
        _check_edges(self.bucket)
        return self

    def _predict(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` with intervals around the true lengths."""
        output = table.output_len
        if self.epsilon is not None:
            spread = self.epsilon * rng.random((len(table), 2))
            low = np.maximum(np.floor((1 - spread[:, 0]) * output), 1).astype(np.int64)
            high = np.maximum(np.ceil((1 + spread[:, 1]) * output).astype(np.int64), output)
        elif self.bucket is not None:
            low, high = _bucket(output, self.bucket)
        else:
            ends = self.bounds or (1, 1)
            outside = (output < ends[0]) | (output > ends[1])
            if outside.any():
                row = int(np.argmax(outside))
                raise WorkloadError(
                    f"interval prediction {ends}: request {row} has output_len {output[row]}; "
                    f"widen the bounds or limit the output lengths"
                )
            low, high = np.full(len(table), ends[0], np.int64), np.full(len(table), ends[1], np.int64)
        points = {"none": None, "low": low, "middle": (low + high) // 2, "high": high}
        return _predicted(table, points[self.point], low, high)


class ClassPrediction(Predictor):
    """One predicted length per class.

    Attributes:
        lengths: predicted length of each class, tokens, indexed by class; None = computed from the table.
        statistic: if computed from the table, the largest or the mean (rounded up) length of the class.
    """

    kind: Literal["class"] = "class"
    lengths: tuple[Tokens, ...] | None = None
    statistic: Literal["max", "mean"] = "max"

    def _predict(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` with the class's length as prediction."""
        if table.class_id is None:
            raise WorkloadError("class predictions need requests with classes; this workload has none")
        if not len(table):
            return _predicted(table, table.output_len, None, None)
        if self.lengths is not None:
            lengths = np.asarray(self.lengths, np.int64)
            if table.class_id.max() >= len(lengths):
                raise WorkloadError(
                    f"class predictions are given for {len(lengths)} classes, but class "
                    f"{table.class_id.max()} occurs; give one length per class"
                )
        else:
            lengths = np.ones(int(table.class_id.max()) + 1, np.int64)
            for c in np.unique(table.class_id):
                outputs = table.output_len[table.class_id == c]
                lengths[c] = outputs.max() if self.statistic == "max" else np.ceil(outputs.mean())
        return _predicted(table, lengths[table.class_id], None, None)


class PromptPrediction(Predictor):
    """A length by the prompt, from a table: the mean output of recorded requests with similar prompts.

    :func:`kvgym.workloads.mixtures.fit_predictor` makes the table from a log.

    Attributes:
        prompts: smallest prompt of each row, tokens, increasing; shorter prompts have the first row.
        outputs: predicted length of each row, tokens.
    """

    kind: Literal["prompt"] = "prompt"
    prompts: tuple[Tokens, ...] = Field(min_length=1)
    outputs: tuple[Tokens, ...]

    @model_validator(mode="after")
    def _one_output_each(self) -> PromptPrediction:
        _check_edges(self.prompts)
        if len(self.prompts) != len(self.outputs):
            raise ValueError(
                f"prompts has {len(self.prompts)} rows and outputs {len(self.outputs)}; give as many"
            )
        return self

    def _predict(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` with the row's length as prediction."""
        row = np.maximum(np.searchsorted(self.prompts, table.prompt_len, side="right") - 1, 0)
        return _predicted(table, np.asarray(self.outputs, np.int64)[row], None, None)


class RankPrediction(Predictor):
    """Lengths of the same workload in an order that correlates with the true one, as learned rankings do.

    The normal score of a request's rank r becomes ρ r + √(1 - ρ²) z with ρ = sin(π τ / 2) and a standard normal z; the
    request with the k-th score is predicted to have the k-th length. Without ties in the lengths, Kendall's rank
    correlation of predictions and lengths is then τ; ties are put into a random order. It depends on the whole table.

    Source of rank correlations: Fu et al., Efficient LLM Scheduling by Learning to Rank; they measure Kendall's τ.

    Attributes:
        tau: Kendall's τ, -1 to 1; 0 is a random order.
    """

    kind: Literal["rank"] = "rank"
    tau: float = Field(ge=-1, le=1)

    def _predict(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` with lengths in a correlated order."""
        from scipy.special import ndtri  # slow to import

        n, output = len(table), table.output_len
        place = np.empty(n, np.int64)
        place[np.lexsort((rng.random(n), output))] = np.arange(n)
        rho = math.sin(math.pi * self.tau / 2)
        score = rho * ndtri((place + 0.5) / max(n, 1)) + math.sqrt(1 - rho * rho) * rng.standard_normal(n)
        guess = np.empty(n, np.int64)
        guess[np.argsort(score, kind="stable")] = np.sort(output)
        return _predicted(table, guess, None, None)


class BinPrediction(Predictor):
    """The bin of the output length, by a classifier that is not always right.

    A wrong guess is a neighbouring bin, of two with equal probability. The prediction is the middle of the guessed bin,
    rounded down, and its interval the whole bin, which need not contain the length.

    Attributes:
        bucket: width in tokens, ``"power_of_two"`` or increasing upper edges.
        accuracy: probability of the right bin, 0 to 1.
    """

    kind: Literal["bins"] = "bins"
    bucket: Bucket = "power_of_two"
    accuracy: float = Field(default=1.0, ge=0, le=1)

    @model_validator(mode="after")
    def _increasing(self) -> BinPrediction:
        _check_edges(self.bucket)
        return self

    def _predict(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` with a bin for each request."""
        low, high = _bucket(table.output_len, self.bucket)
        draws = rng.random((len(table), 2))
        wrong, down = draws[:, 0] >= self.accuracy, (draws[:, 1] < 0.5) & (low > 1)
        top = self.bucket[-1] if isinstance(self.bucket, tuple) else MAX_TOKENS // 2
        down |= (high >= top) & (low > 1)
        nearby = np.where(down, low - 1, np.minimum(high + 1, top))
        low, high = _bucket(np.where(wrong, nearby, table.output_len), self.bucket)
        return _predicted(table, (low + high) // 2, low, high)


class DistributionPrediction(Predictor):
    """A distribution of the output length of each request, and its mean as prediction.

    With ``log_normal`` and ``log_t`` the logarithm of a length o is ln o = m + σ t with a standard normal or Student's
    t. A request gets m = ln o - σ t, so that distributions are calibrated. Lengths are censored at the longest one.
    With ``neighbours`` the distribution is the histogram of the lengths of earlier requests that are most alike: those
    with the closest m, where t is standard normal. Before there are as many, all lengths of the workload are its
    prior. It depends on the whole table.

    Sources: Zheng et al., Scheduling LLM Inference with Uncertainty-Aware Output Length Predictions (log-t with 3.5
    degrees of freedom); SageSched, arXiv 2603.07917 (lengths of earlier, similar prompts).

    Attributes:
        shape: ``"log_normal"``, ``"log_t"`` or ``"neighbours"``.
        sigma: σ, > 0.
        freedom: degrees of freedom of Student's t.
        longest: longest length, tokens; None = the longest one of the workload.
        neighbours: earlier requests of a histogram.
        window: earlier requests among which they are found.
        interval: whether the means of the shortest and the longest tenth are given as an interval, too.
    """

    kind: Literal["distribution"] = "distribution"
    shape: Literal["log_normal", "log_t", "neighbours"] = "log_normal"
    sigma: float = Field(default=0.5, gt=0, le=10)
    freedom: float = Field(default=3.5, gt=0, le=1000)
    longest: Tokens | None = None
    neighbours: int = Field(default=20, ge=1, le=1000)
    window: int = Field(default=1000, ge=1, le=100_000)
    interval: bool = False

    @model_validator(mode="after")
    def _enough(self) -> DistributionPrediction:
        if self.window < self.neighbours:
            raise ValueError(f"window = {self.window} is below neighbours = {self.neighbours}")
        return self

    def _predict(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` with distributions and their means."""
        output = table.output_len
        if not len(table):
            return _predicted(table, output, None, None)
        noise = (
            rng.standard_t(self.freedom, len(table))
            if self.shape == "log_t"
            else rng.standard_normal(len(table))
        )
        centre = np.log(output) - self.sigma * noise
        tenths = self._alike(output, centre) if self.shape == "neighbours" else self._around(output, centre)
        mean = np.floor(tenths.mean(axis=1) + 0.5).astype(np.int64)
        none = np.zeros(len(table), np.int64)
        forecasts = Forecasts(tenths, 0, np.zeros(0, np.int64), none, none)
        low, high = (tenths[:, 0], tenths[:, -1]) if self.interval else (None, None)
        return _predicted(table, mean, low, high, forecasts)

    def _around(self, output: Lengths, centre: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return distributions around m, int64 (n, 10)."""
        from scipy.special import ndtri, stdtrit

        shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        spread = self.sigma * (stdtrit(self.freedom, shares) if self.shape == "log_t" else ndtri(shares))
        longest = float(self.longest or output.max())
        parts = np.array_split(centre, 1 + len(centre) // _ROWS)
        return np.concatenate(
            [tenths_of(np.exp(np.minimum(part[:, None] + spread, math.log(longest)))) for part in parts]
        )

    def _alike(self, output: Lengths, centre: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return histograms of earlier requests, int64 (n, 10)."""
        shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        points = np.empty((len(output), _QUANTILES))
        points[: self.neighbours] = np.quantile(output, shares)
        for i in range(self.neighbours, len(output)):
            start = max(0, i - self.window)
            near = np.argpartition(np.abs(centre[start:i] - centre[i]), self.neighbours - 1)[
                : self.neighbours
            ]
            alike = np.sort(output[start + near])
            points[i] = alike[(shares * self.neighbours).astype(np.int64)]
        return tenths_of(points)


_QUANTILES = 200  # of a distribution, a multiple of ten
_ROWS = 4096  # distributions computed at a time


AnyPredictor = Annotated[
    NoPrediction
    | ExactPrediction
    | NoisyPrediction
    | UpperBoundPrediction
    | IntervalPrediction
    | ClassPrediction
    | PromptPrediction
    | RankPrediction
    | BinPrediction
    | DistributionPrediction,
    Field(discriminator="kind"),
]
"""Any predictor, distinguished by ``kind``."""


def _predicted(
    table: RequestTable,
    point: Lengths | None,
    low: Lengths | None,
    high: Lengths | None,
    forecasts: Forecasts | None = None,
) -> RequestTable:
    """Return ``table`` with exactly these predicted columns and forecasts."""
    return table.replace(
        predicted_output_len=point, predicted_low=low, predicted_high=high, forecasts=forecasts
    )


def _check_edges(bucket: Bucket | None) -> None:
    """Check that bucket edges increase."""
    if isinstance(bucket, tuple) and (not bucket or list(bucket) != sorted(set(bucket))):
        raise ValueError(f"bucket edges must increase, got {bucket}")


def _bucket(lengths: Lengths, bucket: Bucket) -> tuple[Lengths, Lengths]:
    """Return the lowest and highest length of each length's bucket, int64 (n,) each."""
    if isinstance(bucket, int):
        high = -(-lengths // bucket) * bucket
        return high - bucket + 1, high
    if bucket == "power_of_two":
        high = _next_power_of_two(lengths)
        return high // 2 + 1, high
    edges = np.asarray(bucket, np.int64)
    index = np.searchsorted(edges, lengths, side="left")
    if len(index) and index.max() == len(edges):
        row = int(np.argmax(index))
        raise WorkloadError(
            f"bucket edges end at {edges[-1]}, but request {row} needs a bound of {lengths[row]} tokens; "
            f"add an edge or limit the output lengths"
        )
    return np.concatenate([[0], edges])[index] + 1, edges[index]


def _next_power_of_two(lengths: Lengths) -> NDArray[np.int64]:
    """Return the smallest power of two ≥ each length."""
    exponent = np.ceil(np.log2(lengths)).astype(np.int64)  # exact: log2 of a power of two is exact
    return np.left_shift(np.int64(1), exponent)
