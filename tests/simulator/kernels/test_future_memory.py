"""The profile of future memory against its definition, in tokens and in blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvgym.compiling.kernel import uncompiled
from kvgym.errors import ConfigError
from kvgym.simulator.kernels.future_memory import (
    blocked_for,
    empty_profile,
    first_tokens,
    first_use,
    predicted_rounds,
    profile_add,
    profile_clear,
    profile_forget,
    profile_of,
    profile_offset,
    rounds_for,
)

BLOCKS = [1, 2, 3, 4, 7, 16]
HORIZON = 40


def memory(tokens: Any, block_size: int) -> NDArray[np.int64]:
    """Return the allocated tokens of a number of tokens."""
    return np.ceil(np.asarray(tokens) / block_size).astype(np.int64) * block_size


@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("compiled", [True, False])
def test_a_request_adds_a_staircase(compiled: bool, block_size: int) -> None:
    add = profile_add if compiled else uncompiled(profile_add)
    rng = np.random.default_rng(block_size)
    for _ in range(60):
        offset, first, rounds = (int(rng.integers(low, HORIZON + 5)) for low in (0, 1, 0))
        profile = rng.integers(0, 100, HORIZON).astype(np.int32)
        expected = profile.copy()
        for k in range(rounds):
            if offset + k < HORIZON:  # beyond the buffer nothing is stored
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
    """For a fixed profile, at the iterations that were checked, the bound is neither too large nor too small."""
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
            """Return whether it would fit after ``wait`` iterations, with one token less at each moment for each."""
            own = memory(first + np.arange(len(use) - wait), block_size)
            return bool((use[wait:] + own <= limit).all())

        found = blocked(profile, offset, first, rounds, limit, block_size)
        assert found >= 0
        outcomes = [fits(wait) for wait in range(rounds + 1)]
        assert outcomes == [wait >= found for wait in range(rounds + 1)]
        seen.add((found > 0) + (found > 1))
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("compiled", [True, False])
def test_the_buffer_moves_with_time_by_hand(compiled: bool) -> None:
    """Eight entries, thus a horizon of 4 iterations; the first entry is iteration 10."""
    offset_of = profile_offset if compiled else uncompiled(profile_offset)
    profile, state = np.arange(1, 9, dtype=np.int32), np.array([10, 99])
    assert [offset_of(profile, state, x) for x in (10, 11, 13)] == [0, 1, 3]
    assert (profile.tolist(), state.tolist()) == ([1, 2, 3, 4, 5, 6, 7, 8], [10, 99])
    assert offset_of(profile, state, 14) == 0  # a horizon has passed
    assert (profile.tolist(), state.tolist()) == ([5, 6, 7, 8, 0, 0, 0, 0], [14, 99])
    assert offset_of(profile, state, 23) == 1  # two more have passed
    assert (profile.tolist(), state.tolist()) == ([0] * 8, [22, 99])


@pytest.mark.parametrize("compiled", [True, False])
def test_entries_belong_to_their_iteration_wherever_the_buffer_is(compiled: bool) -> None:
    offset_of = profile_offset if compiled else uncompiled(profile_offset)
    rng, profile, state = np.random.default_rng(0), np.zeros(14, np.int32), np.zeros(1, np.int64)
    expected, iteration = dict[int, int](), 0
    for _ in range(200):
        iteration += int(rng.integers(0, 10))
        offset = offset_of(profile, state, iteration)
        assert 0 <= offset < 7
        assert profile[offset:].tolist() == [expected.get(iteration + k, 0) for k in range(14 - offset)]
        place = offset + int(rng.integers(0, 7))
        profile[place] += 1
        expected[iteration + place - offset] = int(profile[place])


@pytest.mark.parametrize("compiled", [True, False])
def test_a_profile_is_cleared(compiled: bool) -> None:
    profile = np.array([3, 0, 2, 7], np.int32)
    (profile_clear if compiled else uncompiled(profile_clear))(profile)
    assert profile.tolist() == [0, 0, 0, 0]


def problem(**fields: int) -> Any:
    emits = fields.get("prefill_emits", 1)
    usual = {
        "prefill_emits": emits,
        "prefill_writes": emits,
        "hands_over": 0,
        "block_size": 1,
        "drafts": 0,
        "lookahead": 0,
    }
    return SimpleNamespace(**{**usual, **fields})


def request(kv: int = 0, left: int = 0, made: int = 0, predicted: int = 1) -> Any:
    return SimpleNamespace(
        num_kv_tokens=kv, num_prefill_left=left, num_output_tokens=made, predicted_len=predicted
    )


@pytest.mark.parametrize(
    ("kv", "left", "emits", "tokens"),
    [(2, 3, 1, 6), (2, 3, 0, 5), (2, 1, 1, 4), (2, 1, 0, 3), (7, 0, 1, 8), (7, 0, 0, 8)],
)
def test_tokens_of_the_next_iteration(kv: int, left: int, emits: int, tokens: int) -> None:
    """The rest of the prompt, and an output token if the prefill emits one; or a decode."""
    settings = problem(prefill_emits=emits, block_size=4)
    assert uncompiled(first_tokens)(settings, request(kv, left)) == tokens
    assert uncompiled(first_use)(settings, request(kv, left)) == memory(tokens, 4)


@pytest.mark.parametrize(
    ("left", "made", "output", "emits", "rounds"),
    [
        (3, 0, 5, 1, 5),  # the prefill emits the first of 5 tokens
        (3, 0, 5, 0, 6),  # 5 decodes follow it
        (1, 0, 5, 0, 6),
        (3, 2, 5, 1, 3),  # 2 tokens were kept over an eviction
        (3, 2, 5, 0, 4),
        (0, 2, 5, 1, 3),  # its KV as well
        (0, 2, 5, 0, 3),
        (0, 5, 5, 1, 1),  # longer than predicted
        (3, 7, 5, 0, 1),
    ],
)
def test_rounds_by_hand(left: int, made: int, output: int, emits: int, rounds: int) -> None:
    waiting = request(kv=4, left=left, made=made, predicted=output)
    settings = problem(prefill_emits=emits)
    assert uncompiled(rounds_for)(settings, waiting, output) == rounds
    assert uncompiled(predicted_rounds)(settings, waiting) == rounds
    handed_over = problem(prefill_emits=emits, hands_over=1)  # decodes run on another worker
    assert uncompiled(rounds_for)(handed_over, waiting, output) == 1


@pytest.mark.parametrize(
    ("slot", "predicted", "settings", "expected"),
    [
        (request(kv=5, made=2), 4, problem(), [0, 6, 7, 0, 0]),
        (request(kv=5, made=2), 5, problem(block_size=4), [0, 8, 8, 8, 0]),
        (request(kv=5, made=2), 3, problem(), [0, 6, 0, 0, 0]),
        (request(kv=5, made=2), 2, problem(), [0] * 5),  # it may end at any moment: no prediction is left
        (request(kv=5, made=2), 1, problem(), [0] * 5),
        (request(kv=2, left=3), 2, problem(), [0, 6, 7, 0, 0]),
        (request(kv=2, left=3), 2, problem(prefill_emits=0), [0, 5, 6, 7, 0]),
        (request(kv=2, left=3), 2, problem(prefill_writes=0), [0, 5, 6, 0, 0]),
    ],
)
def test_an_active_request_is_added_until_its_predicted_end(
    slot: Any, predicted: int, settings: Any, expected: list[int]
) -> None:
    profile = np.zeros(5, np.int32)
    uncompiled(profile_of)(settings, profile, 1, slot, predicted)
    assert profile.tolist() == expected


@pytest.mark.parametrize(
    ("longest", "kv_capacity", "extra", "length"),
    [(7, 24, 0, 18), (7, 24, 3, 24), (100, 24, 0, 52), (0, 9, 0, 4)],
)
def test_an_empty_profile_is_two_horizons_long(
    longest: int, kv_capacity: int, extra: int, length: int
) -> None:
    profile = empty_profile(longest, kv_capacity, extra)
    assert profile.dtype == np.int32
    assert profile.tolist() == [0] * length


def test_a_profile_of_more_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvgym.utils.resources.LARGEST_TABLE", 2 * (10 + 2) * 4)
    assert len(empty_profile(10, 99)) == 24
    for longest, kv_capacity in ((11, 99), (99, 11)):
        with pytest.raises(
            ConfigError, match=f"outputs of {longest} tokens with kv_capacity {kv_capacity} takes"
        ):
            empty_profile(longest, kv_capacity)
