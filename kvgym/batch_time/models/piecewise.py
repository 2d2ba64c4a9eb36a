"""Batch time that is piecewise linear in one quantity of the load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kvgym.batch_time.hardware.interpolation import Floats, curve, lay_out, pack_curve
from kvgym.batch_time.models._checks import non_negative
from kvgym.batch_time.models.plain import PlainBatchTime
from kvgym.compiling.named import named_numbers
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.simulator.batch_time import batch_time_kernel
from kvgym.utils.arguments import explained


class Quantity(NamedTuple):
    """A quantity of a load: the weights of its fields."""

    num_prefills: float = 0.0
    prefill_tokens: float = 0.0
    prefill_context: float = 0.0
    num_decodes: float = 0.0
    decode_context: float = 0.0
    draft_tokens: float = 0.0


QUANTITIES: dict[str, Quantity] = {
    "requests": Quantity(num_prefills=1.0, num_decodes=1.0),
    "tokens": Quantity(prefill_tokens=1.0, num_decodes=1.0, draft_tokens=1.0),
    "kv_tokens": Quantity(
        prefill_tokens=1.0, prefill_context=1.0, num_decodes=1.0, decode_context=1.0, draft_tokens=1.0
    ),
    "context": Quantity(prefill_context=1.0, decode_context=1.0),
}
"""Quantities that the time can depend on: requests in the batch; tokens processed; KV tokens of the batch's requests at
its end, as in eq. (1) of the WAIT paper; KV tokens cached before the batch."""


class _Parameters(NamedTuple):
    """The weights of a :class:`Quantity`, and the place of the curve of seconds over it."""

    num_prefills: float
    prefill_tokens: float
    prefill_context: float
    num_decodes: float
    decode_context: float
    draft_tokens: float
    seconds: float


_parameters = named_numbers(_Parameters)


@batch_time_kernel
def _piecewise(load: Any, params: Any) -> Any:
    p = _parameters(params)
    x = (
        p.num_prefills * load.num_prefills
        + p.prefill_tokens * load.prefill_tokens
        + p.prefill_context * load.prefill_context
        + p.num_decodes * load.num_decodes
        + p.decode_context * load.decode_context
        + p.draft_tokens * load.draft_tokens
    )
    return curve(params, p.seconds, x)


class PiecewiseBatchTime(PlainBatchTime):
    """Seconds that are linear between breakpoints of a load quantity, and constant before the first.

    Args:
        quantity: quantity that the time depends on, one of :data:`QUANTITIES`.
        breakpoints: ascending values of the quantity, at least one.
        times: seconds at the breakpoints, non-decreasing; below the first breakpoint the time is constant.
        slope: seconds per unit of the quantity beyond the last breakpoint.
        source: source of the figures.

    Raises:
        ConfigError: an unknown quantity, lists of unequal length, or times that are negative or fall.
    """

    kind = "piecewise"
    kernel = _piecewise

    @explained
    def __init__(
        self,
        quantity: str,
        breakpoints: Sequence[float],
        times: Sequence[float],
        slope: float,
        *,
        source: str = "",
    ) -> None:
        if quantity not in QUANTITIES:
            raise UnknownNameError("load quantity", quantity, QUANTITIES)
        self.quantity = quantity
        self.breakpoints = [non_negative("piecewise", "each breakpoint", b) for b in breakpoints]
        self.times = [non_negative("piecewise", "each time", t) for t in times]
        self.slope = non_negative("piecewise", "slope", slope)
        self.source = source
        if not self.breakpoints or len(self.breakpoints) != len(self.times):
            raise ConfigError(
                "batch time 'piecewise': breakpoints and times must have equal length >= 1, "
                f"got {len(self.breakpoints)} and {len(self.times)}"
            )
        if np.any(np.diff(self.breakpoints) <= 0):
            raise ConfigError(f"batch time 'piecewise': breakpoints must ascend, got {self.breakpoints}")
        if np.any(np.diff(self.times) < 0):
            raise ConfigError(f"batch time 'piecewise': times must not fall, got {self.times}")

    @classmethod
    def from_threshold(cls, c: float, a: float, b0: float, quantity: str = "tokens") -> PiecewiseBatchTime:
        """Return ``c + a * max(0, b' - b0)``, constant for small loads and linear beyond b0.

        Args:
            c: seconds up to the threshold.
            a: seconds per unit beyond it.
            b0: the threshold.
            quantity: the quantity b', by default tokens in the batch.

        Source: Section 2.3 of Ao et al. (WAIT), there after Li et al. (2025).
        """
        return cls(quantity, [b0], [c], a, source="c + a * max(0, b' - b0), Section 2.3 of Ao et al. (WAIT)")

    def params(self) -> Floats:
        """Return the weights of the quantity and the packed curve."""
        nodes = pack_curve(self.breakpoints, self.times, self.slope)
        return lay_out(_Parameters, {"seconds": nodes}, **QUANTITIES[self.quantity]._asdict())
