"""Predictors of output lengths, which schedulers may observe before the true lengths are known.

A predictor fills the predicted columns of a request table and changes nothing else; all predictions are whole numbers
of tokens ≥ 1. Random numbers are drawn in the order of the requests.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kvgym.errors import WorkloadError
from kvgym.workloads.base import Spec
from kvgym.workloads.lengths import Lengths, Tokens
from kvgym.workloads.table import RequestTable

Bucket = Tokens | Literal["power_of_two"] | tuple[Tokens, ...]
"""A width in tokens, powers of two, or increasing upper edges."""


class Predictor(Spec):
    """Base class of predictors."""

    def apply(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` with its predicted columns filled."""
        raise NotImplementedError


class NoPrediction(Predictor):
    """No predictions; policies that need them are refused."""

    kind: Literal["none"] = "none"

    def apply(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
        """Return ``table`` without predicted columns."""
        return _predicted(table, None, None, None)


class ExactPrediction(Predictor):
    """The true output length."""

    kind: Literal["exact"] = "exact"

    def apply(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
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

    def apply(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
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

    def apply(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
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

    def apply(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
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

    def apply(self, table: RequestTable, rng: np.random.Generator) -> RequestTable:
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


AnyPredictor = Annotated[
    NoPrediction
    | ExactPrediction
    | NoisyPrediction
    | UpperBoundPrediction
    | IntervalPrediction
    | ClassPrediction,
    Field(discriminator="kind"),
]
"""Any predictor, distinguished by ``kind``."""


def _predicted(
    table: RequestTable, point: Lengths | None, low: Lengths | None, high: Lengths | None
) -> RequestTable:
    """Return ``table`` with exactly these predicted columns."""
    return table.replace(predicted_output_len=point, predicted_low=low, predicted_high=high)


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
