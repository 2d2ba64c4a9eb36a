"""Limits of the numbers in training configurations.

Beyond them PyTorch, NumPy and Stable-Baselines3 overflow or hang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvgym.errors import ConfigError, shown

MAX_STEPS = 10**12 - 1
"""Largest number of environment steps or generations: names of checkpoints have twelve digits to sort by age."""

MAX_COUNT = 2**31 - 1
"""Largest value of other counts."""

MAX_SEED = 2**32 - 1
"""Largest seed of NumPy's global generator, which Stable-Baselines3 sets."""

MAX_UNITS = 2**16
"""Largest number of units of a layer."""

MAX_LAYERS = 64
"""Largest number of layers."""

MAX_REAL = 1e30
"""Largest real number; PyTorch's 32-bit numbers end at 3.4e38."""


@dataclass(frozen=True)
class Range:
    """Range of a hyperparameter.

    Attributes:
        low: smallest value.
        high: largest.
        whole: whether it is a whole number.
    """

    low: float
    high: float
    whole: bool = True

    def holds(self, value: Any) -> bool:
        """Return whether a value is a number in the range; truth values are not."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # No conversion to float: whole numbers may be beyond its range.
        fits = number and self.low <= value <= self.high
        return bool(fits and (not self.whole or value == int(value)))

    def __str__(self) -> str:
        """Return the range for messages."""
        if self.whole:
            return f"a whole number from {self.low:,.0f} to {self.high:,.0f}"
        return f"a number from {self.low:g} to {self.high:g}"


_COUNT, _SHARE, _REAL = Range(1, MAX_COUNT), Range(0, 1, False), Range(-MAX_REAL, MAX_REAL, False)
_POSITIVE = Range(0, MAX_REAL, False)

RANGES: dict[str, Range] = {
    **dict.fromkeys(("n_steps", "buffer_size", "target_update_interval", "stats_window_size"), _COUNT),
    "train_freq": Range(1, 1_000_000),  # these steps are taken even if the run is shorter
    "batch_size": Range(2, 10_000_000),  # indices are drawn, even of a shorter buffer
    "n_epochs": Range(1, 10_000),
    "gradient_steps": Range(-1, 1_000_000),
    "learning_starts": Range(0, MAX_COUNT),
    "sde_sample_freq": Range(-1, MAX_COUNT),
    **dict.fromkeys(("gamma", "gae_lambda", "tau", "exploration_fraction"), _SHARE),
    **dict.fromkeys(("exploration_initial_eps", "exploration_final_eps"), _SHARE),
    **dict.fromkeys(("learning_rate", "clip_range", "clip_range_vf", "max_grad_norm", "target_kl"), _POSITIVE),
    **dict.fromkeys(("ent_coef", "vf_coef"), _REAL),
    "rms_prop_eps": _POSITIVE,
}  # fmt: skip
"""Ranges of the numeric hyperparameters of Stable-Baselines3."""


def check_ranges(hyperparameters: Mapping[str, Any], place: str) -> None:
    """Check numeric hyperparameters; types and names are checked when the algorithm is made.

    Args:
        hyperparameters: by name.
        place: where they are given, for messages.

    Raises:
        ConfigError: one is outside :data:`RANGES`.
    """
    for name, value in hyperparameters.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        allowed = RANGES.get(name, _REAL)
        if number and not allowed.holds(value):
            raise ConfigError(f"{place}: hyperparameter {name} = {shown(value)}; expected {allowed}")
