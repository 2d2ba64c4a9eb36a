"""Joint distributions of prompt and output lengths, fitted to recorded requests."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from kvgym.errors import WorkloadError
from kvgym.utils.arguments import explained
from kvgym.workloads.lengths import DiscreteLength, Lengths, MixedLengths, RequestKind
from kvgym.workloads.predictions import PromptPrediction


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
    prompt, output = np.asarray(prompt_len, np.int64), np.asarray(output_len, np.int64)
    if prompt.ndim != 1 or prompt.shape != output.shape or len(prompt) < bins * values:
        raise WorkloadError(
            f"a fit needs as many outputs as prompts, at least bins · values = {bins * values:,} of them; "
            f"got {prompt.size:,} prompts and {output.size:,} outputs"
        )
    return prompt, output


def _text(discrete: DiscreteLength) -> str:
    return f"{{kind: discrete, values: [{', '.join(map(str, discrete.values))}]}}"


def _equal_shares(lengths: Lengths, values: int) -> DiscreteLength:
    """Return the rounded means of ``values`` equal shares of sorted lengths, each as likely as the others."""
    shares = np.array_split(np.sort(lengths), values)
    return DiscreteLength(values=tuple(max(1, round(float(share.mean()))) for share in shares))
