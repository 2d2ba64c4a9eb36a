"""The kernel of agents: it decides at every boundary as any compiled policy does, and asks Python for actions alone.

The environment's compiled step composes the decisions, so that a run has no Python code between two questions to the
agent. An agent that is asked once per request takes about as long as the scheduler below it, and its answers.
"""

from __future__ import annotations

from typing import Any

from numba import types

from kvgym.compiling.callbacks import call_back
from kvgym.compiling.kernel import jit, kernel
from kvgym.compiling.places import places
from kvgym.compiling.pointers import function_at
from kvgym.envs.scheduling.opening import i8_at
from kvgym.envs.scheduling.stepping import BEGIN, COMPOSE, open_call, step_envs
from kvgym.simulator.policy_interface import PolicyDecision, PolicyMemory, PolicyView, policy_kernel
from kvgym.simulator.tables import RUN, UNKNOWN

ALWAYS, ASKED, SKIPS, HOLDS = 0, 1, 2, 3
"""When the agent is asked: at every boundary; when its kind asks; when there is something to decide; or when the last
action has been in force for ``hold`` iterations."""

FAILED, OUTSIDE = 1, 2
"""Why there is no decision: asking the agent failed, or its action is outside the space."""

STATE = places(
    ("order", "order_length", "step", "step_again", "ask", "held", "when", "hold", "left", "lacks")
)
"""Places in the kernel's state: address and length of an order of the stepping functions; the two numbers of
``step_envs``, see :func:`~kvgym.compiling.pointers.function_handle`; the address of the function that asks the agent,
which returns 0, or 1 if it failed; the address of ``EPISODE.held``; when to ask; iterations for which an action
holds; those for which the last one still does; and 0, FAILED or OUTSIDE."""

step_at = function_at(step_envs.signature)


@jit
def compose(state: Any, idle: Any) -> bool:
    """Compose the decision at a boundary, in the tables of the order.

    Args:
        state: int64 (number of STATE,); written.
        idle: float64 (a,), the action where there is nothing to decide; read with SKIPS.

    Returns:
        Whether there is a decision; there is none if an action could not be had, or is outside its space.
    """
    order, when = i8_at(state[STATE.order], state[STATE.order_length]), state[STATE.when]
    step, held = step_at(state[STATE.step], state[STATE.step_again]), i8_at(state[STATE.held], 1)
    call = open_call(order, 1)
    state[STATE.lacks] = 0
    call.todo[0] = BEGIN
    step(order)
    anything = call.outcomes[0] == 1
    call.todo[0] = COMPOSE
    if when == HOLDS and state[STATE.left] > 0:
        held[0] = state[STATE.hold] - state[STATE.left]
        state[STATE.left] -= 1
        step(order)
        return True
    if not anything and when in (ASKED, SKIPS):
        if when == SKIPS:
            for k in range(idle.shape[0]):
                call.actions[0, k] = idle[k]
        step(order)
        return True
    held[0] = 0
    while True:
        if call_back(state[STATE.ask]) != 0:
            state[STATE.lacks] = FAILED
            return False
        if step(order) < 0:
            state[STATE.lacks] = OUTSIDE
            return False
        if call.outcomes[0] == 1:
            break
    state[STATE.left] = state[STATE.hold] - 1
    return True


@kernel(types.boolean(types.int64[::1], types.float64[::1]), "agent")
def compose_once(state: Any, idle: Any) -> bool:
    """Compose one decision, for callers in Python; see :func:`compose`."""
    return bool(compose(state, idle))


@policy_kernel
def agent_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Decide as the agent does; where it has no action, decide what the engine refuses.

    ``state`` of the memory is that of :data:`STATE`, ``params`` the idle action.
    """
    if not compose(memory.state, memory.params):
        d = decision.record
        d.act, d.explicit, d.num_evict, d.num_admit = RUN, 0, 0, 1
        decision.admit[0] = UNKNOWN
