"""Request-level batching: a batch of requests runs to completion before the next one begins.

Source: A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and
Practice", Appendix E.1, Algorithm 3, after NVIDIA FasterTransformer.

Readings and deviations:

- The two modes of the printed algorithm are swapped; the text's order is used: prefill up to b requests, decode until
  all of them have finished, and repeat.
- The prefills of a batch run in one iteration.
- Memory is limited: a batch takes requests in queue order while their next iteration fits, and stops at the first
  that does not. A decode iteration that does not fit evicts the latest activated requests; they return with a later
  batch. A request that kept its progress then decodes while the others prefill.
"""

from __future__ import annotations

from typing import NamedTuple

from kvgym.kernels import (
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit_while_fits,
    evict_latest,
    named_numbers,
    need_of_active,
    policy_kernel,
)
from kvgym.policies.hyperparameters import (
    whole,
)
from kvgym.policies.policy import CompiledPolicy, PolicyInfo, register_policy


class Batch(NamedTuple):
    """Parameters: the maximum number of requests per batch."""

    batch: int


batch_of = named_numbers(Batch)


@policy_kernel
def request_level_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Algorithm 3: decode all active requests; if there are none, begin the next batch."""
    if view.worker.num_active > 0:
        evict_latest(view, decision, need_of_active(view))
    else:
        admit_while_fits(view, decision, 0, view.problem.kv_capacity, batch_of(memory.params).batch)


@register_policy
class RequestLevel(CompiledPolicy):
    """Request-level batching: b requests at a time, from the first prompt to the last token."""

    info = PolicyInfo(
        name="request_level",
        summary="b requests at a time; the next batch begins when all of them have finished",
        paper="Bari, Hegde, de Veciana, Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
        algorithm="Algorithm 3",
        evicts=True,
        drafts=True,
    )
    kernel = request_level_kernel

    parameters = Batch

    batch: int = whole(16, search=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512))
    """maximum number of requests per batch, b ≥ 1. The paper gives no value."""
