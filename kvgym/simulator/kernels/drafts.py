"""Building blocks for speculation: the tokens of a decode, its own and drafts, and the memory for them."""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit_inline
from kvgym.simulator.blocks import allocated, full_tokens, written_tokens
from kvgym.simulator.policy_interface import PolicyView


@jit_inline
def decode_tokens(view: PolicyView, k: int) -> int:
    """Return the tokens that slot ``k`` processes if it runs in full: its prefill, or one token and its drafts."""
    left = view.active[k].num_prefill_left
    if left == 0 and view.problem.drafts > 0:
        return int(1 + view.drafts[k].proposed)
    return full_tokens(left)


@jit_inline
def held_by_slot(view: PolicyView, k: int) -> int:
    """Return the memory that slot ``k`` holds, that of rejected drafts included, in allocated tokens."""
    if view.problem.drafts > 0:
        return allocated(view.problem, view.drafts[k].kv_top)
    return allocated(view.problem, view.active[k].num_kv_tokens)


@jit_inline
def need_with_tokens(view: PolicyView, k: int, tokens: int) -> int:
    """Return the memory that slot ``k`` needs in the next iteration if it processes ``tokens``, allocated tokens."""
    slot, p = view.active[k], view.problem
    top: Any = slot.num_kv_tokens + written_tokens(p, slot.num_prefill_left, tokens)
    if p.drafts > 0:
        top = max(int(view.drafts[k].kv_top), int(top + (p.lookahead if tokens > 0 else 0)))
    return allocated(p, top)


@jit_inline
def need_of_slot(view: PolicyView, k: int) -> int:
    """Return the memory that slot ``k`` needs in the next iteration if it runs in full, allocated tokens."""
    return need_with_tokens(view, k, decode_tokens(view, k))


@jit_inline
def growth_of_slot(view: PolicyView, k: int, tokens: int) -> int:
    """Return the memory that slot ``k`` gains by processing ``tokens``, in allocated tokens."""
    return need_with_tokens(view, k, tokens) - held_by_slot(view, k)
