"""Metrics of the KV memory below the GPU: what is found there, and what transfers cost."""

from __future__ import annotations

from kvgym.metrics.measured import Measured, ratio


def host_hit_rate(run: Measured) -> float:
    """Return the share of the tokens to prefill that first starts loaded and the host had."""
    return _found(run, int(run.result.tier["total_first"].sum() - run.result.lower["total_first"].sum()))


def store_hit_rate(run: Measured) -> float:
    """Return the share of the tokens to prefill that first starts loaded and only the store below the host had."""
    return _found(run, int(run.result.lower["total_first"].sum()))


def _found(run: Measured, units: int) -> float:
    """Return the share of the tokens to prefill that some units are."""
    tokens = run.result.system.prefix_unit * units
    return ratio(tokens, int(run.result.worker["total_known_tokens"].sum()))


def loaded_tokens(run: Measured) -> float:
    """Return the tokens that were loaded."""
    return float(run.result.system.prefix_unit * run.result.tier["total_loaded"].sum())


def stored_tokens(run: Measured) -> float:
    """Return the tokens that were written."""
    return float(run.result.system.prefix_unit * run.result.tier["total_stored"].sum())


def load_wait(run: Measured) -> float:
    """Return the time for which batches waited for loads, seconds for each request that loaded."""
    return ratio(float(run.result.tier["wait_time"].sum()), int(run.result.tier["total_loads"].sum()))


def stall_time(run: Measured) -> float:
    """Return the time for which batches waited for writes from memory that they took, seconds."""
    return float(run.result.tier["stall_time"].sum())


def host_use(run: Measured) -> float:
    """Return the time average of its use; to the end of the last batch of each worker."""
    return ratio(
        float(run.result.tier["used_time"].sum()),
        float((run.result.tier["capacity"] * run.result.tier["counted_until"]).sum()),
    )


def link_use(run: Measured) -> float:
    """Return the busy share of the link to the GPU."""
    return ratio(float(run.result.tier["up_time"].sum()), run.end * len(run.result.tier))
