"""Request-level batching: a batch of requests is served to the end before the next one begins.

Source: A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and
Practice", Appendix E.1, Algorithm 3, after NVIDIA FasterTransformer.

Readings and deviations:

- The printed algorithm has its two modes swapped; the text's are used: prefill up to b requests, decode until
  all of them have finished, and again.
- The prefills of a batch run in one iteration.
- Memory is not taken for granted: a batch takes requests in queue order while their coming iteration fits,
  and stops at the first that does not. A decode iteration that does not fit evicts the latest activated;
  they return with a later batch. One that kept its progress then decodes while the others prefill.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines._common import evict_last
from kvgym.policy import CompiledPolicy, PolicyInfo, SystemInfo, policy_kernel, register_policy, require
from kvgym.simulator.lookahead import first_use
from kvgym.simulator.tables import UNKNOWN


@policy_kernel
def request_level_kernel(
    problem: Any, w: Any, requests: Any, active: Any, queued: Any, finished: Any, d: Any, admit: Any,
    admit_tokens: Any, evict: Any, params: Any, state: Any, reals: Any, profile: Any,
) -> None:  # fmt: skip
    """Algorithm 3: decode everybody, or begin the next batch if nobody is left."""
    if w.num_active > 0:
        evict_last(problem, w, active, d, evict, w.kv_tokens + w.num_active)
        return
    limit = min(int(params[0]), admit.shape[0])
    need = 0
    i = w.queue_head
    while i != UNKNOWN and d.num_admit < limit:
        need += first_use(problem, requests[i])
        if need > problem.kv_capacity:
            break
        admit[d.num_admit] = i
        d.num_admit += 1
        i = requests[i].queue_next


@register_policy
class RequestLevel(CompiledPolicy):
    """Request-level batching: b requests at a time, from first prompt to last token."""

    info = PolicyInfo(
        name="request_level",
        summary="b requests at a time; the next ones begin when all of these have finished",
        paper="Bari, Hegde, de Veciana, Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
        algorithm="Algorithm 3",
        evicts=True,
    )
    kernel = request_level_kernel

    def __init__(self, *, batch: int = 16) -> None:
        """Set the size of a batch.

        Args:
            batch: requests in a batch at most, b ≥ 1. The paper gives none.
        """
        require("batch", batch, isinstance(batch, int) and batch >= 1, "a whole number ≥ 1")
        self.batch = batch

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return b."""
        return np.array([self.batch], dtype=np.float64)
