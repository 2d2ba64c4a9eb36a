"""An agent in one run of one worker: the environment's tables there, and the memory of the agent's kernel.

The compiled step of the environment composes the decisions of :mod:`.deciding` from the agent's actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvgym.compiling.callbacks import C_FUNCTION, address_of
from kvgym.compiling.kernel import uncompiled
from kvgym.compiling.pointers import function_handle, runs_compiled
from kvgym.envs.scheduling.acting.deciding import (
    ALWAYS,
    ASKED,
    FAILED,
    HOLDS,
    OUTSIDE,
    SKIPS,
    STATE,
    compose_once,
)
from kvgym.envs.scheduling.actions.reading import ActionReader, outside
from kvgym.envs.scheduling.config import EnvConfig, use_action_bounds, use_batch_time
from kvgym.envs.scheduling.memory import TABLES, Arrays, Sizes, control_row, rule_tables
from kvgym.envs.scheduling.observations import observation_size
from kvgym.envs.scheduling.revealed import class_table, columns_size
from kvgym.envs.scheduling.spaces import parts, present
from kvgym.envs.scheduling.stepping import step_envs
from kvgym.policies.policy import SystemInfo
from kvgym.simulator.policy_interface import PolicyMemory, policy_memory
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.tables import UNKNOWN


def _when(config: EnvConfig) -> int:
    """Return when an agent is asked, see :data:`~kvgym.envs.scheduling.acting.deciding.ALWAYS`."""
    if config.kind.holds:
        return HOLDS
    if config.kind.asks is not None:
        return ASKED
    return SKIPS if config.epochs == "decision" else ALWAYS


class Acting:
    """An agent in a run of a worker.

    Args:
        config: the environment's configuration.
        act: returns the agent's action for an observation and a mask.
        training: batch-time model, requests and arrival rate of its training, owner scales observations keep.
        info: what a policy gets before the run.
        simulation: the run.
        worker: index of the worker.
        owner: the agent, for messages about actions outside their space.

    Attributes:
        memory: of :func:`~kvgym.envs.scheduling.acting.deciding.agent_kernel`.
    """

    def __init__(
        self,
        config: EnvConfig,
        act: Callable[[Any, Any], Any],
        training: tuple[Any, int, float],
        info: SystemInfo,
        simulation: Simulation,
        worker: int,
        owner: str,
    ) -> None:
        config.kind.check_system(simulation.system)
        self._config, self._owner = config, owner
        self._compiled = runs_compiled(True)
        self._own, tables = _tables(config, info, simulation, worker)
        # Made again for every run, because it holds addresses of this process.
        self._settings = config.make_settings(*training, compiled=self._compiled)
        self._settings["rate_scale"] *= len(simulation.workers)  # arrivals are those of the whole cluster
        self._arrays = Arrays(
            control_row(tables, self._settings)[None],
            actions=config.kind.size(config),
            observation=observation_size(config),
            mask=config.kind.mask_size(config),
            terms=len(config.reward_terms),
        )
        self._kept = tables, use_action_bounds(self._settings, config)
        batch_time = simulation.system.all_workers[worker].batch_time
        self._batch_params = use_batch_time(self._settings, batch_time, compiled=self._compiled)
        self._failures: list[BaseException] = []
        self._ask = C_FUNCTION(_question(config, act, self._arrays, self._failures))
        self.memory = self._memory()

    def _memory(self) -> PolicyMemory:
        """Return the memory of the kernel: addresses and handles, and the idle action."""
        config, order, when = self._config, self._arrays.orders[0], _when(self._config)
        step = step_envs.compiled if self._compiled else uncompiled(step_envs)
        state = np.zeros(len(STATE), np.int64)
        state[STATE.order], state[STATE.order_length] = order.ctypes.data, len(order)
        state[STATE.step], state[STATE.step_again] = function_handle(
            step, step_envs.signature, compiled=self._compiled
        )
        state[STATE.ask] = address_of(self._ask)
        state[STATE.held] = self._own["episode"]["held"].ctypes.data
        state[STATE.when], state[STATE.hold] = when, config.hold
        idle = np.ravel(config.as_actions(config.kind.idle(config))) if when == SKIPS else np.zeros(1)
        return policy_memory(idle, state=state)

    def compose(self) -> bool:
        """Compose the decision at the present boundary, in the tables of the simulation; False if it failed."""
        compose = compose_once.compiled if self._compiled else uncompiled(compose_once)
        return bool(compose(self.memory.state, self.memory.params))

    def failure(self) -> BaseException | None:
        """Return why there is no decision, None if there is one."""
        lacks = self.memory.state[STATE.lacks]
        if lacks == OUTSIDE:
            return outside(self._config.action_space, self._arrays.actions[0], f" of {self._owner}")
        return self._failures[-1] if lacks == FAILED else None


def _question(
    config: EnvConfig, act: Callable[[Any, Any], Any], arrays: Arrays, failures: list[BaseException]
) -> Callable[[], int]:
    """Return a function that asks the agent for an action, for compiled code, which no exception may reach."""
    observation, mask = arrays.observations[0], arrays.masks[0]
    reader, places, form = (
        ActionReader(config.action_space, arrays.actions[0]),
        parts(config),
        config.observation,
    )

    def ask() -> int:
        try:
            reader.read(act(present(form, places, observation, mask), mask))
        except BaseException as error:  # raised again when the compiled code has ended
            failures.append(error)
            return 1
        return 0

    return ask


def _tables(
    config: EnvConfig, info: SystemInfo, simulation: Simulation, worker: int
) -> tuple[dict[str, Any], list[Any]]:
    """Return the environment's own tables, and all tables: these and the simulation's of the worker."""
    n, slots = len(simulation.table), simulation.active.shape[1]
    rule = rule_tables(config.kind.policy_memory(config, info))
    sizes = Sizes(
        n,
        slots,
        config.queue_window,
        n + 2,
        0,
        rule=tuple(table.size for table in rule.values()),
        shown=config.active_window,
        notes=config.kind.num_notes(config),
        columns=columns_size(config, n),
    )
    shared = simulation.tables_of(worker)
    own: dict[str, Any] = {
        name: rule[name] if name in rule else np.zeros(length, dtype)
        for name, dtype, length in sizes.layout()
        if name not in shared
    }
    own["episode"]["cursor"] = UNKNOWN
    # A worker observes its share of the class rates; the environment's scale is for the rate of all workers.
    own["episode"]["classes"] = class_table(info.classes, len(simulation.workers))
    if len(own["columns"]):
        own["columns"][:] = simulation.table.features.ravel()
    return own, [own[name] if name in own else shared[name] for name in TABLES]
