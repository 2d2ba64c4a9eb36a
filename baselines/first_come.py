"""First come, first served without length predictions: greedy admission, with three ways to handle overflow.

Sources: P. Jaillet et al., "Online Scheduling for LLM Inference with KV Cache Constraints", Section 5.2
(α-protection greedy; α-protection β-clearing). FCFS with LIFO eviction is vLLM's (Kwon et al.,
"Efficient Memory Management for Large Language Model Serving with PagedAttention"); its blocks are the
system's ``block_size``.

Readings: a prompt is admitted while the memory that the next iteration needs, including requests admitted just
before, stays within the threshold. Admission stops at the first request that does not fit. (1 - α)M is compared
exactly. Deviation: an empty worker admits its first prompt regardless of the threshold, since a longer one would wait
for ever. With ``strict`` the threshold applies there too, as printed in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvgym.baselines.margins import Protected
from kvgym.kernels import (
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit_while_fits,
    clear_all,
    evict,
    evict_latest,
    kept_by_others,
    named_numbers,
    need_of_active,
    need_of_slot,
    next_uniform,
    pause_all,
    policy_kernel,
    policy_memory,
    seed_words,
)
from kvgym.policies.hyperparameters import (
    flag,
    fraction_of,
    hyperparameter,
)
from kvgym.policies.policy import CompiledPolicy, PolicyInfo, SystemInfo, head_of_queue, register_policy

PAPER = "Jaillet et al., Online Scheduling for LLM Inference with KV Cache Constraints"


class Limit(NamedTuple):
    """Parameters of ``fcfs``."""

    limit: int  # memory that admission may fill, tokens


class Protection(NamedTuple):
    """Parameters of the α-protection policies."""

    limit: int  # memory that admission may fill, tokens
    strict: bool  # whether this also holds for an empty worker
    beta: float  # probability that overflow evicts a request; of α-protection β-clearing


limit_of, protection_of = named_numbers(Limit), named_numbers(Protection)


@policy_kernel
def fcfs_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Evict the newest requests until the next iteration fits; admit only if none was evicted."""
    need = need_of_active(view)
    if need > view.problem.kv_capacity:
        evict_latest(view, decision, need)
    else:
        admit_while_fits(view, decision, need, limit_of(memory.params).limit)


@policy_kernel
def alpha_greedy_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """α-protection greedy: on overflow, evict all active requests."""
    need, p = need_of_active(view), protection_of(memory.params)
    if need > view.problem.kv_capacity:
        clear_all(view, decision)
    else:
        admit_while_fits(view, decision, need, p.limit, strict=p.strict)


@policy_kernel
def alpha_beta_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """α-protection β-clearing: on overflow toss a coin for each active request, in order of activation.

    If the survivors still do not fit, all of them pause for this iteration, and the next iteration tosses
    again.
    """
    need, p = need_of_active(view), protection_of(memory.params)
    if need <= view.problem.kv_capacity:
        admit_while_fits(view, decision, need, p.limit, strict=p.strict)
        return
    for k in range(view.worker.num_active):
        if next_uniform(memory.state, 0) < p.beta:
            evict(decision, k)
            need -= need_of_slot(view, k) - kept_by_others(view, view.active[k])
    if need > view.problem.kv_capacity:
        pause_all(view, decision)


@register_policy
class FCFS(Protected):
    """First come, first served; on overflow the latest activated requests return to the queue."""

    info = PolicyInfo(
        name="fcfs",
        summary="first come, first served, greedy; evicts the newest on overflow (LIFO)",
        paper="Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention",
        algorithm="Section 4.5",
        evicts=True,
        drafts=True,
        loads=True,
    )
    kernel = fcfs_kernel
    blocking = head_of_queue

    parameters = Limit


@register_policy
class AlphaGreedy(CompiledPolicy):
    """α-protection greedy: first come, first served below (1 - α)M; overflow evicts all active requests."""

    info = PolicyInfo(
        name="alpha_greedy",
        summary="first come, first served below (1-alpha) of memory; evicts all requests on overflow",
        paper=PAPER,
        algorithm="Section 5.2, α-protection greedy",
        evicts=True,
        drafts=True,
        loads=True,
    )
    kernel = alpha_greedy_kernel
    blocking = head_of_queue

    parameters = Protection

    # Below about 0.2 it livelocks on many workloads (the paper: 0.21 and 0.24), so steps are small there.
    alpha: float = hyperparameter(
        0.3,
        lambda alpha: 0 < alpha < 1,
        "a fraction in (0, 1)",
        search=(0.05, 0.1, 0.15, 0.18, 0.2, 0.21, 0.22, 0.24, 0.25, 0.28, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7),
    )
    """protected fraction of memory, in (0, 1). The paper reports 0.3 and 0.25."""
    strict: bool = flag(False)
    """True: a prompt longer than (1 - α)M is never admitted, as printed. False: an empty worker admits it."""
    beta = 1.0  # overflow evicts all

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the admission threshold, tokens."""
        return {"limit": fraction_of(system.kv_capacity, self.alpha)}


@register_policy
class AlphaBeta(CompiledPolicy):
    """α-protection β-clearing: like α-protection, but overflow evicts each request with probability β."""

    info = PolicyInfo(
        name="alpha_beta",
        summary="first come, first served below (1-alpha) of memory; on overflow evicts each with probability beta",
        paper=PAPER,
        algorithm="Section 5.2, α-protection β-clearing",
        evicts=True,
        pauses=True,
        drafts=True,
        loads=True,
    )
    kernel = alpha_beta_kernel
    blocking = head_of_queue

    parameters = Protection

    alpha: float = hyperparameter(
        0.2,
        lambda alpha: 0 < alpha < 1,
        "a fraction in (0, 1)",
        search=(0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6),
    )
    """protected fraction of memory, in (0, 1). The paper reports 0.2 and 0.1."""
    # With a larger beta, runs with a small alpha take minutes.
    beta: float = hyperparameter(
        0.1, lambda beta: 0 < beta <= 1, "a probability in (0, 1]", search=(0.01, 0.02, 0.05, 0.1, 0.15, 0.2)
    )
    """probability that overflow evicts a request, in (0, 1]. The paper reports 0.2 and 0.1."""
    strict: bool = flag(False)
    """as in α-protection greedy."""

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the admission threshold, tokens."""
        return {"limit": fraction_of(system.kv_capacity, self.alpha)}

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the state of the policy's random numbers."""
        return policy_memory(self.params(system), state=seed_words(system.seed))
