"""Limits of training: what its numbers may be.

Beyond these PyTorch, NumPy and Stable-Baselines3 overflow or hang, each with a message of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvgym.errors import ConfigError, shown

MAX_STEPS = 10**12 - 1
"""Most environment steps or generations: names of checkpoints have twelve digits, so that they sort by age."""

MAX_COUNT = 2**31 - 1
"""Most of anything that is counted otherwise."""

MAX_SEED = 2**32 - 1
"""Largest seed that NumPy's global generator takes, which Stable-Baselines3 sets."""

MAX_UNITS = 2**16
"""Most units of a layer."""

MAX_LAYERS = 64
"""Most layers of a network."""

MAX_REAL = 1e30
"""Largest real number: PyTorch's have 32 bits, which end at 3.4e38."""


@dataclass(frozen=True)
class Range:
    """What a hyperparameter may be.

    Attributes:
        low: smallest value.
        high: largest.
        whole: whether it is a whole number.
    """

    low: float
    high: float
    whole: bool = True

    def holds(self, value: Any) -> bool:
        """Whether this is a number in the range; truth values are none."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # Whole numbers beyond the floats of Python are compared as they are.
        fits = number and self.low <= value <= self.high
        return bool(fits and (not self.whole or value == int(value)))

    def __str__(self) -> str:
        """Return it as messages say it."""
        if self.whole:
            return f"a whole number from {self.low:,.0f} to {self.high:,.0f}"
        return f"a number from {self.low:g} to {self.high:g}"


_COUNT, _SHARE, _REAL = Range(1, MAX_COUNT), Range(0, 1, False), Range(-MAX_REAL, MAX_REAL, False)
_POSITIVE = Range(0, MAX_REAL, False)

RANGES: dict[str, Range] = {
    **dict.fromkeys(("n_steps", "buffer_size", "target_update_interval", "stats_window_size"), _COUNT),
    "train_freq": Range(1, 1_000_000),  # so many steps are taken even where the run has fewer
    "batch_size": Range(2, MAX_COUNT),
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
"""Hyperparameters of Stable-Baselines3 that are numbers."""


def check_ranges(hyperparameters: Mapping[str, Any], place: str) -> None:
    """Check the hyperparameters that are numbers; types and names are checked where the algorithm is made.

    Args:
        hyperparameters: by name.
        place: whose they are, for messages.

    Raises:
        ConfigError: one lies outside of :data:`RANGES`; the message names it and its limits.
    """
    for name, value in hyperparameters.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        allowed = RANGES.get(name, _REAL)
        if number and not allowed.holds(value):
            raise ConfigError(f"{place}: hyperparameter {name} = {shown(value)}; expected {allowed}")
