"""Configurations of REINFORCE with groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kvgym.agents.reinforce.export import feature_places
from kvgym.agents.runs.evaluation import EvaluatedConfig, EvaluationConfig
from kvgym.agents.runs.limits import MAX_COUNT, MAX_LAYERS, MAX_STEPS, MAX_UNITS
from kvgym.envs.scheduling.observations import SYSTEM_FEATURES
from kvgym.errors import ConfigError, shown


class ReinforceConfig(EvaluatedConfig):
    """A repeatable run of REINFORCE: JSON-able and frozen; unknown keys are errors.

    Attributes:
        algorithm: ``"reinforce"``.
        env: environment arguments, see :class:`~kvgym.envs.scheduling.config.EnvConfig`; the action is ``priority``.
        inputs: what the network observes: features such as ``"asked.prompt"``, or whole parts such as ``"asked"``.
            Parts are ``system`` and those after the windows, see the page of the environment.
        hidden: units of the hidden layers, tanh.
        group_size: environments on equal requests, an even number: every second one has the noise of the one
            before it with the opposite sign. The baseline of a return is the mean of the others of its group.
        groups: groups of an update; each has other requests.
        fit: passes over the requests of one update, before the first, in which the network is fitted to their output
            lengths: the agent then starts from a prediction. 0 = from the same number for all.
        updates: length of the run.
        learning_rate: of Adam; it falls linearly to 0.
        noise: standard deviation of the numbers around the network's output, in typical changes of an action: for
            ``priority`` factors of two.
        evaluation: periodic evaluation, without noise.
    """

    LENGTH: ClassVar[str] = "updates"
    UNIT: ClassVar[str] = "update"
    DEFAULTS: ClassVar[Mapping[str, Any]] = {"action": "priority"}

    algorithm: Literal["reinforce"] = "reinforce"
    inputs: tuple[str, ...] = Field(default=("asked", "lengths"), min_length=1)
    hidden: tuple[Annotated[int, Field(ge=1, le=MAX_UNITS)], ...] = Field(
        default=(16,), min_length=1, max_length=MAX_LAYERS
    )
    group_size: int = Field(default=2, ge=2, le=MAX_COUNT, multiple_of=2)
    groups: int = Field(default=32, ge=1, le=MAX_COUNT)
    fit: int = Field(default=0, ge=0, le=10_000)
    updates: int = Field(default=100, ge=1, le=MAX_STEPS)
    learning_rate: float = Field(default=0.05, gt=0, le=10.0)
    noise: float = Field(default=1.0, gt=0, le=100.0)
    evaluation: EvaluationConfig = EvaluationConfig(interval=20, seeds=32)

    def check(self) -> ReinforceConfig:
        """Check everything beyond types, and return the configuration.

        Raises:
            ConfigError: a value is wrong; the message has the valid ones.
        """
        config, what = self.env_config(), f"training {shown(self.name)}"
        if config.action != "priority" or config.ask_every:
            raise ConfigError(
                f"{what}: reinforce trains one decision per request, action priority with ask_every 0; got "
                f"{shown(config.action)}, ask_every {config.ask_every}"
            )
        if self.fit and config.answer != "predicted_length":
            raise ConfigError(
                f"{what}: fit = {self.fit} fits output lengths, so env.answer must be predicted_length; got "
                f"{shown(config.answer)}; set fit to 0"
            )
        if (config.observation, config.unit_actions) != ("flat", True):
            raise ConfigError(f"{what}: reinforce needs observation 'flat' and unit_actions true")
        self.places()
        self.check_evaluation(config, "features", "information")
        return self

    def places(self) -> NDArray[np.int64]:
        """Return the positions of the network's inputs in an observation, int64 (number of inputs,).

        Raises:
            ConfigError: a name is unknown; the message has the valid ones.
        """
        known = feature_places(self.env_config(), {"system": SYSTEM_FEATURES})
        if unknown := [name for name in self.inputs if name not in known]:
            raise ConfigError(
                f"training {shown(self.name)}: input {shown(unknown[0])}; expected a part "
                f"({', '.join(name for name in known if '.' not in name)}) or a "
                "feature, such as asked.prompt"
            )
        return np.array(list(dict.fromkeys(place for name in self.inputs for place in known[name])))
