"""Decisions made one batch ahead: requests that finished with the last batch still count, as in asynchronous engines.

A policy that decides so calls :func:`decide_ahead` first, :func:`preempt_finished` for each of them that it preempts,
and :func:`decide_again` if nothing can run until they have left. With ``prefix_cache="scheduled"`` the engine carries
the decision out in the same way.
"""

from __future__ import annotations

from kvgym.compiling.kernel import jit_inline
from kvgym.compiling.references import by_address
from kvgym.simulator.blocks import allocated, finished_tokens
from kvgym.simulator.policy_interface import PolicyDecision, PolicyView
from kvgym.simulator.prefix.plan import plan_kept
from kvgym.simulator.tables import UNKNOWN, WAIT


@jit_inline
def decide_ahead(view: PolicyView, decision: PolicyDecision) -> tuple[int, int]:
    """Let the requests that finished with the last batch hold their memory until the decision has taken effect.

    Returns:
        The memory in use for them alone, allocated tokens, and how many units of the prefix cache are in it.
    """
    held, units = 0, 0
    decision.record.ahead = 1
    for j in range(view.worker.num_finished):
        i = view.finished[j]
        held += allocated(view.problem, finished_tokens(view.problem, view.requests[i]))
        if view.problem.prefix_unit > 0:
            shared = plan_kept(by_address(view.cache), i, 1)
            held -= shared * view.problem.prefix_unit
            units += view.cache.prefix[i].left - shared
            view.cache.prefix[i].place = UNKNOWN
    return held, units


@jit_inline
def preempt_finished(view: PolicyView, i: int, place: int) -> int:
    """Preempt request ``i``, which has finished with the last batch.

    Args:
        view: the kernel's view.
        i: the request.
        place: how many requests the decision has preempted before.

    Returns:
        The memory that it frees, allocated tokens.
    """
    freed = allocated(view.problem, finished_tokens(view.problem, view.requests[i]))
    if view.problem.prefix_unit > 0:
        freed -= plan_kept(by_address(view.cache), i, -1) * view.problem.prefix_unit
        view.cache.prefix[i].place = place
    return freed


@jit_inline
def decide_again(view: PolicyView, decision: PolicyDecision) -> None:
    """Run no batch, and decide again at the same time: a step of the engine without tokens takes none."""
    d = decision.record
    d.act, d.wait_until, d.ahead = WAIT, view.worker.clock, 1
