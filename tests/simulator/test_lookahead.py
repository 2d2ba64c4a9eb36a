"""The profile of future memory against its definition, in tokens and in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvgym.simulator.compiled import uncompiled
from kvgym.simulator.lookahead import blocked_for, profile_add, profile_forget

BLOCKS = [1, 2, 3, 4, 7, 16]
HORIZON = 40


def memory(tokens: Any, block_size: int) -> NDArray[np.int64]:
    """Tokens of the blocks that hold so many tokens."""
    return np.ceil(np.asarray(tokens) / block_size).astype(np.int64) * block_size


@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("compiled", [True, False])
def test_a_request_grows_stair_by_stair(compiled: bool, block_size: int) -> None:
    add = profile_add if compiled else uncompiled(profile_add)
    rng = np.random.default_rng(block_size)
    for _ in range(60):
        offset, first, rounds = (int(rng.integers(low, HORIZON + 5)) for low in (0, 1, 0))
        profile = rng.integers(0, 100, HORIZON).astype(np.int32)
        expected = profile.copy()
        for k in range(rounds):
            if offset + k < HORIZON:  # what lies behind the buffer is forgotten
                expected[offset + k] += memory(first + k, block_size)
        before = profile.copy()
        add(profile, offset, first, rounds, 1, block_size)
        np.testing.assert_array_equal(profile, expected)
        add(profile, offset, first, rounds, -1, block_size)
        np.testing.assert_array_equal(profile, before)


def test_a_staircase_by_hand() -> None:
    """6 KV tokens at first, blocks of 4: 6, 7, 8 | 9, 10, 11, 12 | 13."""
    profile = np.zeros(10, np.int32)
    profile_add(profile, 1, 6, 8, 1, 4)
    assert profile.tolist() == [0, 8, 8, 8, 12, 12, 12, 12, 16, 0]
    profile_forget(profile, 3, 8, 2, 8, 4)  # ends when 2 of 8 tokens are there: 6 more from 8 KV tokens on
    assert profile.tolist() == [0, 8, 8, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("compiled", [True, False])
def test_the_bound_on_waiting_is_exact(compiled: bool, block_size: int) -> None:
    """With the profile as it is, at the moments that it has been checked for: no iteration too many or too few."""
    blocked = blocked_for if compiled else uncompiled(blocked_for)
    rng = np.random.default_rng(100 + block_size)
    seen = set()
    for _ in range(400):
        rounds, first = (int(x) for x in rng.integers(1, 20, 2))
        limit = int(rng.integers(block_size, 60))
        room = int(rng.integers(1, 60)) // block_size + 1
        profile = (rng.integers(0, room, HORIZON) * block_size).astype(np.int32)
        offset = int(rng.integers(0, HORIZON - rounds))
        use = profile[offset : offset + rounds]

        def fits(wait: int, use: NDArray[np.int32] = use, first: int = first, limit: int = limit) -> bool:
            """Whether it would fit there from ``wait`` iterations on, one token less at each moment for each."""
            own = memory(first + np.arange(len(use) - wait), block_size)
            return bool((use[wait:] + own <= limit).all())

        found = blocked(profile, offset, first, rounds, limit, block_size)
        outcomes = [fits(wait) for wait in range(rounds + 1)]
        assert outcomes == [wait >= found for wait in range(rounds + 1)]
        seen.add((found > 0) + (found > 1))
    assert seen == {0, 1, 2}
