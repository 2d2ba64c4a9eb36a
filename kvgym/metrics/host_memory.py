"""Metrics of the KV memory below the GPU: what is found there, and what transfers cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from kvgym.metrics.measured import Measured, ratio


def of_memory(
    figure: Callable[[Measured, NDArray[Any], int], float],
) -> Callable[[Measured], float]:
    """Return a metric that is NaN for runs without such a memory.

    Args:
        figure: of the run, its records, TIER (r,), and the tokens of a unit.
    """

    def compute(run: Measured) -> float:
        system = run.result.system
        return math.nan if system.host_memory is None else figure(run, run.result.tier, system.prefix_unit)

    return compute


def host_hit_rate(run: Measured, tier: NDArray[Any], unit: int) -> float:
    """Return the share of the tokens to prefill that first starts loaded and the host had."""
    found = int(tier["total_first"].sum() - run.result.lower["total_first"].sum())
    return ratio(unit * found, int(run.result.worker["total_known_tokens"].sum()))


def store_hit_rate(run: Measured) -> float:
    """Return the share of the tokens to prefill that first starts loaded and only the store below the host had."""
    system, found = run.result.system, int(run.result.lower["total_first"].sum())
    if system.host_memory is None or system.host_memory.below is None:
        return math.nan
    return ratio(system.prefix_unit * found, int(run.result.worker["total_known_tokens"].sum()))


def loaded_tokens(run: Measured, tier: NDArray[Any], unit: int) -> float:
    """Return the tokens that were loaded."""
    return float(unit * tier["total_loaded"].sum())


def stored_tokens(run: Measured, tier: NDArray[Any], unit: int) -> float:
    """Return the tokens that were written."""
    return float(unit * tier["total_stored"].sum())


def load_wait(run: Measured, tier: NDArray[Any], unit: int) -> float:
    """Return the time for which batches waited for loads, seconds for each request that loaded."""
    return ratio(float(tier["wait_time"].sum()), int(tier["total_loads"].sum()))


def stall_time(run: Measured, tier: NDArray[Any], unit: int) -> float:
    """Return the time for which batches waited for writes from memory that they took, seconds."""
    return float(tier["stall_time"].sum())


def host_use(run: Measured, tier: NDArray[Any], unit: int) -> float:
    """Return the time average of its use; to the end of the last batch of each worker."""
    return ratio(float(tier["used_time"].sum()), float((tier["capacity"] * tier["counted_until"]).sum()))


def link_use(run: Measured, tier: NDArray[Any], unit: int) -> float:
    """Return the busy share of the link to the GPU."""
    return ratio(float(tier["up_time"].sum()), run.end * len(tier))
