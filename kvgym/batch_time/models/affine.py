"""Batch time that is affine in the tokens processed and in the KV-cache tokens read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.models._checks import non_negative
from kvgym.batch_time.models.plain import PlainBatchTime
from kvgym.compiling.named import named_numbers
from kvgym.simulator.batch_time import batch_time_kernel
from kvgym.utils.arguments import explained


class AffineParameters(NamedTuple):
    """Seconds: see :class:`AffineBatchTime`; ``new`` is 1 if the batch's own tokens count as context, else 0."""

    constant: float
    per_prefill_token: float
    per_decode_token: float
    per_context_token: float
    new: float


_affine_parameters = named_numbers(AffineParameters)


@batch_time_kernel
def _affine(load: Any, params: Any) -> Any:
    p = _affine_parameters(params)
    context, decoded = load.prefill_context + load.decode_context, load.num_decodes + load.draft_tokens
    return (
        p.constant
        + p.per_prefill_token * load.prefill_tokens
        + p.per_decode_token * decoded
        + p.per_context_token * (context + p.new * load.prefill_tokens + p.new * decoded)
    )


class AffineBatchTime(PlainBatchTime):
    """``constant + a * prefill tokens + b * decode tokens + c * KV context tokens read``.

    The context is what attention reads from the cache: the tokens cached before the batch, of prefills and decodes
    (``prefill_context + decode_context``), **and**, with ``include_new``, the batch's own tokens, which each step
    writes and then attends to. With ``include_new=False`` only tokens cached before the batch count.

    Args:
        constant: seconds per batch, including empty ones.
        per_prefill_token: seconds per prompt token processed.
        per_decode_token: seconds per decode, and per draft that one verifies.
        per_context_token: seconds per KV token read.
        include_new: whether the batch's own tokens count as context as well.
        source: source of the coefficients.

    Raises:
        ConfigError: a coefficient is negative or not finite.
    """

    kind = "affine"
    kernel = _affine

    @explained
    def __init__(
        self,
        constant: float,
        per_prefill_token: float = 0.0,
        per_decode_token: float = 0.0,
        per_context_token: float = 0.0,
        *,
        include_new: bool = True,
        source: str = "",
    ) -> None:
        self.constant = non_negative("affine", "constant", constant)
        self.per_prefill_token = non_negative("affine", "per_prefill_token", per_prefill_token)
        self.per_decode_token = non_negative("affine", "per_decode_token", per_decode_token)
        self.per_context_token = non_negative("affine", "per_context_token", per_context_token)
        self.include_new = bool(include_new)
        self.source = source

    @classmethod
    def from_wait(cls, d0: float, d1: float) -> AffineBatchTime:
        """Return ``tau = d0 + d1 * (total KV in batch)``, eq. (1) of the WAIT paper.

        The paper's sum counts the prompt length l for a request in its prefill and l + s for a decode at
        stage s, the stage being numbered by the output token that the iteration produces. A decode that
        finds c tokens in the cache therefore counts c + 1, and a prefill chunk of c tokens after k cached
        ones counts k + c: the KV of the batch's requests when the iteration **ends**, new tokens included.
        Requests that hold KV but are not in the batch (paused) do not count.

        Args:
            d0: fixed seconds per batch.
            d1: seconds per KV token of the batch.

        Source: Ao et al., "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory
        Constraints", eq. (1).
        """
        return cls(d0, per_context_token=d1, source="eq. (1) of Ao et al., Optimizing LLM Inference (WAIT)")

    def params(self) -> NDArray[np.float64]:
        """Return :class:`AffineParameters`."""
        return np.array(
            AffineParameters(
                self.constant,
                self.per_prefill_token,
                self.per_decode_token,
                self.per_context_token,
                new=float(self.include_new),
            )
        )
