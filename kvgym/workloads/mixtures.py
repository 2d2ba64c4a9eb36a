"""Mixtures of kinds of requests; mixtures and predictors fitted to recorded requests."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from kvgym.errors import WorkloadError, shown
from kvgym.utils.arguments import explained
from kvgym.utils.checks import as_array
from kvgym.workloads.base import Spec
from kvgym.workloads.layout import FEATURE_COLUMNS
from kvgym.workloads.lengths import AnyLength, DiscreteLength, Lengths, PairDistribution, draw_index
from kvgym.workloads.predictions import PromptPrediction
from kvgym.workloads.table import RequestTable


class NormalFeature(Spec):
    """A feature that is normally distributed.

    Attributes:
        mean: its mean.
        deviation: its standard deviation.
    """

    mean: float = 0.0
    deviation: float = Field(default=1.0, gt=0)


class RequestKind(Spec):
    """A kind of requests in a mixture.

    Attributes:
        weight: share of the requests, relative to the other kinds.
        prompt: distribution of its prompt length.
        output: distribution of its output length.
        features: feature columns of its requests, each a number or a normal distribution.
    """

    weight: float = Field(default=1.0, gt=0)
    prompt: AnyLength
    output: AnyLength
    features: tuple[float | NormalFeature, ...] = Field(default=(), max_length=len(FEATURE_COLUMNS))

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out features where there are none, so that older descriptions keep their hashes."""
        fields: dict[str, Any] = handler(self)
        return fields if self.features else {name: x for name, x in fields.items() if name != "features"}


