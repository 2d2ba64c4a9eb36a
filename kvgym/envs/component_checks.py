"""Conformance checks of registered reward terms and observation parts: ``check_component("acme_headroom")``.

Names, bounds and kernels are already checked when a component is created.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.components import OBSERVATIONS, REWARDS
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ContractError, UnknownNameError
from kvgym.simulator.tables import FINISHED

TASK: dict[str, Any] = {
    "scenario": "mc-sf-model-2",
    "num_requests": 30,
    "queue_window": 4,
    "active_window": 4,
}
"""Default environment of the checks: short requests, and memory that binds."""

ACTIONS = ("admit_evict", "flags")
"""Kinds of action in the checks: one with steps in which no time passes, one with many evictions."""

UNCOMPILED_STEPS = 30
"""Steps that are repeated in plain Python."""


def check_component(name: str, *, steps: int = 300, seed: int = 0, **arguments: Any) -> None:
    """Check a registered reward term or observation part in random play.

    Its numbers must be finite. An observation part must write all of its numbers every time, within its bounds; they
    must not depend on true lengths, on requests that have not arrived, or on the number of observations. The component
    must change nothing else, and must have no state except a reward term's memory. Compiled and in plain Python it must
    give the same bits. In a process with ``KVGYM_DEBUG=1`` compiled code also checks every index.

    Args:
        name: name of the registered component.
        steps: steps with each kind of action.
        seed: seed of the play and the requests.
        **arguments: fields of :class:`~kvgym.envs.scheduling.config.EnvConfig`, if the component needs other requests
            or more ``information``; ``action`` selects a single kind of action.

    Raises:
        UnknownNameError: no component of that name is registered.
        KernelError: its kernel cannot be compiled.
        ContractError: a requirement is not met; the message names the first one and the step.
    """
    if name not in REWARDS and name not in OBSERVATIONS:
        raise UnknownNameError("component", name, [*REWARDS, *OBSERVATIONS])
    task = {**TASK, **arguments}
    for action in (task.pop("action"),) if "action" in task else ACTIONS:
        chosen = {**task, "action": action}
        for added in _added(name, chosen):
            _Trial(name, chosen, added).run(steps, seed)


def _added(name: str, task: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments that add the component: as a reward term, as an observation part, or each in turn."""
    found: list[dict[str, Any]] = []
    if name in REWARDS:
        found.append({"reward": {**task.get("reward", {"latency": 1.0}), name: 1.0}})
    if name in OBSERVATIONS:
        found.append({"features": [*EnvConfig.of(**task).features, name]})
    return found


