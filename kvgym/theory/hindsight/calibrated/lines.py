"""Floors of batch times, and the lines below curves that they are built from.

:mod:`kvgym.theory.hindsight.calibrated.floors` explains why floors hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Composition:
    """Mean content of batches; decides where a floor should be high, not where it holds.

    Attributes:
        tokens: prompt tokens and decodes.
        requests: requests that the batch processes.
        decodes: those that decode.
        context: KV tokens cached before the batch, of decodes.
        pairs: of tokens of a prompt, each with itself and with those before it.
        prefill_tokens: of prompts.
    """

    tokens: float
    requests: float
    decodes: float
    context: float
    pairs: float = 0.0
    prefill_tokens: float = 0.0


def no_attention(lengths: Floats) -> Floats:
    """Return 0 seconds for prompts of any length."""
    return np.zeros_like(lengths)


@dataclass(frozen=True)
class BatchFloor:
    """Seconds that no batch falls below: constants, and a sum over its requests. All are >= 0.

    Attributes:
        batch: of every batch that holds anything.
        prefill_batch: more, of a batch with a prefill.
        decode_batch: more, of a batch with a decode.
        request: for each request in the batch.
        prefill_token: for each prompt token.
        decode: for each decode.
        context: for each KV token that a decode finds cached.
        attention: for each completed prefill, over all its batches: from lengths of prefills, float64 (n,), to least
            seconds over all ways to chunk them, (n,).
    """

    batch: float = 0.0
    prefill_batch: float = 0.0
    decode_batch: float = 0.0
    request: float = 0.0
    prefill_token: float = 0.0
    decode: float = 0.0
    context: float = 0.0
    attention: Callable[[Floats], Floats] = no_attention


def line_below(x: Floats, y: Floats, at: float) -> tuple[float, float]:
    """Return intercept and slope, both >= 0, of the line below a curve that is highest at a place.

    Args:
        x: ascending abscissae >= 0, the ends of the curve's domain among them, shape (n,), n >= 2.
        y: the curve there, >= 0; in between it lies nowhere below its chords, shape (n,).
        at: the place; clipped to the domain.
    """
    y = np.minimum.accumulate(y[::-1])[::-1]  # no rising line lies below a curve that falls later
    corners = hull(x, y)
    i = int(np.clip(np.searchsorted(x[corners], at, side="right"), 1, len(corners) - 1))
    left, right = corners[i - 1], corners[i]
    slope = float((y[right] - y[left]) / (x[right] - x[left]))
    intercept = float(y[left] - slope * x[left])
    if intercept < 0:  # then the best is one through the origin
        some = x > 0
        return 0.0, float((y[some] / x[some]).min())
    return intercept, slope


def hull(x: Floats, y: Floats) -> list[int]:
    """Return the corners of the greatest convex function below points, ascending in x."""
    corners: list[int] = []
    for i in range(len(x)):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            corners.pop()
        corners.append(i)
    return corners
