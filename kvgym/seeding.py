"""One seed, spawned into named streams, so that changing one source of randomness never moves another."""

from __future__ import annotations

import numpy as np

STREAMS = ("arrivals", "lengths", "predictions", "classes", "policy", "routing", "noise", "load")
"""The named streams. The position of a name is its spawn key: append, never reorder."""


def stream_seed(seed: int, name: str) -> np.random.SeedSequence:
    """Return the seed sequence of stream ``name`` under ``seed``.

    Args:
        seed: non-negative integer, the seed of the whole run.
        name: one of :data:`STREAMS`.

    Raises:
        ValueError: unknown stream name or negative seed.
    """
    if name not in STREAMS:
        raise ValueError(f"unknown random stream {name!r}; valid: {', '.join(STREAMS)}")
    return np.random.SeedSequence(seed, spawn_key=(STREAMS.index(name),))


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of stream ``name`` under ``seed``; equal arguments give equal bits."""
    return np.random.Generator(np.random.PCG64(stream_seed(seed, name)))
