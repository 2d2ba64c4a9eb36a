"""The protocol of action kinds.

A kind is a class with a space and three compiled functions, which open an environment's tables with
``e = open_environment(where)``:

- ``write_mask(where, mask)`` writes which choices are possible now;
- ``apply(where, action)`` adds an action to the decision being composed and returns MORE, or COMPLETE if the worker
  can carry it out; no time passes before that;
- ``encode(where, decision, done, action, report)``, optional, translates a decision to actions, see
  :mod:`~.expressing`.

A kind that is asked only now and then has ``asks(where)``, which returns 1 if the agent is asked at this boundary. At
the others ``apply`` is called with the last action and completes the decision without one.

A kind that steers a rule with memory has :meth:`ActionKind.policy_memory`; its functions open that memory with
``open_rule(where)``. It also has ``at_boundary(where)``, called once at every iteration boundary before the decision.
So the rule observes every boundary, even if a step of the environment spans several.
``write_features(where, observation)`` writes the rule's features, see
:data:`kvgym.envs.scheduling.revealed.RULE_FEATURES`.

A choice outside the mask adds nothing to the decision and is counted in ``e.episode.num_ignored``. Every action must
lead to a valid decision: the engine repairs nothing and ends with an error.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces
from numba import types
from numpy.typing import NDArray

from kvgym.compiling.kernel import Kernel, kernel
from kvgym.envs.scheduling.components import ObservationPart
from kvgym.envs.scheduling.opening import WHERE
from kvgym.errors import ConfigError, shown
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO
from kvgym.policies.policy import SystemInfo
from kvgym.simulator.policy_interface import POLICY_SIGNATURE, PolicyMemory
from kvgym.simulator.system import System
from kvgym.utils.arguments import explained

MORE, COMPLETE = 0, 1
"""Results of ``apply`` and ``encode``: whether the decision needs further actions."""

MASK_SIGNATURE = types.void(WHERE, types.uint8[::1])
APPLY_SIGNATURE = types.int64(WHERE, types.float64[::1])
BOUNDARY_SIGNATURE = types.void(WHERE)
FEATURES_SIGNATURE = types.void(WHERE, types.float32[::1])
ASKS_SIGNATURE = types.int64(WHERE)
ENCODE_SIGNATURE = types.int64(
    WHERE, POLICY_SIGNATURE.args[1], types.int64, types.float64[::1], types.int64[::1]
)


@explained
def mask_kernel(function: Callable[..., None]) -> Kernel:
    """Make a kernel ``(where, mask: uint8 (K,)) -> None``."""
    return kernel(MASK_SIGNATURE, "action")(function)


@explained
def apply_kernel(function: Callable[..., int]) -> Kernel:
    """Make a kernel ``(where, action: float64 (a,)) -> MORE or COMPLETE``."""
    return kernel(APPLY_SIGNATURE, "action")(function)


@explained
def boundary_kernel(function: Callable[..., None]) -> Kernel:
    """Make a kernel ``(where) -> None``, called at every iteration boundary before the decision."""
    return kernel(BOUNDARY_SIGNATURE, "action")(function)


@explained
def features_kernel(function: Callable[..., None]) -> Kernel:
    """Make a kernel ``(where, observation: float32 (D,)) -> None`` that adds features to an observation."""
    return kernel(FEATURES_SIGNATURE, "action")(function)


@explained
def asks_kernel(function: Callable[..., int]) -> Kernel:
    """Make a kernel ``(where) -> 1 or 0``, whether the agent is asked at this boundary."""
    return kernel(ASKS_SIGNATURE, "action")(function)


@explained
def encode_kernel(function: Callable[..., int]) -> Kernel:
    """Make a kernel ``(where, decision, done, action: float64 (a,), report: int64 (5,)) -> int``.

    It writes the action that follows ``done`` earlier ones of the decision and returns MORE or COMPLETE, or returns
    one of the reasons in :mod:`~kvgym.envs.scheduling.actions.expressing`.
    """
    return kernel(ENCODE_SIGNATURE, "action")(function)


CHOOSING_DEFAULTS: Mapping[str, Any] = {
    "scenario": DEFAULT_SCENARIO,
    "queue_window": 256,
    "active_window": 192,
    "token_scale": "log",
}
"""Defaults of kinds that choose requests: the scenario of ``kvgym compare``, and windows that hold all its requests.

In that rush of 2,000 requests, at most 157 run and 211 wait under ``fcfs`` (seeds 0 to 7).
"""


class ActionConfig(Protocol):
    """The options of an environment that kinds use."""

    @property
    def queue_window(self) -> int:
        """Q, positions of the queue window."""
        ...

    @property
    def active_window(self) -> int:
        """W, positions of the active window."""
        ...

    @property
    def knobs(self) -> Mapping[str, tuple[int, ...]]:
        """Allowed levels of each knob."""
        ...

    @property
    def weights(self) -> Mapping[str, float]:
        """Weights of the rule that scores are added to."""
        ...

    @property
    def scheduler(self) -> str | None:
        """The scheduler below, with hyperparameters."""
        ...

    @property
    def answer(self) -> str | None:
        """What the agent's number is to the scheduler below."""
        ...

    @property
    def needed(self) -> frozenset[str]:
        """Information that requests must carry."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the optional features."""
        ...

    @property
    def ask_every(self) -> int:
        """Output tokens after which the agent is asked again."""
        ...

    @property
    def lifetimes(self) -> tuple[float, ...]:
        """Finite times to live of KV, seconds."""
        ...

    @property
    def information(self) -> tuple[str, ...]:
        """Information revealed about requests."""
        ...


