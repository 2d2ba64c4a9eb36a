"""``clairvoyant``: a reference that knows output lengths; not a deployable scheduler.

It knows the true lengths of requests that have arrived, but nothing about later ones. It has two rules, for two kinds
of batch time:

- If larger batches take longer, it uses the ranking of :mod:`kvgym.baselines.ranked` with the true remaining work and
  memory, and the same batches (the prefix with the best worth), chunks, pauses and evictions.
- If all batches take equally long, as in slotted time, leaving a request out of a batch gains nothing, and only
  memory is scarce. Requests enter in ascending order of memory × time, Σ (s + j) over their iterations, while the
  look-ahead of MC-SF allows it (Jaillet et al., inequality (5)). The look-ahead is exact here, so memory never
  overflows. A request that does not fit holds up the others; ``passed`` lets some pass it, which raises throughput
  but also the mean latency.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines.ranked.layout import CERTAIN
from kvgym.baselines.ranked.scheduler import Ranked, rank_all
from kvgym.compiling.named import row_of
from kvgym.errors import ConfigError, shown
from kvgym.kernels import (
    WAITING,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    blocked_for,
    empty_profile,
    first_tokens,
    forget_ranked,
    has_place,
    jit_inline,
    named_numbers,
    policy_kernel,
    policy_memory,
    profile_add,
    profile_clear,
    profile_of,
    profile_offset,
    ranked_pop,
    ranked_push,
    rounds_for,
)
from kvgym.policies.hyperparameters import (
    choice,
    hyperparameter,
    whole,
)
from kvgym.policies.policy import CompiledPolicy, PolicyInfo, SystemInfo, make_policy, register_policy

RULES = ("auto", "ranked", "look_ahead")

# Values of state[CERTAIN]: the ranking knows lengths, or the look-ahead is in force.
RANKING, LOOKING_AHEAD = 1, 2

# State of the look-ahead: the origin of the profile, then, after CERTAIN, the heap of waiting requests and those set
# aside.
HEAP = CERTAIN + 1


class Passing(NamedTuple):
    """Parameters of the look-ahead."""

    passed: int  # how many requests may be passed
    limit: int  # its memory limit, tokens


passing = named_numbers(Passing)


@jit_inline
def least_volume_first(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Admit in ascending order of memory × time while memory suffices at every future moment."""
    state, profile, ranks, w = memory.state, memory.profile, memory.reals, view.worker
    block_size, p = view.problem.block_size, passing(memory.params)
    forget_ranked(view, state, HEAP, ranks, 0)
    for j in range(w.num_queued):
        i = view.queued[j]
        r = view.requests[i]
        first, rounds = first_tokens(view.problem, r), rounds_for(view.problem, r, r.output_len)
        ranks[i] = rounds * (first + 0.5 * (rounds - 1))
        ranked_push(state, HEAP, ranks, 0, i)
    offset = profile_offset(profile, state, w.iteration)
    if w.num_left > 0:
        profile_clear(profile)
        for k in range(w.num_active):
            slot = view.active[k]
            profile_of(view.problem, profile, offset, slot, view.requests[slot.request_id].output_len)
    aside = HEAP + 1 + view.requests.shape[0]
    passed = 0
    while state[HEAP] > 0 and passed <= p.passed and has_place(view, decision):
        i = ranked_pop(state, HEAP, ranks, 0)
        r = view.requests[i]
        if r.status != WAITING:
            continue
        first, rounds = first_tokens(view.problem, r), rounds_for(view.problem, r, r.output_len)
        if blocked_for(profile, offset, first, rounds, p.limit, block_size) > 0:
            state[aside + passed] = i
            passed += 1
        else:
            profile_add(profile, offset, first, rounds, 1, block_size)
            admit(decision, i)
    for j in range(passed):
        ranked_push(state, HEAP, ranks, 0, state[aside + j])


@policy_kernel
def clairvoyant_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Admit by the look-ahead if that is the rule; else rank, and run the best prefix."""
    if memory.state[CERTAIN] == LOOKING_AHEAD:
        least_volume_first(view, decision, memory)
    else:
        rank_all(view, decision, memory)


def equally_long(system: SystemInfo) -> bool:
    """Return whether all batches take equally long."""
    rough = system.batch_time.rough_figures(system.kv_capacity)
    return max(rough.decode, rough.context, rough.prefill) <= 0.0


@register_policy
class Clairvoyant(CompiledPolicy):
    """A scheduler that knows true lengths: a reference for the value of knowing them, not deployable."""

    info = PolicyInfo(
        name="clairvoyant",
        summary="reference that knows true lengths: least work and memory × time left first, chunks, pauses",
        paper="kvgym, a reference for bounds",
        algorithm="docs/bounds.md",
        needs=frozenset({"true_length"}),
        chunks_prefill=True,
        pauses=True,
        evicts=True,
    )
    kernel = clairvoyant_kernel

    rule: str = choice("auto", RULES, expected=f"one of {', '.join(RULES)}", search=("ranked", "look_ahead"))
    """``"ranked"``, ``"look_ahead"``, or ``"auto"``: look-ahead if all batches take equally long, else ranked."""
    passed: int = whole(0, least=0, expected="a whole number >= 0", search=(0, 1, 8))
    """number of requests that do not fit and may be passed per decision, under ``"look_ahead"``."""
    ranking: str = hyperparameter(
        "ranked", search=("ranked", "ranked_latency", "ranked_chat", "ranked_documents", "ranked_slo")
    )
    """policy with the weights of the ranking: ``"ranked"``, or an agent with other weights of it, such as
    ``"ranked_chat"``. No weights are best everywhere: the value of knowing lengths is the value under the
    best of several."""

    def __post_init__(self) -> None:
        """Find the weights: ConfigError if ``ranking`` is no such policy."""
        made = make_policy(self.ranking)
        if not isinstance(made, Ranked):
            raise ConfigError(
                f"ranking = {shown(self.ranking)}; expected ranked, or an agent with weights of it"
            )
        self._ranking = made

    def _looks_ahead(self, system: SystemInfo) -> bool:
        return self.rule == "look_ahead" or (self.rule == "auto" and equally_long(system))

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the weights of the ranking, or the look-ahead's number of passed requests and memory limit."""
        if self._looks_ahead(system):
            return row_of(Passing, self, {"limit": system.kv_capacity})
        return self._ranking.params(system)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the memory of the ranking, or the profile of the look-ahead and its heap."""
        if not self._looks_ahead(system):
            ranking = self._ranking.memory(system)
            ranking.state[CERTAIN] = RANKING
            return ranking
        aside = 1 + min(self.passed, system.max_requests)
        state = np.zeros(HEAP + 1 + system.max_requests + aside, np.int64)
        state[CERTAIN] = LOOKING_AHEAD
        profile = empty_profile(system.max_predicted_len, system.kv_capacity)
        ranks: Any = np.zeros(max(1, system.max_requests))
        return policy_memory(self.params(system), state=state, reals=ranks, profile=profile)
