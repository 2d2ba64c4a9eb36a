"""The future-memory profile: predicted KV memory of the active set in every future iteration.

``profile[x - origin]`` is the memory that the admitted requests are predicted to use in iteration x, in allocated
tokens. Entries are absolute in x, so the profile needs no update as time passes. Admitting a request adds a ramp, or a
staircase if blocks hold several tokens; a request that ends early subtracts the rest of it. The buffer is two horizons
long and shifts once a horizon. A check and an update are one loop each over the predicted length, on a slice that is
cut at the end of the buffer.

This evaluates inequality (5) of Jaillet et al., "Online Scheduling for LLM Inference with KV Cache Constraints", at
every future iteration instead of at completion times only. The two agree: between completions the left side only
grows, in blocks as in tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit
from kvgym.simulator.blocks import allocated, whole_blocks
from kvgym.utils.resources import check_table

ORIGIN = 0
"""Where a policy with a profile keeps its origin in its state."""


def empty_profile(longest: int, kv_capacity: int, extra: int = 0) -> NDArray[np.int32]:
    """Return a profile without any use of memory, int32 (two horizons,).

    Args:
        longest: longest predicted output, tokens. A request that exceeds the capacity by prediction is never
            admitted, so the capacity bounds the horizon as well.
        kv_capacity: KV memory, tokens.
        extra: iterations that a request may run in addition to one for each output token, for prefill chunks.

    Raises:
        ConfigError: the profile would be too large.
    """
    horizon = min(longest, kv_capacity) + extra + 2
    check_table(
        2 * horizon * np.dtype(np.int32).itemsize,
        f"a look-ahead over predicted outputs of {longest:,} tokens with kv_capacity {kv_capacity:,}",
        "clip predictions or use a smaller kv_capacity",
    )
    return np.zeros(2 * horizon, np.int32)


@jit
def profile_offset(profile: Any, state: Any, iteration: int) -> int:
    """Return the index of ``iteration`` in the profile; shift the buffer when a horizon has passed.

    ``state[ORIGIN]`` is the origin.
    """
    horizon = profile.shape[0] // 2
    while iteration - state[ORIGIN] >= horizon:
        for x in range(horizon):
            profile[x] = profile[x + horizon]
            profile[x + horizon] = 0
        state[ORIGIN] += horizon
    return iteration - state[ORIGIN]


@jit
def profile_add(profile: Any, offset: int, first: int, rounds: int, sign: int, block_size: int) -> None:
    """Add (sign 1) or subtract (sign -1) a request that grows by one token in each iteration.

    Args:
        profile: the profile.
        offset: index of the request's first iteration.
        first: KV tokens (not allocated ones) in its first iteration.
        rounds: number of its iterations.
        sign: 1 or -1.
        block_size: tokens in a block.
    """
    part = profile[offset : max(offset, offset + rounds)]
    if block_size == 1:
        step, value = np.int32(sign), np.int32(sign * first)
        for x in range(part.shape[0]):
            part[x] = np.int32(part[x] + value)
            value = np.int32(value + step)
        return
    use = (first + block_size - 1) // block_size * block_size
    x, above = 0, use - first + 1
    while x < part.shape[0]:  # stair by stair
        stair = np.int32(sign * use)
        above = min(above, part.shape[0])
        for y in range(x, above):
            part[y] = np.int32(part[y] + stair)
        x, above, use = above, above + block_size, use + block_size


@jit
def blocked_for(profile: Any, offset: int, first: int, rounds: int, limit: int, block_size: int) -> int:
    """Return for how many iterations a request certainly cannot be admitted; 0 = it fits now.

    A request with a ramp that exceeds ``limit`` by e in its k-th iteration (k = 1, 2, ...) stays blocked for min(e, k)
    iterations: each iteration of waiting lowers its own use at that moment by one token, and admissions only raise
    the profile. Callers may skip checks until then, unless requests leave early.

    Blocks change only the limit. The profile consists of whole blocks, so the rest of the whole blocks of ``limit``
    does too. The allocated tokens of a request fit into this rest if and only if its tokens do. So e counts tokens,
    and no staircase is built.

    Args:
        profile: the profile.
        offset: index of the next iteration.
        first: KV tokens (not allocated ones) that the request would use in it.
        rounds: iterations that it would run.
        limit: memory that may be used at any moment, tokens.
        block_size: tokens in a block.
    """
    part, bound = profile[offset : max(offset, offset + rounds)], np.int32(0)
    excess, k = np.int32(first - whole_blocks(block_size, limit)), np.int32(1)
    for x in range(part.shape[0]):
        bound = max(bound, min(np.int32(part[x] + excess), k))
        excess = np.int32(excess + 1)
        k = np.int32(k + 1)
    return int(bound)


@jit
def profile_clear(profile: Any) -> None:
    """Set the whole profile to 0 (after all requests were evicted)."""
    for x in range(profile.shape[0]):
        profile[x] = 0


@jit
def first_tokens(problem: Any, request: Any) -> int:
    """Return the KV tokens of an active or waiting request in its next iteration if it runs in full.

    With speculation that is an upper bound, with as many drafts as there may be.
    """
    if request.num_prefill_left > 0:
        return request.num_kv_tokens + request.num_prefill_left + problem.prefill_writes + problem.lookahead
    return request.num_kv_tokens + 1 + problem.drafts + problem.lookahead


@jit
def first_use(problem: Any, request: Any) -> int:
    """Return the memory for :func:`first_tokens`, in allocated tokens."""
    return allocated(problem, first_tokens(problem, request))


@jit
def rounds_for(problem: Any, request: Any, output_len: int) -> int:
    """Return the iterations that a waiting request runs on this worker for an output length, at least 1."""
    if problem.hands_over == 1:
        return 1
    rounds = np.int64(output_len) - request.num_output_tokens
    if request.num_prefill_left > 0:
        rounds += 1 - problem.prefill_emits
    return max(rounds, 1)


@jit
def predicted_rounds(problem: Any, request: Any) -> int:
    """Return the iterations that a waiting request is predicted to run, at least 1."""
    return rounds_for(problem, request, request.predicted_len)


@jit
def profile_forget(
    profile: Any, offset: int, predicted_len: int, num_output_tokens: int, next_tokens: int, block_size: int
) -> None:
    """Subtract the rest of a request that leaves before its predicted end.

    Args:
        profile: the profile.
        offset: index of the next iteration.
        predicted_len: predicted output tokens, as at admission.
        num_output_tokens: output tokens generated so far.
        next_tokens: KV tokens (not allocated ones) that it would have used in the next iteration.
        block_size: tokens in a block.
    """
    profile_add(profile, offset, next_tokens, predicted_len - num_output_tokens, -1, block_size)


@jit
def profile_of(problem: Any, profile: Any, offset: int, slot: Any, predicted_len: int) -> None:
    """Add the memory of an active request from the next iteration until its predicted end.

    Use it to rebuild a profile: :func:`profile_clear`, then this for every active request with the prediction that it
    was admitted with.
    """
    if predicted_len > slot.num_output_tokens:
        rounds = rounds_for(problem, slot, predicted_len)
        profile_add(profile, offset, first_tokens(problem, slot), rounds, 1, problem.block_size)