OWNERS = {
    "knobs": "'knobs'",
    "weights": "'rank_scores'",
    "scheduler": "'priority' or 'keep'",
    "answer": "'priority'",
    "ask_every": "'priority'",
    "lifetimes": "'keep'",
}
"""Options of environments that belong to single kinds of action."""


class ActionPart(NamedTuple):
    """Meaning of some values of a Discrete action, or of some numbers of any other action.

    Attributes:
        place: the values or the indices of the numbers, e.g. ``"0 … 15"``.
        meaning: what they do.
        unit: unit of the number, "–" for none.
        low: its smallest value.
        high: its largest value.
    """

    place: str
    meaning: str
    unit: str
    low: float
    high: float


class ActionKind(ABC):
    """A kind of action.

    Attributes:
        name: value of the environment argument ``action``.
        holds: an action stays in force for ``hold`` iterations and is applied at each; else for one decision.
        plans: requests may process parts of their prompts, or pause.
        forces_admission: its mask follows ``must_admit``, see :class:`~kvgym.envs.scheduling.config.EnvConfig`.
        defaults: defaults of environment arguments that differ for this kind.
        write_mask: see the module.
        apply: see the module.
        encode: see the module; None if actions cannot express single decisions.
        at_boundary: see the module; None if there is nothing to do.
        asks: see the module; None if the agent is asked at every boundary, or as ``epochs`` says.
        observed: parts of the observation that belong to the kind, after the standard ones.
        observed_with: further ones, by the information or the feature that adds them.
        keeps: it decides how long the prefix cache keeps KV.
        follows_turns: it observes the turns of sessions, where the requests have any.
        own_options: arguments of the environment that are only for some kinds, and for this one, see
            :data:`OWNERS`.
        write_features: see the module; None if there is nothing to add.
    """

    name: ClassVar[str]
    holds: ClassVar[bool] = False
    plans: ClassVar[bool] = False
    forces_admission: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, Any]] = {}
    write_mask: ClassVar[Kernel]
    apply: ClassVar[Kernel]
    encode: ClassVar[Kernel | None] = None
    at_boundary: ClassVar[Kernel | None] = None
    asks: ClassVar[Kernel | None] = None
    observed: ClassVar[tuple[ObservationPart, ...]] = ()
    observed_with: ClassVar[Mapping[str, ObservationPart]] = {}
    keeps: ClassVar[bool] = False
    follows_turns: ClassVar[bool] = False
    own_options: ClassVar[tuple[str, ...]] = ()
    write_features: ClassVar[Kernel | None] = None

    @abstractmethod
    def space(self, config: ActionConfig) -> spaces.Space[Any]:
        """Return the space of single actions, a Box in the units of the kind."""

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return the meaning of the actions, for tables; by default one row with the class's first paragraph."""
        space, meaning = self.space(config), str(inspect.getdoc(type(self))).partition("\n\n")[0]
        if isinstance(space, spaces.Discrete):
            last = int(space.start + space.n - 1)
            return (ActionPart(f"{space.start} … {last}", meaning, "–", int(space.start), last),)
        low, high = (
            (float(np.min(space.low)), float(np.max(space.high))) if isinstance(space, spaces.Box) else (0, 1)
        )
        if isinstance(space, spaces.MultiDiscrete):
            high = int(np.max(space.nvec)) - 1
        return (ActionPart(f"0 … {self.size(config) - 1}", meaning, "–", low, high),)

    @abstractmethod
    def mask_size(self, config: ActionConfig) -> int:
        """Return K, the length of the mask, in sb3-contrib's layout if that has one for the space."""

    @abstractmethod
    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> Any:
        """Return an action that admits as much as fits now, for demonstrations; ``mask`` is uint8 (K,)."""

    @abstractmethod
    def idle(self, config: ActionConfig) -> Any:
        """Return the action that admits and evicts nothing and runs the batch."""

    def check(self, config: ActionConfig) -> None:
        """Check the configuration.

        Raises:
            ConfigError: an option does not apply to this kind.
        """
        for option, owners in OWNERS.items():
            if option not in self.own_options and getattr(config, option):
                raise ConfigError(
                    f"argument {option} is for action {owners}, not for {shown(self.name)}; leave it out"
                )

    def check_system(self, system: System) -> None:
        """Check that the agent can act on a system.

        Raises:
            ConfigError: a cache rule of the system would decide too, not only the agent.
        """
        if self.keeps and system.rule.name != "lru":
            raise ConfigError(
                f"cache_rule = {shown(system.cache_rule)}: the agent decides how long KV is kept; set cache_rule to lru"
            )

    def policy_memory(self, config: ActionConfig, system: SystemInfo) -> PolicyMemory | None:
        """Return the initial memory of the rule for an episode, None without a rule.

        Args:
            config: the environment's configuration.
            system: what a policy gets before a run; ``max_requests`` is n, the rows of the request table.
        """
        return None

    def scheduler(self, config: ActionConfig) -> Kernel | None:
        """Return the kernel of the scheduler below, None if the kind has none; its memory is :meth:`policy_memory`."""
        return None

    def num_notes(self, config: ActionConfig) -> int:
        """Return the length of ``e.notes``, the kind's own memory, float64, zero at the beginning of an episode."""
        return 0

    def options(self, config: ActionConfig) -> tuple[float, ...]:
        """Return up to 16 numbers that the compiled functions find in ``e.settings.options``."""
        return ()

    def usual(self, config: ActionConfig) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return the typical range of a Box action, from which agents start; None if there is none.

        Returns:
            The centre and the typical change of each number, both float64 (a,).
        """
        return None

    def size(self, config: ActionConfig) -> int:
        """Return the number of numbers in an action."""
        return max(1, int(np.prod(self.space(config).shape or ())))