class MixedLengths(PairDistribution):
    """Hidden kinds of requests: each has its own distributions.

    Lengths hint at the kind, and feature columns, if kinds have some. A policy that needs ``class`` observes classes;
    it does not observe kinds.

    Attributes:
        kinds: the kinds.
    """

    kind: Literal["mixture"] = "mixture"
    kinds: tuple[RequestKind, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _equal_features(self) -> MixedLengths:
        if len(counts := {len(kind.features) for kind in self.kinds}) > 1:
            raise ValueError(
                f"kinds have {' or '.join(map(str, sorted(counts)))} features; expected as many in each"
            )
        return self

    @property
    def shares(self) -> NDArray[np.float64]:
        """Share of each kind, float64 (number of kinds,)."""
        weights = np.array([k.weight for k in self.kinds])
        return np.asarray(weights / weights.sum(), np.float64)

    @property
    def mean_prompt_len(self) -> float:
        """Mean prompt length of all kinds, weighted."""
        return float(self.shares @ [k.prompt.mean_len for k in self.kinds])

    @property
    def mean_output_len(self) -> float:
        """Mean output length of all kinds, weighted."""
        return float(self.shares @ [k.output.mean_len for k in self.kinds])

    def sample(
        self, n: int, prompt_rng: np.random.Generator, output_rng: np.random.Generator
    ) -> tuple[Lengths, Lengths]:
        """Return the pairs; the j-th request of a kind has the same lengths for every n."""
        drawing, *of_prompts = prompt_rng.spawn(1 + len(self.kinds))
        chosen = self._draw(n, drawing)
        prompt, output = np.empty(n, np.int64), np.empty(n, np.int64)
        for k, (kind, first, second) in enumerate(
            zip(self.kinds, of_prompts, output_rng.spawn(len(self.kinds)), strict=True)
        ):
            rows = np.flatnonzero(chosen == k)
            prompt[rows] = kind.prompt.sample(len(rows), first)
            output[rows] = kind.output.sample(len(rows), second)
        return prompt, output

    def sample_features(
        self, n: int, prompt_rng: np.random.Generator, rng: np.random.Generator
    ) -> dict[str, NDArray[np.float64]]:
        """Return the feature columns of ``n`` requests, float64 (n,) by name.

        Args:
            n: number of requests.
            prompt_rng: a generator like the one of :meth:`sample`, which draws the kinds.
            rng: draws the features.
        """
        count = len(self.kinds[0].features)
        if count == 0:
            return {}
        chosen, found = self._draw(n, prompt_rng.spawn(1)[0]), np.empty((count, n))
        for k, (kind, own) in enumerate(zip(self.kinds, rng.spawn(len(self.kinds)), strict=True)):
            rows = np.flatnonzero(chosen == k)
            for column, feature, drawing in zip(found, kind.features, own.spawn(count), strict=True):
                if isinstance(feature, NormalFeature):
                    column[rows] = drawing.normal(feature.mean, feature.deviation, len(rows))
                else:
                    column[rows] = feature
        return dict(zip(FEATURE_COLUMNS, found, strict=False))

    def _draw(self, n: int, rng: np.random.Generator) -> Lengths:
        """Return the kinds of ``n`` requests, int64 (n,)."""
        return draw_index(self.shares, rng.random(n))


@explained
def fit_lengths(
    prompt_len: ArrayLike, output_len: ArrayLike, *, bins: int = 20, values: int = 10
) -> MixedLengths:
    """Fit a mixture to recorded lengths, to be shared in place of the record.

    Requests are sorted by prompt and split into bins of equal numbers. In each bin, prompts and outputs are independent
    and take the rounded means of equal shares of the sorted lengths, so that means are kept and extremes are averaged.

    Args:
        prompt_len: recorded prompts, tokens, (n,).
        output_len: recorded outputs, tokens, (n,).
        bins: number of bins of the prompt.
        values: number of prompts, and of outputs, in each bin.

    Raises:
        WorkloadError: fewer requests than ``bins`` times ``values``, or different numbers of prompts and outputs.
    """
    prompt, output = _recorded(prompt_len, output_len, bins, values)
    order = np.argsort(prompt, kind="stable")
    return MixedLengths(
        kinds=tuple(
            RequestKind(
                prompt=_equal_shares(prompt[rows], values), output=_equal_shares(output[rows], values)
            )
            for rows in np.array_split(order, bins)
        )
    )


@explained
def fit_predictor(prompt_len: ArrayLike, output_len: ArrayLike, *, bins: int = 20) -> PromptPrediction:
    """Fit a predictor of outputs to recorded lengths: the mean output by bins of the prompt.

    Args:
        prompt_len: recorded prompts, tokens, (n,).
        output_len: recorded outputs, tokens, (n,).
        bins: number of bins with equal numbers of requests; bins that begin with the same prompt become one.

    Raises:
        WorkloadError: fewer requests than ``bins``, or different numbers of prompts and outputs.
    """
    prompt, output = _recorded(prompt_len, output_len, bins, 1)
    ordered = np.sort(prompt)
    starts = np.unique(ordered[[rows[0] for rows in np.array_split(np.arange(len(ordered)), bins)]])
    row = np.maximum(np.searchsorted(starts, prompt, side="right") - 1, 0)
    means = np.bincount(row, output) / np.bincount(row)
    return PromptPrediction(
        prompts=tuple(map(int, starts)), outputs=tuple(max(1, round(float(mean))) for mean in means)
    )


@explained
def variance_explained(fitted: MixedLengths, prompt_len: ArrayLike, output_len: ArrayLike) -> float:
    """Return the share of the variance of log outputs that the mixture's kinds explain, given the prompts (R²).

    The last kind with a smallest prompt that a request reaches predicts its output, by the mean log output of the kind.

    Args:
        fitted: what :func:`fit_lengths` returns.
        prompt_len: prompts that were not fitted, tokens, (n,).
        output_len: their outputs, tokens, (n,).
    """
    starts, means = [], []
    for kind in fitted.kinds:
        if not isinstance(kind.prompt, DiscreteLength) or not isinstance(kind.output, DiscreteLength):
            raise WorkloadError(
                "variance_explained needs a mixture of discrete kinds, as fit_lengths returns"
            )
        starts.append(min(kind.prompt.values))
        means.append(float(np.log(kind.output.values).mean()))
    chosen = np.searchsorted(starts, np.asarray(prompt_len), side="right") - 1
    logs = np.log(np.asarray(output_len, np.float64))
    errors = logs - np.asarray(means)[np.maximum(chosen, 0)]
    return float(1 - np.mean(errors**2) / logs.var())


def mixture_text(fitted: MixedLengths) -> str:
    """Return a mixture of discrete kinds as YAML, one line per kind, for the field ``lengths`` of a workload."""
    rows = [
        f"  - {{prompt: {_text(kind.prompt)}, output: {_text(kind.output)}}}"
        for kind in fitted.kinds
        if isinstance(kind.prompt, DiscreteLength) and isinstance(kind.output, DiscreteLength)
    ]
    return "\n".join(["kind: mixture", "kinds:", *rows, ""])


def _recorded(
    prompt_len: ArrayLike, output_len: ArrayLike, bins: int, values: int
) -> tuple[Lengths, Lengths]:
    """Return recorded lengths as arrays, enough for a fit."""
    prompt, output = (
        as_array(prompt_len, "prompt_len", WorkloadError),
        as_array(output_len, "output_len", WorkloadError),
    )
    if prompt.ndim != 1 or prompt.shape != output.shape or len(prompt) < bins * values:
        raise WorkloadError(
            f"a fit needs as many outputs as prompts, at least bins · values = {shown(bins * values)} of them; "
            f"got {prompt.size:,} prompts and {output.size:,} outputs"
        )
    table = RequestTable.from_columns(
        arrival_time=np.zeros(len(prompt)), prompt_len=prompt, output_len=output
    )
    return table.prompt_len, table.output_len


def _text(discrete: DiscreteLength) -> str:
    return f"{{kind: discrete, values: [{', '.join(map(str, discrete.values))}]}}"


def _equal_shares(lengths: Lengths, values: int) -> DiscreteLength:
    """Return the rounded means of ``values`` equal shares of sorted lengths, each as likely as the others."""
    shares = np.array_split(np.sort(lengths), values)
    return DiscreteLength(values=tuple(max(1, round(float(share.mean()))) for share in shares))
