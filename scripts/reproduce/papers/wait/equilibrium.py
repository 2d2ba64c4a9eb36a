"""Fluid equilibria with the calibrated hardware, and the affine model fitted to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.theory.fluid import batch_memory, full_batch_time
from kvgym.workloads.classes import ClassStatistics


def decode_grid(
    batch_time: BatchTimeModel, capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return requests, KV tokens and seconds of decode batches that fit the memory, shape (points,) each."""
    grid = [
        (n, c) for n in (1, 2, 4, 8, 16, 32, 64, 96, 128) for c in (32, 64, 128, 256, 512, 1024, 2048, 4032)
    ]
    rows = [(n, c) for n, c in grid if n * (c + 1) <= capacity]
    none = dict.fromkeys(
        ("num_prefills", "prefill_tokens", "prefill_context", "prefill_squares", "prefill_products"), 0
    )
    seconds = np.array([float(batch_time(**none, num_decodes=n, decode_context=n * c)) for n, c in rows])
    return np.array([n for n, _ in rows]), np.array([n * (c + 1) for n, c in rows], dtype=float), seconds


def fit_affine(batch_time: BatchTimeModel, capacity: int) -> tuple[float, float, float, float, int]:
    """Return d0, d1 of eq. (1) by least squares over decode batches, median and largest error, and points."""
    _, tokens, seconds = decode_grid(batch_time, capacity)
    columns = np.column_stack([np.ones(len(tokens)), tokens])
    (d0, d1), *_ = np.linalg.lstsq(columns, seconds, rcond=None)
    error = np.abs((d0 + d1 * tokens) / seconds - 1)
    return float(d0), float(d1), float(np.median(error)), float(error.max()), len(tokens)


def rate_at(classes: Sequence[ClassStatistics], memory: float, model: BatchTimeModel) -> float:
    """Return the total rate at which the fluid equilibrium of a batch-time model holds ``memory`` tokens.

    n_j = lambda_j tau(n) in place of eq. (7): with the affine model the inverse of eq. (8).
    """
    total = sum(c.rate for c in classes)
    unit = np.array([c.rate / total for c in classes])
    scale = memory / batch_memory(classes, unit)
    return scale / full_batch_time(classes, scale * unit, model)


def least_equilibrium(classes: Sequence[ClassStatistics], rate: float, model: BatchTimeModel) -> float:
    """Return the KV tokens of the smallest fluid equilibrium at a total rate, by iteration from an empty worker.

    With the affine model there is one equilibrium, M* of eq. (8). Measured batch times rise in steps, so that
    there can be several. The one of no requests, where an empty batch takes no time, is not counted.
    """
    total = sum(c.rate for c in classes)
    unit = np.array([c.rate / total for c in classes])
    arrivals = 1e-9  # of an iteration, more than none; batch times do not fall when it grows
    for _ in range(20_000):
        following = rate * full_batch_time(classes, arrivals * unit, model)
        if following <= arrivals * (1 + 1e-9):
            break
        arrivals = following
    return float(batch_memory(classes, arrivals * unit))