class _Trial:
    """An environment with the component, one without it, and one in plain Python."""

    def __init__(self, name: str, task: dict[str, Any], added: dict[str, Any]) -> None:
        self.env = ServingEnv(**{**task, **added, "observation": "flat"})
        self.plain = ServingEnv(**{**task, "observation": "flat"})
        self.slow = ServingEnv(compiled=False, **{**task, **added, "observation": "flat"})
        self.part = OBSERVATIONS[name] if "features" in added else None
        self.what = f"observation {name!r}" if self.part is not None else f"reward term {name!r}"
        self.names = spaces.feature_names(self.env.config)
        first, last = spaces.parts(self.env.config)[name] if self.part is not None else (0, 0)
        self.place = slice(first, last)
        self.others = np.ones(len(self.names), bool)
        self.others[self.place] = False
        self.term = self.env.reward_terms.index(name) if self.part is None else None
        self.shared_terms = [
            k for k, term in enumerate(self.env.reward_terms) if term in self.plain.reward_terms
        ]
        self.when = ""

    def run(self, steps: int, seed: int) -> None:
        """Play twice with the same actions, and again in plain Python for the first steps."""
        self.env.action_space.seed(seed)
        first = self._play(steps, seed, self.env, None)
        again = self._play(steps, seed, self.env, first[0])
        self._equal(first, again, "in a second episode; it must not have state from the first")
        few = min(steps, UNCOMPILED_STEPS)
        slow = self._play(few, seed, self.slow, first[0][:few])
        self._equal((first[0][:few], first[1][: few + 1]), slow, "in plain Python")

    def _play(
        self, steps: int, seed: int, env: ServingEnv, actions: list[Any] | None
    ) -> tuple[list[Any], list[Any]]:
        """Return the actions and their results; without given actions, draw them and check every step."""
        first = actions is None
        chosen: list[Any] = []
        if first:
            self.plain.reset(seed=seed)
        results: list[Any] = [env.reset(seed=seed)]
        for step in range(steps + 1):
            self.when = f"after {step} random steps with action {env.config.action!r}, seed {seed}"
            if first:
                self._check_moment(results[-1][0], results[-1][-1])
            if step == steps:
                break
            chosen.append(
                env.action_space.sample(mask=env.sample_mask()) if actions is None else actions[step]
            )
            found = env.step(chosen[-1])
            if first:
                self._compare(found, self.plain.step(chosen[-1]))
            if found[2] or found[3]:
                found = (env.reset()[0], *found[1:])
                if first:
                    self.plain.reset()
            results.append(found)
        return chosen, [(one[0], one[-1]["reward_terms"]) for one in results]

    def _demand(self, condition: bool, otherwise: str) -> None:
        if not condition:
            raise ContractError(f"{self.what} {otherwise} ({self.when})")

    def _compare(self, found: Any, plain: Any) -> None:
        """Compare a step with the same step without the component."""
        same = found[2:4] == plain[2:4] and np.array_equal(found[0][self.others], plain[0])
        terms = found[4]["reward_terms"][self.shared_terms]
        self._demand(
            same and np.array_equal(terms, plain[4]["reward_terms"]),
            "changes tables that it may only read: without it the same actions have other results",
        )

    def _check_moment(self, observation: NDArray[np.float32], info: dict[str, Any]) -> None:
        """Check the component's observation or reward after a step."""
        if self.term is not None:
            earned = float(info["reward_terms"][self.term])
            self._demand(bool(np.isfinite(earned)), f"is {earned}; expected a finite number")
            return
        assert self.part is not None
        shown = observation[self.place]
        rewritten = [self._rewrite(fill)[self.place] for fill in (np.nan, 0.25)]
        for k, (name, _) in enumerate(self.part.features):
            one, other = (float(values[k]) for values in rewritten)
            number, value = f"number {k}, {name!r},", float(shown[k])
            self._demand(
                not (np.isnan(one) and other == 0.25 != value), f"does not write {number} every time"
            )
            self._demand(bool(np.isfinite(value)), f"writes {value} as {number} which must be finite")
            within = np.float32(self.part.low) <= shown[k] <= np.float32(self.part.high)
            bounds = f"from {self.part.low:g} to {self.part.high:g}"
            self._demand(bool(within), f"writes {value:g} as {number} outside its bounds, {bounds}")
            self._demand(
                one == other == value,
                f"writes another {number} when observed again; it must not have state",
            )
        self._check_hidden(shown)

    def _rewrite(self, fill: float) -> NDArray[np.float32]:
        """Return the observation written again, over memory filled with ``fill``."""
        episodes = self.env.episodes
        episodes.observations[0] = fill
        todo = int(episodes.todo[0])
        episodes.observe(np.ones(1, bool))
        episodes.todo[0] = todo
        return episodes.observations[0].copy()

    def _check_hidden(self, shown: NDArray[np.float32]) -> None:
        """Check that a part does not depend on true lengths and future arrivals."""
        if "true_length" in self.env.config.information:
            return
        block = self.env.episodes.slots[0].block
        source, kept = block["workload"], block["workload"].copy()
        left = block["requests"]["status"][: len(source)] != FINISHED
        to_come = np.arange(len(source)) >= int(block["tracker"][0]["next_arrival"])
        source["output_len"][left] += 7
        for column in ("arrival_time", "prompt_len"):
            source[column][to_come] += 3
        other = self._rewrite(0.25)[self.place]
        source[:] = kept
        self._rewrite(0.25)
        self._demand(
            np.array_equal(other, shown),
            "reveals hidden information: true lengths, or requests that have not arrived",
        )

    def _equal(self, one: Any, other: Any, what: str) -> None:
        for step, (a, b) in enumerate(zip(one[1], other[1], strict=True)):
            self.when = f"after {step} random steps with action {self.env.config.action!r}"
            same = np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])
            self._demand(same, f"has other values {what}")


__all__ = ["check_component"]
