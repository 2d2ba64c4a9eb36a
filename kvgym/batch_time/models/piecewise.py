"""Batch time that is piecewise linear in one quantity of the load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.interpolation import curve, pack_curve
from kvgym.batch_time.models._checks import non_negative
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel
from kvgym.utils.arguments import explained

QUANTITIES: dict[str, tuple[float, float, float, float, float]] = {
    "requests": (1.0, 0.0, 0.0, 1.0, 0.0),
    "tokens": (0.0, 1.0, 0.0, 1.0, 0.0),
    "kv_tokens": (0.0, 1.0, 1.0, 1.0, 1.0),
    "context": (0.0, 0.0, 1.0, 0.0, 1.0),
}
"""Quantities that the time can depend on, as weights of (num_prefills, prefill_tokens, prefill_context, num_decodes,
decode_context): requests in the batch; tokens processed; KV tokens of the batch's requests at its end, as in eq. (1)
of the WAIT paper; KV tokens cached before the batch."""


@batch_time_kernel
def _piecewise(load: Any, params: Any) -> Any:
    x = (
        params[0] * load.num_prefills
        + params[1] * load.prefill_tokens
        + params[2] * load.prefill_context
        + params[3] * load.num_decodes
        + params[4] * load.decode_context
    )
    return curve(params, 6, int(params[5]), x)


class PiecewiseBatchTime(BatchTimeModel):
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

    def params(self) -> NDArray[np.float64]:
        """Return the five weights of the quantity, the number of nodes, and the packed curve."""
        nodes = pack_curve(self.breakpoints, self.times, self.slope)
        return np.concatenate([QUANTITIES[self.quantity], [len(nodes) // 2], nodes])

    def spec(self) -> dict[str, Any]:
        """Return the arguments as a dict of plain values that :func:`make_batch_time` accepts."""
        return {
            "kind": "piecewise",
            "quantity": self.quantity,
            "breakpoints": list(self.breakpoints),
            "times": list(self.times),
            "slope": self.slope,
            "source": self.source,
        }
