"""Named random streams spawned from one seed, so that changing one source of randomness never affects another."""

from __future__ import annotations

import numpy as np

from kvgym.errors import ConfigError, shown
from kvgym.utils.checks import check_seed

STREAMS = (
    "arrivals", "lengths", "predictions", "classes", "policy", "routing", "noise", "load", "prefixes", "thinking",
    "startup", "autoscaler", "failures", "patience", "again", "drafts",
)  # fmt: skip
"""The named streams. The position of a name is its spawn key: append, never reorder."""


def stream_seed(seed: int, name: str, *part: int) -> np.random.SeedSequence:
    """Return the seed sequence of stream ``name`` under ``seed``.

    Args:
        seed: non-negative integer, the seed of the whole run.
        name: one of :data:`STREAMS`.
        *part: number of an independent part of the stream; without it, the stream itself.

    Raises:
        ConfigError: an unknown stream name or an invalid seed.
    """
    if name not in STREAMS:
        raise ConfigError(f"unknown random stream {shown(name)}; valid: {', '.join(STREAMS)}")
    return np.random.SeedSequence(check_seed(seed), spawn_key=(STREAMS.index(name), *part))


def stream(seed: int, name: str, *part: int) -> np.random.Generator:
    """Return the generator of a stream or a part of it, see :func:`stream_seed`; equal arguments give equal bits."""
    return np.random.Generator(np.random.PCG64(stream_seed(seed, name, *part)))
