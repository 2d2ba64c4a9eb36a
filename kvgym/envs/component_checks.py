"""What every reward term and every part of observations must do, tried on one: ``check_component("acme_headroom")``.

What can be seen of a component by itself, names, bounds, kernels, is checked when it is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.components import OBSERVATIONS, REWARDS
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ContractError, UnknownNameError
from kvgym.simulator.tables import FINISHED

TASK: dict[str, Any] = {
    "scenario": "mc-sf-model-2",
    "num_requests": 30,
    "queue_window": 4,
    "active_window": 4,
}
"""What components are tried on, unless told otherwise: short requests, and memory that binds."""

ACTIONS = ("admit_evict", "flags")
"""Kinds of action that they are tried with: one with steps in which no time passes, one with many evictions."""

UNCOMPILED_STEPS = 30
"""Steps that are repeated as plain Python."""


def check_component(name: str, *, steps: int = 300, seed: int = 0, **arguments: Any) -> None:
    """Try a registered reward term or part of observations in random play.

    It must be finite, and observations within their bounds and written as a whole at every look; it must change nothing
    else, and remember nothing but, of a reward term, its memory; what a part shows must not depend on true lengths, on
    those who have not arrived, or on how often one looks. Compiled and as plain Python it must give the same bits.
    In a process with ``KVGYM_DEBUG=1`` compiled code also checks every index.

    Args:
        name: of the component, registered.
        steps: how many are played with each kind of action.
        seed: of play and requests.
        **arguments: of the environment, fields of :class:`~kvgym.envs.scheduling.config.EnvConfig`, where the component
            needs other requests or more ``information``; ``action`` names the only kind of action to try.

    Raises:
        UnknownNameError: no component of that name is registered.
        KernelError: its kernel cannot be compiled.
        ContractError: the first thing that does not hold; the message says what, and when.
    """
    if name not in REWARDS and name not in OBSERVATIONS:
        raise UnknownNameError("component", name, [*REWARDS, *OBSERVATIONS])
    task = {**TASK, **arguments}
    for action in (task.pop("action"),) if "action" in task else ACTIONS:
        for added in _added(name, task):
            _Trial(name, {**task, "action": action}, added).run(steps, seed)


def _added(name: str, task: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments that add the component: as a reward, as a part of observations, or both in turn."""
    found: list[dict[str, Any]] = []
    if name in REWARDS:
        found.append({"reward": {**task.get("reward", {"latency": 1.0}), name: 1.0}})
    if name in OBSERVATIONS:
        found.append({"features": [*task.get("features", ()), name]})
    return found


class _Trial:
    """An environment with the component beside one without it, and one of plain Python."""

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
        self.usual = [k for k, term in enumerate(self.env.reward_terms) if term in self.plain.reward_terms]
        self.when = ""

    def run(self, steps: int, seed: int) -> None:
        """Play, twice the same, and a part of it uncompiled."""
        self.env.action_space.seed(seed)
        first = self._play(steps, seed, self.env, None)
        again = self._play(steps, seed, self.env, first[0])
        self._equal(first, again, "again, after another episode; it must remember nothing of that")
        few = min(steps, UNCOMPILED_STEPS)
        slow = self._play(few, seed, self.slow, first[0][:few])
        self._equal((first[0][:few], first[1][: few + 1]), slow, "as plain Python")

    def _play(
        self, steps: int, seed: int, env: ServingEnv, actions: list[Any] | None
    ) -> tuple[list[Any], list[Any]]:
        """Return the actions, drawn where none are given, and what came of them; drawn ones are looked at closely."""
        first = actions is None
        chosen: list[Any] = []
        if first:
            self.plain.reset(seed=seed)
        told: list[Any] = [env.reset(seed=seed)]
        for step in range(steps + 1):
            self.when = f"after {step} random steps with action {env.config.action!r}, seed {seed}"
            if first:
                self._look(told[-1][0], told[-1][-1])
            if step == steps:
                break
            chosen.append(
                env.action_space.sample(mask=env.sample_mask()) if actions is None else actions[step]
            )
            found = env.step(chosen[-1])
            if first:
                self._beside(found, self.plain.step(chosen[-1]))
            if found[2] or found[3]:
                found = (env.reset()[0], *found[1:])
                if first:
                    self.plain.reset()
            told.append(found)
        return chosen, [(one[0], one[-1]["reward_terms"]) for one in told]

    def _demand(self, condition: bool, otherwise: str) -> None:
        if not condition:
            raise ContractError(f"{self.what} {otherwise} ({self.when})")

    def _beside(self, found: Any, beside: Any) -> None:
        """Compare a step with that of the environment without the component."""
        same = found[2:4] == beside[2:4] and np.array_equal(found[0][self.others], beside[0])
        terms = found[4]["reward_terms"][self.usual]
        self._demand(
            same and np.array_equal(terms, beside[4]["reward_terms"]),
            "changes what it may only read: without it the same actions lead to something else",
        )

    def _look(self, observation: NDArray[np.float32], info: dict[str, Any]) -> None:
        """Check what is shown and earned at a moment."""
        if self.term is not None:
            earned = float(info["reward_terms"][self.term])
            self._demand(bool(np.isfinite(earned)), f"is {earned}; expected a finite number")
            return
        assert self.part is not None
        shown = observation[self.place]
        looks = [self._again(fill)[self.place] for fill in (np.nan, 0.25)]
        for k, (name, _) in enumerate(self.part.features):
            one, other = (float(look[k]) for look in looks)
            number, value = f"number {k}, {name!r},", float(shown[k])
            self._demand(
                not (np.isnan(one) and other == 0.25 != value), f"does not write {number} every time"
            )
            self._demand(bool(np.isfinite(value)), f"writes {value} as {number} expected a finite number")
            within = np.float32(self.part.low) <= shown[k] <= np.float32(self.part.high)
            bounds = f"from {self.part.low:g} to {self.part.high:g}"
            self._demand(bool(within), f"writes {value:g} as {number} outside of its bounds, {bounds}")
            self._demand(
                one == other == value,
                f"writes another {number} when looked at again; it must remember nothing",
            )
        self._hidden(shown)

    def _again(self, fill: float) -> NDArray[np.float32]:
        """Return the observation written anew over memory that holds something else."""
        episodes = self.env.episodes
        episodes.observations[0] = fill
        todo = int(episodes.todo[0])
        episodes.look(np.ones(1, bool))
        episodes.todo[0] = todo
        return episodes.observations[0].copy()

    def _hidden(self, shown: NDArray[np.float32]) -> None:
        """Check that a part shows the same where true lengths and the future are others."""
        if "true_length" in self.env.config.information:
            return
        block = self.env.episodes.slots[0].block
        source, kept = block["workload"], block["workload"].copy()
        left = block["requests"]["status"][: len(source)] != FINISHED
        to_come = np.arange(len(source)) >= int(block["tracker"][0]["next_arrival"])
        source["output_len"][left] += 7
        for column in ("arrival_time", "prompt_len"):
            source[column][to_come] += 3
        other = self._again(0.25)[self.place]
        source[:] = kept
        self._again(0.25)
        self._demand(
            np.array_equal(other, shown),
            "shows what nobody may know: true lengths, or requests that have not arrived",
        )

    def _equal(self, one: Any, other: Any, what: str) -> None:
        for step, (a, b) in enumerate(zip(one[1], other[1], strict=True)):
            self.when = f"after {step} random steps with action {self.env.config.action!r}"
            same = np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])
            self._demand(same, f"gives something else {what}")


__all__ = ["check_component"]
