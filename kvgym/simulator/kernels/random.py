"""Random numbers for compiled policies: L'Ecuyer's MRG32k3a, in six words of the policy's state.

All of its products fit into 53 bits, so compiled and uncompiled code give equal bits without modular 64-bit
arithmetic. Source: P. L'Ecuyer, "Good parameters and implementations for combined multiple
recursive random number generators", Operations Research 47(1), 1999.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit

WORDS = 6
"""Length of the generator's state, int64 words."""

_M1, _M2 = 4294967087, 4294944443


def seed_words(seed: np.random.SeedSequence) -> NDArray[np.int64]:
    """Return a generator state from a seed sequence, int64 (6,)."""
    words = seed.generate_state(WORDS, np.uint32).astype(np.int64)
    words[:3] = words[:3] % (_M1 - 1) + 1  # all zeros are not a valid state
    words[3:] = words[3:] % (_M2 - 1) + 1
    return words


@jit
def next_uniform(state: Any, at: int) -> float:
    """Return the next number in (0, 1) of the generator at ``state[at:at+6]``."""
    p1 = (1403580 * state[at + 1] - 810728 * state[at]) % 4294967087
    state[at], state[at + 1], state[at + 2] = state[at + 1], state[at + 2], p1
    p2 = (527612 * state[at + 5] - 1370589 * state[at + 3]) % 4294944443
    state[at + 3], state[at + 4], state[at + 5] = state[at + 4], state[at + 5], p2
    difference = p1 - p2
    if difference <= 0:
        difference += 4294967087
    return difference / 4294967088.0
