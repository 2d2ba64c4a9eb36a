"""Kinds of action with a scheduler below: the agent answers single questions, and a compiled policy decides the rest.

The scheduler decides at every iteration, with its memory in the environment's tables, as it does in
:func:`kvgym.simulate`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from kvgym.compiling.kernel import Kernel, jit_inline
from kvgym.compiling.pointers import function_at
from kvgym.compiling.references import by_address
from kvgym.envs.scheduling.actions.kind import ActionConfig, ActionKind
from kvgym.envs.scheduling.opening import open_rule, open_view
from kvgym.envs.scheduling.tables import Env
from kvgym.envs.scheduling.window import window_remove
from kvgym.errors import ConfigError, shown
from kvgym.policies.policy import CompiledPolicy, SystemInfo, make_policy
from kvgym.simulator.policy_interface import POLICY_SIGNATURE, PolicyMemory, decision_of

scheduler_at = function_at(POLICY_SIGNATURE)


@jit_inline
def decide(e: Env, where: Any) -> None:
    """Let the scheduler below decide; admitted requests leave the queue window."""
    s = e.settings
    scheduler = scheduler_at(s.scheduler_function[0], s.scheduler_function[1])
    scheduler(by_address(open_view(e)), by_address(decision_of(e.run)), by_address(open_rule(where)))
    for j in range(e.run.decision.num_admit):
        window_remove(s, e.episode, e.window, e.heap, e.run.requests, e.run.admit[j])


class WithScheduler(ActionKind):
    """Base class of kinds with a scheduler below.

    Attributes:
        examples: schedulers that it can have, for messages.
    """

    examples: ClassVar[str]

    def scheduler_below(self, config: ActionConfig) -> CompiledPolicy:
        """Return the scheduler below.

        Raises:
            ConfigError: there is none, it does not suit the kind, or it needs more than ``information``.
        """
        if config.scheduler is None:
            raise ConfigError(f"action {shown(self.name)} needs a scheduler below, such as {self.examples}")
        policy = make_policy(config.scheduler)
        if not isinstance(policy, CompiledPolicy) or not self.suits(policy, config):
            raise ConfigError(
                f"scheduler {shown(config.scheduler)} {self.wanted(config)}, such as {self.examples}"
            )
        missing = policy.info.needs - self.answers(config) - config.needed
        if missing:
            raise ConfigError(
                f"scheduler {shown(config.scheduler)} needs {', '.join(sorted(missing))}; add it to information, "
                "and leave it out of uses"
            )
        return policy

    def suits(self, policy: CompiledPolicy, config: ActionConfig) -> bool:
        """Return whether a compiled policy can be below: its kernel decides, not Python code."""
        return type(policy).schedule is CompiledPolicy.schedule

    def wanted(self, config: ActionConfig) -> str:
        """Return what is wrong with a scheduler that does not suit, and what is expected."""
        return "is plain Python; expected a compiled policy"

    def answers(self, config: ActionConfig) -> frozenset[str]:
        """Return the needs of the scheduler that the agent's answers meet."""
        return frozenset()

    def informed(self, system: SystemInfo, config: ActionConfig) -> SystemInfo:
        """Return what the scheduler gets before an episode."""
        return system

    def check(self, config: ActionConfig) -> None:
        """Check the configuration.

        Raises:
            ConfigError: the scheduler cannot be below, or an option of another kind is given.
        """
        self.scheduler_below(config)
        super().check(config)

    def policy_memory(self, config: ActionConfig, system: SystemInfo) -> PolicyMemory:
        """Return the initial memory of the scheduler."""
        policy = self.scheduler_below(config)
        policy.reset(self.informed(system, config))
        return policy.arguments()

    def scheduler(self, config: ActionConfig) -> Kernel:
        """Return the kernel of the scheduler."""
        return self.scheduler_below(config).kernel

    def idle(self, config: ActionConfig) -> Any:
        """Fail, because the scheduler below decides at every iteration.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self.name} has a scheduler below, which no action keeps from admitting for one decision"
        )
