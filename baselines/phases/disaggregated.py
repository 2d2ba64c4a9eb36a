"""DistServe: prefill and decode on separate workers.

Source: A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and
Practice", Appendix E.3, Algorithm 5, after Zhong et al., "DistServe: Disaggregating Prefill and Decoding for
Goodput-optimized Large Language Model Serving". The cluster moves KV between workers, not the policy.

Readings and deviations:

- Memory is limited; see :mod:`kvgym.baselines.phases.steps`. A request evicted from a decode worker
  without its KV is prefilled there again, whole and alone, at its turn in the queue.
- A worker for both phases, which the algorithm does not have, prefills while the head of the queue fits and decodes
  otherwise. A decode worker treats requests that need a prefill in the same way.
- The printed algorithm allows chunked prefill; here a prefill is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvgym.baselines.phases.steps import decode_first, take_next
from kvgym.kernels import (
    NO_LIMIT,
    WAIT,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    named_numbers,
    policy_kernel,
)
from kvgym.policies.hyperparameters import (
    whole,
)
from kvgym.policies.policy import CompiledPolicy, PolicyInfo, SystemInfo, register_policy


class Width(NamedTuple):
    """Parameters: the most requests in a decode iteration."""

    decodes: int


width_of = named_numbers(Width)


@policy_kernel
def dist_serve_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Algorithm 5: prefill the first request of the queue alone; if none fits, decode (on workers that decode)."""
    width = width_of(memory.params).decodes
    take_next(view, decision, NO_LIMIT, NO_LIMIT, width)
    if decision.record.explicit == 0:
        if view.problem.hands_over == 1:
            decision.record.act = WAIT
        else:
            decode_first(view, decision, width)


@register_policy
class DistServe(CompiledPolicy):
    """DistServe: whole prompts, one at a time, if a request needs a prefill; else decodes."""

    info = PolicyInfo(
        name="dist_serve",
        summary="whole prefills one at a time; decode workers decode everything that fits",
        paper="Bari, Hegde, de Veciana, Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
        algorithm="Algorithm 5",
        pauses=True,
        evicts=True,
        loads=True,
    )
    kernel = dist_serve_kernel

    parameters = Width

    decodes: int | None = whole(
        None, expected="a whole number ≥ 1, or None", search=(None, 8, 16, 32, 64, 128, 256)
    )
    """maximum number of requests in a decode iteration, t_col ≥ 1: the earliest activated run, the others pause. None =
    no limit."""

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the width of decode batches."""
        return {"decodes": self.decodes or NO_LIMIT}
