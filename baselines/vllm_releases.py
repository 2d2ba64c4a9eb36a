"""Releases of vLLM's V1 engine that :mod:`~kvgym.baselines.vllm_v1` follows: settings, their defaults and checks."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvgym.errors import ConfigError
from kvgym.policies.hyperparameters import (
    AUTO,
    require,
)
from kvgym.simulator.batch_time import Device

RELEASES = ("0.24", "0.33")
"""Releases of the engine that this policy follows, see docs/conformance.md."""

USUAL = (2048, 256)
"""The engine's token budget and maximum number of running requests on a small or unknown GPU, and on an A100."""

_GIB = 2**30

VICTIMS = ("latest", "least_computed", "cheapest")
"""Rules for the request to be preempted: the engine's, or the one with the fewest tokens to compute again."""


class Settings(NamedTuple):
    """Parameters of ``vllm_v1``."""

    max_tokens: int  # tokens per iteration
    max_seqs: int  # running requests
    threshold: int  # maximum tokens of one prompt in an iteration; 0 = no limit
    by_priority: bool  # whether the order is by priority
    chunked: bool  # whether a prompt may start with a part
    whole_input: bool  # whether all tokens of a request must fit into memory when it starts
    watermark: int  # memory that stays free when a request starts next to others, tokens
    newer: bool  # whether the release is the newer one
    adaptive: bool  # whether the threshold grows when few requests are there
    interval: int  # iterations from one that processes prompts to the next
    ahead: bool  # whether a batch is decided when the one before it starts
    api_time: float  # seconds from an arrival until the engine has the request
    victim: int  # which request is preempted, an index of VICTIMS


def engine_defaults(device: Device | None, release: str = RELEASES[-1]) -> tuple[int, int]:
    """Return the token budget and the maximum number of running requests that the engine chooses as an API server.

    Source: ``vllm/engine/arg_utils.py``, ``EngineArgs.get_batch_defaults``: by device memory, with an exception for the
    A100, on which larger batches were measured to be slower. Memory of an unknown device counts as 0.

    Args:
        device: the GPU; None = unknown.
        release: one of :data:`RELEASES`; 0.24 has no larger defaults from 160 GiB on.
    """
    if device is not None and device.memory >= 160 * _GIB and release != "0.24":
        return 16384, 1024
    if device is not None and device.memory >= 70 * _GIB and "a100" not in device.name.lower():
        return 8192, 1024
    return USUAL


def check_budget(budget: int | str, seqs: int | str) -> None:
    """Raise an error if the budget is below the maximum number of running requests, as the engine does."""
    if isinstance(budget, int) and isinstance(seqs, int) and budget < seqs:
        raise ConfigError(
            f"max_num_batched_tokens = {budget} is below max_num_seqs = {seqs}; expected a token for every running "
            "request at least"
        )


def check_active(active: int | None, seqs: int | str) -> None:
    """Raise an error if more running requests are allowed than ``max_num_seqs``, as the engine does."""
    if active is not None and isinstance(seqs, int) and active > seqs:
        raise ConfigError(
            f"max_num_active_seqs = {active} is above max_num_seqs = {seqs}; expected at most that"
        )


def release_of(name: str, value: Any) -> str:
    """Return the release that a hyperparameter names as text; a command line passes it as a number."""
    text = str(value)
    require(name, value, text in (AUTO, *RELEASES), f"{', '.join(RELEASES)}, or {AUTO}")
    return text
