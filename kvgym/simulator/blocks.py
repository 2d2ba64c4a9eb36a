"""Block memory: the memory that the KV tokens of a request take.

A worker allocates its memory in blocks of PROBLEM.block_size tokens, as engines with paged memory do, and a request
takes whole blocks. Memory is therefore measured in *allocated tokens*, the tokens of all allocated blocks. A
request's allocated tokens are a multiple of the block size, and so are their sums and the capacity of a
worker. With a block size of 1, tokens and allocated tokens are the same.
"""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.simulator.tables import UNIT, UNKNOWN, WAIT
from kvgym.utils.resources import LARGEST_TABLE, check_table


@jit_inline
def written_tokens(p: Any, prefill_left: int, tokens: int) -> int:
    """Return the KV tokens a request gains; the last prefill chunk may also write output token 1."""
    if prefill_left > 0 and tokens == prefill_left:
        return tokens + p.prefill_writes
    return tokens


@jit_inline
def allocated(p: Any, tokens: int) -> int:
    """Return the memory that a request with ``tokens`` KV tokens holds: the tokens of its blocks."""
    size = p.block_size
    if size & (size - 1) == 0:  # a power of two, 1 included: no division
        return (tokens + size - 1) & -size
    return (tokens + size - 1) // size * size


@jit_inline
def whole_blocks(size: int, tokens: int) -> int:
    """Return the tokens of the whole blocks, of ``size`` tokens each, in ``tokens`` tokens."""
    if size & (size - 1) == 0:
        return tokens & -size
    return tokens // size * size


@jit_inline
def kv_growth(p: Any, row: Any, tokens: int) -> int:
    """Return the memory a slot or a waiting request gains by processing ``tokens``, in allocated tokens.

    It is 0 while the last block has room for the tokens written.
    """
    written = written_tokens(p, row.num_prefill_left, tokens)
    if p.block_size == 1:
        return written
    return allocated(p, row.num_kv_tokens + written) - allocated(p, row.num_kv_tokens)


@jit_inline
def count_memory(p: Any, w: Any, tokens: int, sign: int) -> None:
    """Add (sign 1) or subtract (sign -1) the memory of a request with ``tokens`` KV tokens."""
    held = allocated(p, tokens)
    w.kv_tokens += sign * tokens
    w.kv_allocated += sign * held
    if held == tokens:
        w.num_full += sign


@jit_inline
def full_tokens(prefill_left: int) -> int:
    """Return the tokens a request processes by default: all of its prefill, or one decode."""
    return prefill_left if prefill_left > 0 else 1


@jit_inline
def planned_tokens(d: Any, chosen: int, prefill_left: int) -> int:
    """Return the tokens that the decision gives a request with ``prefill_left`` tokens to prefill."""
    if d.act == WAIT:
        return 0
    if d.explicit == 1 and chosen != UNKNOWN:
        return chosen
    return full_tokens(prefill_left)


@jit
def with_kv(p: Any, prefill_left: int, kv: int, tokens: int) -> int:
    """Return the tokens with KV, as engines have it, of a request with ``kv`` KV tokens that processes ``tokens``.

    If the prefill writes the KV of the first output token, every request has one token less in engines.
    """
    return kv + tokens - (p.prefill_writes if prefill_left == 0 else 0)


@jit
def finished_tokens(p: Any, r: Any) -> int:
    """Return the KV tokens that a finished request had in the end."""
    return int(r.prompt_len + r.num_output_tokens - p.prefill_emits + p.prefill_writes)


@jit
def with_known(p: Any, d: Any, w: Any, slot: Any) -> int:
    """Return the tokens of a running request that the cache gets with its next tokens, as the decision knows them.

    A decision made ahead does not know the output token of the last batch: KV up to there cannot be named yet.
    """
    left, tokens = slot.num_prefill_left, planned_tokens(d, slot.planned, slot.num_prefill_left)
    if d.ahead == 1 and left == 0 and slot.last_token_time == w.last_batch_end:
        tokens = 0
    if left == 0:
        tokens = min(tokens, 1)  # drafts enter the cache when they are known to be right
    return with_kv(p, left, slot.num_kv_tokens, tokens)


def num_units(kv_capacity: int, unit: int) -> int:
    """Return the units of a worker's prefix cache, 0 without one.

    Args:
        kv_capacity: memory of the worker, tokens.
        unit: tokens of a unit; 0 = no prefix cache.

    Raises:
        ConfigError: their table would be too large.
    """
    if unit == 0:
        return 0
    check_table(
        kv_capacity // unit * UNIT.itemsize,
        f"the prefix cache of kv_capacity = {kv_capacity:,} tokens in units of {unit:,}",
        f"lower kv_capacity to {LARGEST_TABLE // UNIT.itemsize * unit:,}, or raise block_size or prefix_block",
    )
    return kv_capacity // unit
