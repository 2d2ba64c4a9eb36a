"""Compiled building blocks that several schedulers share: memory needs and overflow rules.

They hold for policies that run every active request in full at every iteration.
"""

from __future__ import annotations

from typing import Any

from kvgym.simulator.compiled import jit


@jit
def slot_need(problem: Any, slot: Any) -> int:
    """Return the KV tokens an active request needs in the coming iteration if it runs in full."""
    if slot.num_prefill_left > 0:
        return slot.num_kv_tokens + slot.num_prefill_left + problem.prefill_emits
    return slot.num_kv_tokens + 1


@jit
def need_of_ongoing(problem: Any, w: Any, active: Any) -> int:
    """Return the KV tokens the active set needs in the coming iteration if everybody runs in full."""
    if w.num_prefilling == 0:
        return w.kv_tokens + w.num_active
    need = 0
    for k in range(w.num_active):
        need += slot_need(problem, active[k])
    return need


@jit
def clear_all(w: Any, d: Any, evict: Any) -> None:
    """Evict every active request and admit nobody: the round is lost."""
    d.num_admit = 0
    d.num_evict = w.num_active
    for k in range(w.num_active):
        evict[k] = k


@jit
def evict_last(problem: Any, w: Any, active: Any, d: Any, evict: Any, need: int) -> None:
    """Evict the latest activated requests until the coming iteration of the others fits (LIFO).

    ``need`` is what the whole active set needs.
    """
    k = w.num_active - 1
    while need > problem.kv_capacity and k >= 0:
        need -= slot_need(problem, active[k])
        evict[d.num_evict] = k
        d.num_evict += 1
        k -= 1
