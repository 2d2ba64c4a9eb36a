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

import numpy as np
from numpy.typing import NDArray

from kvgym.kernels import (
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit_while_fits,
    clear_all,
    evict,
    evict_latest,
    kept_by_others,
    need_of,
    need_of_active,
    next_uniform,
    pause_all,
    policy_kernel,
    policy_memory,
    seed_words,
)
from kvgym.policies.policy import (
    CompiledPolicy,
    PolicyInfo,
    SystemInfo,
    fraction_of,
    head_of_queue,
    register_policy,
    require,
    require_flag,
    require_fraction,
)

PAPER = "Jaillet et al., Online Scheduling for LLM Inference with KV Cache Constraints"


@policy_kernel
def fcfs_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Evict the newest requests until the next iteration fits; admit only if none was evicted."""
    need = need_of_active(view)
    if need > view.problem.kv_capacity:
        evict_latest(view, decision, need)
    else:
        admit_while_fits(view, decision, need, int(memory.params[0]))


@policy_kernel
def alpha_greedy_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """α-protection greedy: on overflow, evict all active requests."""
    need = need_of_active(view)
    if need > view.problem.kv_capacity:
        clear_all(view, decision)
    else:
        admit_while_fits(view, decision, need, int(memory.params[0]), strict=memory.params[1] == 1.0)


@policy_kernel
def alpha_beta_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """α-protection β-clearing: on overflow toss a coin for each active request, in order of activation.

    If the survivors still do not fit, all of them pause for this iteration, and the next iteration tosses
    again.
    """
    need = need_of_active(view)
    if need <= view.problem.kv_capacity:
        admit_while_fits(view, decision, need, int(memory.params[0]), strict=memory.params[1] == 1.0)
        return
    for k in range(view.worker.num_active):
        if next_uniform(memory.state, 0) < memory.params[2]:
            evict(decision, k)
            need -= need_of(view, view.active[k]) - kept_by_others(view, view.active[k])
    if need > view.problem.kv_capacity:
        pause_all(view, decision)


@register_policy
class FCFS(CompiledPolicy):
    """First come, first served; on overflow the latest activated requests return to the queue."""

    info = PolicyInfo(
        name="fcfs",
        summary="first come, first served, greedy; evicts the newest on overflow (LIFO)",
        paper="Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention",
        algorithm="Section 4.5",
        evicts=True,
    )
    kernel = fcfs_kernel
    blocking = head_of_queue

    def __init__(self, *, protection: float = 0.0) -> None:
        """Set the watermark.

        Args:
            protection: fraction of the capacity that admission leaves free, in [0, 1); an empty worker admits
                its first request regardless.
        """
        require_fraction("protection", protection)
        self.protection = protection

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the admission threshold, tokens."""
        return np.array([fraction_of(system.kv_capacity, self.protection)], dtype=np.float64)


@register_policy
class AlphaGreedy(CompiledPolicy):
    """α-protection greedy: first come, first served below (1 - α)M; overflow evicts all active requests."""

    info = PolicyInfo(
        name="alpha_greedy",
        summary="first come, first served below (1-alpha) of memory; evicts all requests on overflow",
        paper=PAPER,
        algorithm="Section 5.2, α-protection greedy",
        evicts=True,
    )
    kernel = alpha_greedy_kernel
    blocking = head_of_queue

    def __init__(self, *, alpha: float = 0.3, strict: bool = False) -> None:
        """Set the protection level.

        Args:
            alpha: protected fraction of memory, in (0, 1). The paper reports 0.3 and 0.25.
            strict: True: a prompt longer than (1 - α)M is never admitted, as printed. False: an empty worker
                admits it.
        """
        require("alpha", alpha, 0 < alpha < 1, "a fraction in (0, 1)")
        require_flag("strict", strict)
        self.alpha, self.strict = alpha, strict

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the admission threshold in tokens, and whether it is strict."""
        return np.array([fraction_of(system.kv_capacity, self.alpha), self.strict], dtype=np.float64)


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
    )
    kernel = alpha_beta_kernel
    blocking = head_of_queue

    def __init__(self, *, alpha: float = 0.2, beta: float = 0.1, strict: bool = False) -> None:
        """Set the protection level and the clearing probability.

        Args:
            alpha: protected fraction of memory, in (0, 1). The paper reports 0.2 and 0.1.
            beta: probability that overflow evicts a request, in (0, 1]. The paper reports 0.2 and 0.1.
            strict: as in α-protection greedy.
        """
        require("alpha", alpha, 0 < alpha < 1, "a fraction in (0, 1)")
        require("beta", beta, 0 < beta <= 1, "a probability in (0, 1]")
        require_flag("strict", strict)
        self.alpha, self.beta, self.strict = alpha, beta, strict

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the admission threshold in tokens, whether it is strict, and the probability of eviction."""
        return np.array([fraction_of(system.kv_capacity, self.alpha), self.strict, self.beta])

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the state of the policy's random numbers."""
        return policy_memory(self.params(system), state=seed_words(system.seed))
