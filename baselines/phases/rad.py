"""RAD, the resource-aware dynamic scheduler, and its variant: throughput-optimal, with separate prefills and decodes.

Source: A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and
Practice", Algorithm 1 (RAD) and Appendix D, Algorithm 2.

Readings and deviations:

- The printed chunk min{t_lcm, L - i}, with i the next token counted from 1, never reaches the last token of a prompt.
  Here it is min{t_lcm, L - i + 1}.
- A cycle ends when D is empty. As printed, only a decode iteration can end it. The two differ only if a request
  finishes with its prefill (a first token that counts, and an output of one token).
- requests_in_cycle counts moves from P to D, as the algorithm does (the text counts first iterations). A request that
  is evicted and prefilled again counts again.
- Memory is limited; see :mod:`kvgym.baselines.phases.steps`. A prefill that does not fit waits while D
  decodes.
"""

from __future__ import annotations

from typing import NamedTuple

from kvgym.baselines.phases.steps import decode_first, go_on_with_prefill, take_next
from kvgym.kernels import (
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    named_numbers,
    policy_kernel,
    policy_memory,
)
from kvgym.policies.hyperparameters import (
    whole,
)
from kvgym.policies.policy import CompiledPolicy, PolicyInfo, SystemInfo, register_policy

PAPER = "Bari, Hegde, de Veciana, Optimal Scheduling Algorithms for LLM Inference: Theory and Practice"


class Tiles(NamedTuple):
    """Parameters of both policies, their hyperparameters."""

    cycle: int
    decodes: int
    chunk: int


tiles = named_numbers(Tiles)

# Layout of the state array: requests_in_cycle; for Algorithm 2, whether it is in decode mode.
_IN_CYCLE, _DECODE_MODE = 0, 1


@policy_kernel
def rad_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Algorithm 1: prefill one by one while fewer than t_col requests decode; else decode."""
    w, p, state = view.worker, tiles(memory.params), memory.state
    if w.num_active == w.num_prefilling:
        state[_IN_CYCLE] = 0
    if w.num_prefilling > 0:
        state[_IN_CYCLE] += go_on_with_prefill(view, decision, p.chunk)
        return
    places = min(p.decodes - w.num_active, p.cycle - state[_IN_CYCLE])
    state[_IN_CYCLE] += take_next(view, decision, p.chunk, places, p.decodes)
    if decision.record.explicit == 0:
        decode_first(view, decision, p.decodes)


@policy_kernel
def rad_batched_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Algorithm 2: prefill up to n requests, then decode them t_col at a time until all have finished.

    D_active is the first t_col requests in order of activation. Decode mode activates none, so the next request in
    that order replaces one that has finished.
    """
    w, p, state = view.worker, tiles(memory.params), memory.state
    if w.num_active == w.num_prefilling:
        state[_IN_CYCLE] = state[_DECODE_MODE] = 0
    if w.num_prefilling > 0:
        state[_IN_CYCLE] += go_on_with_prefill(view, decision, p.chunk)
        return
    if state[_DECODE_MODE] == 0:
        state[_IN_CYCLE] += take_next(view, decision, p.chunk, p.cycle - state[_IN_CYCLE], p.decodes)
        if decision.record.explicit == 1:
            return
        state[_DECODE_MODE] = 1
    decode_first(view, decision, p.decodes)


class _Cycles(CompiledPolicy):
    """Base class of both policies: hyperparameters and the state of a cycle."""

    parameters = Tiles

    # Running prefills and decodes differ by hardware; the paper uses 64 or 128 decodes, and "large" cycles.
    cycle: int = whole(1000, search=(50, 200, 1000))
    """maximum number of prefills in a cycle, n ≥ 1. The paper requires a large number but gives none."""
    decodes: int = whole(128, search=(16, 32, 64, 128, 256))
    """maximum number of requests in a decode iteration, t_col ≥ 1. "Typically as small as 64 or 128"."""
    chunk: int = whole(256, search=(256, 512, 1024, 2048))
    """maximum number of tokens in a prefill iteration, t_lcm ≥ 1: the least common multiple of t_row, t_col and t_red.
    The paper gives no value; the default is typical for such tiles."""

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the state at the start of a cycle."""
        return policy_memory(self.params(system), state=(0, 0))


@register_policy
class RAD(_Cycles):
    """Resource-aware dynamic: run prefills alone until t_col requests decode, then decode."""

    info = PolicyInfo(
        name="rad",
        summary="prefills alone, in chunks, until t_col requests decode; refills as they finish",
        paper=PAPER,
        algorithm="Algorithm 1",
        chunks_prefill=True,
        pauses=True,
        evicts=True,
        loads=True,
    )
    kernel = rad_kernel


@register_policy
class RADBatched(_Cycles):
    """Variant of RAD: prefill up to n requests, then decode them all, t_col at a time."""

    info = PolicyInfo(
        name="rad_batched",
        summary="prefills up to n requests alone, in chunks, then decodes them t_col at a time",
        paper=PAPER,
        algorithm="Algorithm 2",
        chunks_prefill=True,
        pauses=True,
        evicts=True,
        loads=True,
    )
    kernel = rad_batched_kernel
