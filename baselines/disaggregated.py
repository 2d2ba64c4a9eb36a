"""DistServe: prefill and decode on workers of their own.

Source: A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and
Practice", Appendix E.3, Algorithm 5, after Zhong et al., "DistServe: Disaggregating Prefill and Decoding for
Goodput-optimized Large Language Model Serving". The moving of KV between workers is the cluster's, not the
policy's.

Readings and deviations:

- Memory is not taken for granted; see :mod:`kvgym.baselines._phases`. A request evicted from a decode worker
  without its KV is prefilled there again, whole and alone, at its turn in the queue.
- A worker for both phases, which the algorithm does not know, prefills while the head of the queue fits and
  else decodes. This is what a decode worker does with requests that need a prefill.
- The printed prefill may also be chunked; here it is whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines._phases import decode_first, take_next
from kvgym.policy import CompiledPolicy, PolicyInfo, SystemInfo, policy_kernel, register_policy, require
from kvgym.simulator.tables import ROLE_PREFILL, WAIT

_NO_LIMIT = 2**31 - 1


@policy_kernel
def dist_serve_kernel(
    problem: Any, w: Any, requests: Any, active: Any, queued: Any, finished: Any, d: Any, admit: Any,
    admit_tokens: Any, evict: Any, params: Any, state: Any, reals: Any, profile: Any,
) -> None:  # fmt: skip
    """Algorithm 5: prefill the first of the queue alone; on workers that decode, else decode."""
    width = int(params[0])
    take_next(problem, w, requests, active, d, admit, admit_tokens, _NO_LIMIT, _NO_LIMIT, width)
    if d.explicit == 0:
        if w.role == ROLE_PREFILL:
            d.act = WAIT
        else:
            decode_first(problem, w, active, d, admit_tokens, evict, width)


@register_policy
class DistServe(CompiledPolicy):
    """DistServe: whole prompts one at a time where there is one to prefill, else everybody decodes."""

    info = PolicyInfo(
        name="dist_serve",
        summary="whole prefills one at a time; decode workers decode everything that fits",
        paper="Bari, Hegde, de Veciana, Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
        algorithm="Algorithm 5",
        pauses=True,
        evicts=True,
    )
    kernel = dist_serve_kernel

    def __init__(self, *, decodes: int | None = None) -> None:
        """Set the width of decode batches.

        Args:
            decodes: requests in a decode iteration at most, t_col ≥ 1, the first activated first; the others
                pause. None = all of them.
        """
        if decodes is not None:
            require(
                "decodes", decodes, isinstance(decodes, int) and decodes >= 1, "a whole number ≥ 1, or None"
            )
        self.decodes = decodes

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the width of decode batches."""
        return np.array([self.decodes or _NO_LIMIT], dtype=np.float64)
