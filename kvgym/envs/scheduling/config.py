"""Configuration of the environments: JSON-able keyword arguments, validated once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvgym.compiling.checked_build import guarded
from kvgym.compiling.kernel import Kernel, uncompiled
from kvgym.compiling.pointers import function_handle
from kvgym.envs.scheduling.actions.catalogue import ACTIONS, action_kind
from kvgym.envs.scheduling.actions.kind import (
    APPLY_SIGNATURE,
    ASKS_SIGNATURE,
    BOUNDARY_SIGNATURE,
    FEATURES_SIGNATURE,
    MASK_SIGNATURE,
    ActionKind,
)
from kvgym.envs.scheduling.actions.reading import action_bounds, is_whole
from kvgym.envs.scheduling.components import (
    OBSERVATIONS,
    PART_SIGNATURE,
    REWARDS,
    TERM_SIGNATURE,
    ObservationPart,
    chosen_parts,
    chosen_terms,
)
from kvgym.envs.scheduling.drawing import episode_horizon
from kvgym.envs.scheduling.observations import active_features, queue_features, standard_size
from kvgym.envs.scheduling.revealed import FEATURES, INFORMATION, show_bits
from kvgym.envs.scheduling.tables import (
    ORDER_ATTAINED,
    ORDER_PREDICTED,
    ORDER_PROMPT,
    ORDER_QUEUE,
    ORDER_RANK,
    ORDER_VOLUME,
    OVERFLOW_CLEAR,
    OVERFLOW_LIFO,
    REWARD_TERMS,
    SETTINGS,
)
from kvgym.errors import ConfigError, UnknownNameError, field_errors, shown
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.experiments.scenario_options import OVERLOAD_SCENARIO
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE, BatchTimeModel, params_of
from kvgym.simulator.policy_interface import POLICY_SIGNATURE
from kvgym.simulator.system import System
from kvgym.utils.reading import Description
from kvgym.workloads.workload import Workload, describe_workload

ORDERS = {
    "queue": ORDER_QUEUE,
    "predicted": ORDER_PREDICTED,
    "prompt": ORDER_PROMPT,
    "volume": ORDER_VOLUME,
    "attained": ORDER_ATTAINED,
    "rank": ORDER_RANK,
}
OVERFLOWS = {"lifo": OVERFLOW_LIFO, "clear": OVERFLOW_CLEAR}

M = TypeVar("M", bound=BaseModel)


def validated(cls: type[M], arguments: Mapping[str, Any]) -> M:
    """Return a model built from keyword arguments.

    Raises:
        ConfigError: an argument is invalid; the error names it and the valid ones.
    """
    try:
        return cls.model_validate(dict(arguments))
    except ValidationError as error:
        wrong = field_errors(error, cls, arguments)
        details = "\n".join([*wrong, f"arguments: {', '.join(cls.model_fields)}"])
        raise ConfigError(f"environment argument {wrong[0]}", details) from None


def check_names(kind: str, given: Iterable[str], valid: Iterable[str]) -> None:
    """Check that all given names are valid.

    Raises:
        UnknownNameError: for the first invalid name.
    """
    unknown = sorted(set(given) - set(valid))
    if unknown:
        raise UnknownNameError(kind, unknown[0], valid)


def _handle_of(function: Kernel, signature: Any, compiled: bool) -> tuple[int, int]:
    """Return the two numbers by which stepping functions call a kernel."""
    found = function.compiled if compiled else uncompiled(function)
    return function_handle(found, signature, compiled=compiled)


def use_batch_time(
    settings: np.ndarray, batch_time: BatchTimeModel, *, compiled: bool = True
) -> NDArray[np.float64]:
    """Store a batch-time model in the settings of the stepping functions.

    Args:
        settings: dtype SETTINGS, shape (1,).
        batch_time: the model.
        compiled: False for uncompiled stepping functions.

    Returns:
        The model's parameters, float64; the caller must keep them alive.
    """
    params = guarded(params_of(batch_time))
    settings["batch_time_function"] = _handle_of(batch_time.kernel, BATCH_TIME_SIGNATURE, compiled)
    settings["batch_params"] = params.ctypes.data, params.size
    return params


def use_action_bounds(settings: np.ndarray, config: EnvConfig) -> NDArray[np.float64]:
    """Store the bounds of single actions in the settings, so that the stepping functions refuse others.

    With ``unit_actions`` these functions also convert actions to the units of the kind.

    Returns:
        The bounds of the action space and those of the kind's own space, see :func:`action_bounds`; the caller must
        keep them alive.
    """
    space = config.action_space
    given, own = action_bounds(space), action_bounds(config.kind.space(config))
    bounds = guarded(np.concatenate([given, own]))
    settings["action_bounds"], settings["whole_actions"] = bounds.ctypes.data, is_whole(space)
    settings["action_range"] = bounds.ctypes.data + given.nbytes if config.unit_actions else 0
    return bounds


def _is_bounded_box(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and space.is_bounded() and not is_whole(space)


class EnvConfig(Description):
    """Keyword arguments of every environment id that schedules one worker.

    A kind of action may have its own defaults, :attr:`~kvgym.envs.scheduling.actions.kind.ActionKind.defaults`.

    Attributes:
        action: kind of action, see :mod:`~kvgym.envs.scheduling.actions.catalogue`; set by the id.
        scenario: name or YAML file of the base scenario; the fields below override it.
        hardware: name or file of calibrated hardware.
        engine: engine on that hardware: its name, ``"none"``, or its figures.
        batch_time: description of a batch-time model, or options of the hardware's model.
        kv_capacity: KV memory, tokens.
        block_size: tokens of a memory block.
        workload: preset, trace file or description.
        num_requests: requests per episode.
        rate: requests per second.
        load: range (low, high) of a factor by which each episode's arrival times are divided, drawn log-uniformly
            from the workload seed; (1, 1) changes nothing.
        system: engine settings that override the scenario's (``first_token``, ``requeue``, ...).
        observation: ``"flat"`` Box, ``"dict"`` of Boxes, or ``"rllib"``: dict of observations and mask.
        queue_window: Q, number of waiting requests that are observed and can be chosen.
        active_window: W, number of active requests that are observed and can be chosen, latest first.
        queue_order: order of the queue window. ``"queue"``; ``"predicted"`` or ``"prompt"``, shortest first;
            ``"volume"``, smallest predicted memory use first (KV tokens times iterations, o (s + o / 2));
            ``"attained"``, fewest tokens delivered before an eviction first (below 64, 64, 128, 256, ...), then the
            shortest prompt; ``"rank"``, by the rule's score, only for rank and rank_scores.
        epochs: ``"iteration"``, one step per iteration; ``"decision"`` skips iterations that fit and in which no
            request can be admitted.
        overflow: how to evict when the next iteration does not fit: ``"lifo"`` or ``"clear"``.
        information: information about requests that is revealed, subset of
            :data:`kvgym.envs.scheduling.revealed.INFORMATION`; observations contain all of it. ``"features"`` are the
            feature columns of requests, ``"renewed_length"`` predictions that are renewed while they decode.
        uses: subset of ``information`` that requests need not carry, while the rest must be there. Where it is
            missing its features are 0.
        features: further features, subset of :data:`kvgym.envs.scheduling.revealed.FEATURES`: ``"priority"``;
            ``"saved_duration"``, how much evicting an active request shortens the next batch; ``"prefix_cache"``,
            what the prefix cache holds, what waiting requests find and share, and what evictions free; ``"deadline"``,
            the time left to the target of the whole request, with ``"slo"`` in information; ``"rank"``, the rule's
            view of each request, only for rank and rank_scores; ``"class_lengths"``, of the ended outputs of the asked
            request's class, only for priority with ``"class"`` in information. Registered parts come last, see
            :data:`kvgym.envs.scheduling.components.OBSERVATIONS`.
        reward: weight of each reward term, see :data:`kvgym.envs.scheduling.tables.REWARD_TERMS` and the registered
            ones in :data:`kvgym.envs.scheduling.components.REWARDS`.
        reward_scale: terms are divided by this; None = requests per episode, so that the undiscounted return
            of the latency term is minus the mean end-to-end latency in seconds.
        reward_reference: built-in policy; its rewards on the same requests are subtracted, and the return is the
            relative improvement over it, see :mod:`kvgym.envs.scheduling.reward_reference`.
        hold: iterations for which an action stays in force, for kinds that steer a rule (knobs, rank, rank_scores).
        knobs: allowed levels of each knob, e.g. ``{"quantum": [0]}``; omitted knobs allow all levels. See
            :data:`kvgym.envs.scheduling.actions.knobs.LEVELS`.
        must_admit: mask the choice of admitting nothing while the worker is empty and the first of the queue window
            fits, so that an agent cannot stay idle for ever; with flags, the first one must be set. For admit_count,
            admit_evict and flags; knobs always mask it.
        unit_actions: actions are float32 numbers in [-1, 1], mapped linearly to the range of each number; for kinds
            with a Box.
        weights: weights of the scheduler ``ranked`` under rank_scores; omitted ones have its defaults.
        scheduler: scheduler below the agent, with hyperparameters as in ``"mc_sf:alpha=0.1"``; for priority and keep.
        answer: what the number of priority is to the scheduler below: ``"predicted_length"``; ``"optional_length"``,
            the same, or no opinion; ``"score"``, an addition to its score of the request; or ``"class"``, the class
            that it observes.
        ask_every: output tokens after which a request is asked for again, and at its first one; 0 = only when it
            arrives. For priority.
        lifetimes: finite times to live of KV, seconds, in ascending order; for keep.
        horizon: seconds after which an episode is truncated; None = the scenario's, else ten times the nominal
            arrival span plus 600 s.
        stall_limit: consecutive decisions without a new token after which an episode is truncated.
        token_scale: features of requests that are numbers of tokens: ``"capacity"``, x / capacity or x / (x + 64);
            ``"log"``, log2(1 + x) / 17, and classes in ``information`` are observed one-hot. The part ``asked`` of
            priority is always so.
        time_scale: scale of features that are times, seconds: x is observed as x / (x + scale).
        idle_time: longest wait of a worker with nothing to run, seconds; None = the duration of a smallest batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    action: str = "admit_count"
    scenario: str = OVERLOAD_SCENARIO
    hardware: str | None = None
    engine: str | dict[str, Any] | None = None
    batch_time: dict[str, Any] | None = None
    kv_capacity: int | None = Field(default=None, ge=2)
    block_size: int | None = Field(default=None, ge=1)
    workload: str | dict[str, Any] | None = None
    num_requests: int | None = Field(default=None, ge=1)
    rate: float | None = Field(default=None, gt=0)
    load: tuple[float, float] = (1.0, 1.0)
    system: dict[str, Any] = Field(default_factory=dict)
    observation: Literal["flat", "dict", "rllib"] = "flat"
    queue_window: int = Field(default=16, ge=1, le=1024)
    active_window: int = Field(default=16, ge=1, le=1024)
    queue_order: Literal["queue", "predicted", "prompt", "volume", "attained", "rank"] = "queue"
    epochs: Literal["iteration", "decision"] = "iteration"
    overflow: Literal["lifo", "clear"] = "lifo"
    information: tuple[str, ...] = ("predicted_length",)
    uses: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    reward: dict[str, float] = Field(default_factory=lambda: {"latency": 1.0})
    reward_scale: float | None = Field(default=None, gt=0)
    reward_reference: str | None = None
    hold: int = Field(default=8, ge=1)
    knobs: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    must_admit: bool = False
    unit_actions: bool = False
    weights: dict[str, float] = Field(default_factory=dict)
    scheduler: str | None = None
    answer: Literal["predicted_length", "optional_length", "score", "class"] | None = None
    ask_every: int = Field(default=0, ge=0)
    lifetimes: tuple[float, ...] = ()
    horizon: float | None = Field(default=None, gt=0)
    stall_limit: int = Field(default=2000, ge=1)
    token_scale: Literal["capacity", "log"] = "capacity"
    time_scale: float = Field(default=10.0, gt=0)
    idle_time: float | None = Field(default=None, gt=0)

    @classmethod
    def of(cls, **arguments: Any) -> EnvConfig:
        """Validate keyword arguments; a kind of action may have its own defaults.

        Raises:
            ConfigError: an argument is invalid; the error names it and the valid ones.
        """
        action = arguments.get("action", cls.model_fields["action"].default)
        if isinstance(action, str) and action in ACTIONS:
            arguments = {**action_kind(action).defaults, **arguments}
        config = validated(cls, arguments)
        if config.action not in ACTIONS:
            raise ConfigError(
                f"environment argument action = {shown(config.action)}; valid: {', '.join(map(shown, ACTIONS))}"
            )
        check_names("information", config.information, INFORMATION)
        own = config.kind.observed_with.keys() - set(INFORMATION)
        check_names("feature", set(config.features) - own, (*FEATURES, *OBSERVATIONS))
        if missing := sorted(set(config.uses) - set(config.information)):
            raise ConfigError(f"uses has {shown(missing[0])}, which information lacks; add it there as well")
        check_names("reward term", config.reward, (*REWARD_TERMS, *REWARDS))
        chosen_parts(config.features)
        chosen_terms(list(config.reward))
        if config.queue_order in ("predicted", "volume") and "predicted_length" not in config.information:
            raise ConfigError(
                f"queue_order {shown(config.queue_order)} needs 'predicted_length' in information"
            )
        if "deadline" in config.features and "slo" not in config.information:
            raise ConfigError("feature 'deadline' needs 'slo' in information")
        if config.kind.write_features is None:
            for name, given in (
                ("feature 'rank'", config.features),
                ("queue_order 'rank'", [config.queue_order]),
            ):
                if "rank" in given:
                    raise ConfigError(
                        f"{name} needs a kind of action that steers ranked: rank or rank_scores"
                    )
        config.kind.check(config)
        if config.must_admit and not config.kind.forces_admission:
            raise ConfigError(
                f"must_admit is for actions that choose requests, such as admit_count and flags, not for "
                f"{shown(config.action)}; leave it out"
            )
        if config.unit_actions and not _is_bounded_box(config.kind.space(config)):
            raise ConfigError(
                f"unit_actions is for actions of real numbers with bounds, such as rank, not for "
                f"{shown(config.action)}; leave it out"
            )
        if not 0 < config.load[0] <= config.load[1]:
            raise ConfigError(f"load = {list(config.load)}; expected 0 < low ≤ high, multiples of the rate")
        return config

    @property
    def needed(self) -> frozenset[str]:
        """The information that requests must carry: all but ``uses``."""
        return frozenset(self.information) - set(self.uses)

    @property
    def reward_terms(self) -> tuple[str, ...]:
        """Names of the reward terms: the standard ones, then the registered ones in ``reward``."""
        return (*REWARD_TERMS, *(term.name for term in chosen_terms(list(self.reward))))

    @property
    def kind(self) -> ActionKind:
        """The kind of action."""
        return action_kind(self.action)

    @property
    def parts(self) -> tuple[ObservationPart, ...]:
        """Parts of the observation after the standard features: those of the kind, then those in ``features``."""
        names = {*self.information, *self.features}
        shown = (part for name, part in self.kind.observed_with.items() if name in names)
        return (*self.kind.observed, *shown, *chosen_parts(self.features))

    @property
    def action_space(self) -> spaces.Space[Any]:
        """The space of single actions."""
        own = self.kind.space(self)
        return spaces.Box(-1.0, 1.0, own.shape, np.float32) if self.unit_actions else own

    def as_actions(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Convert actions, shape (..., a), from the units of the kind to those of :attr:`action_space`."""
        if not self.unit_actions:
            return numbers
        low, high = action_bounds(self.kind.space(self)).reshape(2, -1)
        centre, half = (low + high) / 2, (high - low) / 2
        return np.clip((numbers - centre) / np.where(half > 0, half, 1.0), -1.0, 1.0)

    def usual_action(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return the typical range of an action, see :meth:`ActionKind.usual`, in the units of the action space."""
        usual = self.kind.usual(self)
        if usual is None:
            return None
        centre, change = usual
        return self.as_actions(centre), self.as_actions(centre + change) - self.as_actions(centre)

    def make_scenario(self) -> Scenario:
        """Return the scenario with the overrides of this configuration."""
        base = load_scenario(self.scenario)
        changes: dict[str, Any] = {"hardware": self.hardware, "kv_capacity": self.kv_capacity}
        if self.engine is not None:
            changes["engine"] = self.engine
        if self.batch_time is not None:
            changes["batch_time"] = self.batch_time
        if self.hardware is not None and self.batch_time is None and "kind" in base.batch_time:
            changes["batch_time"] = {}
        rules = self.system if self.block_size is None else {**self.system, "block_size": self.block_size}
        if rules:
            changes["system"] = {**base.system.model_dump(), **rules}
        scenario = base.override(**changes)
        if self.batch_time is not None and "kind" in self.batch_time:
            capacity = self.kv_capacity or base.make_system().kv_capacity
            scenario = scenario.model_copy(update={"hardware": None, "kv_capacity": capacity})
        described = describe_workload(self.workload if self.workload is not None else scenario.workload)
        if self.num_requests is not None:
            described.pop("duration", None)
            described["num_requests"] = self.num_requests
        if self.rate is not None:
            described["rate"] = self.rate
        return scenario.override(workload=described)

    def make_settings(
        self, batch_time: BatchTimeModel, episode_requests: int, mean_rate: float, *, compiled: bool = True
    ) -> np.ndarray:
        """Return the settings the stepping functions read, dtype SETTINGS, shape (1,).

        Args:
            batch_time: the model that scales derive from; :func:`use_batch_time` sets the one in use.
            episode_requests: requests per episode.
            mean_rate: of arrivals, 1/s.
            compiled: False for uncompiled stepping functions.
        """
        settings = guarded(np.zeros(1, SETTINGS))
        s = settings[0]
        smallest = float(batch_time(num_decodes=1, decode_context=1))
        kind = self.kind
        s["mask_function"] = _handle_of(kind.write_mask, MASK_SIGNATURE, compiled)
        s["apply_function"] = _handle_of(kind.apply, APPLY_SIGNATURE, compiled)
        if kind.at_boundary is not None:
            s["boundary_function"] = _handle_of(kind.at_boundary, BOUNDARY_SIGNATURE, compiled)
        if kind.write_features is not None and "rank" in self.features:
            s["features_function"] = _handle_of(kind.write_features, FEATURES_SIGNATURE, compiled)
        if kind.asks is not None:
            s["asks_function"] = _handle_of(kind.asks, ASKS_SIGNATURE, compiled)
        scheduler = kind.scheduler(self)
        if scheduler is not None:
            s["scheduler_function"] = _handle_of(scheduler, POLICY_SIGNATURE, compiled)
        options = kind.options(self)
        s["options"][: len(options)] = options
        s["order"], s["overflow"] = ORDERS[self.queue_order], OVERFLOWS[self.overflow]
        s["queue_window"], s["active_window"] = self.queue_window, self.active_window
        s["queue_features"], s["active_features"] = len(queue_features(self)), len(active_features(self))
        s["show"] = show_bits(self)
        s["must_admit"] = self.must_admit
        s["skip"], s["hold"] = self.epochs == "decision", self.hold if kind.holds else 0
        s["idle_time"] = self.idle_time if self.idle_time is not None else max(smallest, 1e-3)
        s["time_scale"] = self.time_scale
        s["duration_scale"] = max(smallest, 1e-6)
        s["rate_scale"] = mean_rate if np.isfinite(mean_rate) and mean_rate > 0 else 1.0
        s["rate_memory"] = self.time_scale
        s["reward_scale"] = self.reward_scale if self.reward_scale is not None else episode_requests
        s["weights"] = [self.reward.get(name, 0.0) for name in REWARD_TERMS]
        terms, parts = chosen_terms(list(self.reward)), self.parts
        s["num_terms"], s["num_parts"], s["usual_size"] = len(terms), len(parts), standard_size(self)
        for k, term in enumerate(terms):
            s["term_functions"][2 * k : 2 * k + 2] = _handle_of(term.earn, TERM_SIGNATURE, compiled)
            s["term_memory"][k], s["term_weights"][k] = term.memory, self.reward[term.name]
        for k, part in enumerate(parts):
            s["part_functions"][2 * k : 2 * k + 2] = _handle_of(part.write, PART_SIGNATURE, compiled)
            s["part_sizes"][k] = len(part.features)
        return settings

    def make_system(self, scenario: Scenario, workload: Workload, episode_requests: int) -> System:
        """Return the system of the episodes, with a horizon and a stall limit so that every episode ends."""
        system = scenario.make_system()
        if system.workers:
            raise ConfigError(
                f"scenario {shown(scenario.name)} is a cluster; this environment schedules one worker; "
                "kvgym/Route-v0 routes requests between workers, and kvgym/Scale-v0 scales a fleet"
            )
        for name in ("speculation", "host_memory"):
            if getattr(system, name) is not None:
                raise ConfigError(
                    f"environments do not have {name}; leave it out of scenario {shown(scenario.name)}"
                )
        self.kind.check_system(system)
        horizon = episode_horizon(self.horizon, system, workload, episode_requests)
        return replace(system, horizon=horizon, stall_limit=self.stall_limit)
