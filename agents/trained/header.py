"""The header of a trained agent's file: everything except its weights."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.observations import active_features, observation_size, queue_features
from kvgym.errors import ConfigError, shown


@dataclass(frozen=True)
class Outputs:
    """Outputs of a network for a kind of action.

    Attributes:
        queue: whether a slots network has a number for each queue row.
        active: the same for active rows.
        rest: name of the layer on the context for all other numbers; "" = none.
        real: whether actions are real numbers made from the outputs; otherwise outputs are logits of choices.
    """

    queue: bool = False
    active: bool = False
    rest: str = ""
    real: bool = False


OUTPUTS: dict[str, Outputs] = {
    "admit_evict": Outputs(queue=True, active=True, rest="run"),
    "admit_count": Outputs(queue=True),
    "flags": Outputs(queue=True, active=True),
    "keep": Outputs(rest="keep"),
    "knobs": Outputs(rest="knobs"),
    "priority": Outputs(rest="priority", real=True),
    "rank": Outputs(rest="weights", real=True),
    "rank_scores": Outputs(queue=True, active=True, real=True),
}
"""Kinds of action that agents are trained for; here, so that files can be checked without environments."""


ALGORITHMS = ("ppo", "maskable_ppo", "recurrent_ppo", "a2c", "dqn", "reinforce", "supervised")
"""Training algorithms of agents in files."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """Everything about a model except its weights.

    Attributes:
        network: ``"mlp"`` or ``"slots"``.
        action: kind of action, such as ``"admit_count"``.
        algorithm: its training algorithm, one of :data:`ALGORITHMS`.
        choices: number of options of each choice an action consists of: one choice for Discrete actions, 2
            options for each flag; none for real numbers.
        centre: of real numbers, the value at network output 0.
        spread: their change per unit of output.
        low: their least values.
        high: their largest values.
        bernoulli: flags have one logit each, not one for each option.
        activation: of an mlp: ``"tanh"`` or ``"relu"``.
        lstm: units of the LSTM before the layers of an mlp; 0 = none, as for all algorithms but ``"recurrent_ppo"``.
        hidden: sizes of the hidden layers of an mlp.
        num_fixed: number of leading entries of an observation that belong to no row.
        queue_window: Q, queue rows, which come next.
        queue_features: numbers per queue row; the first is 1 if the row has a request, else 0.
        active_window: W, active rows, which come last.
        active_features: numbers per active row; the first is 1 if the row has a request, else 0.
        prefix: queue features with prefix sums as further inputs of a slots network.
        row_dim: d of a slots network.
        context_dim: h of a slots network.
        attention: whether the rows of a slots network attend to each other.
        env_arguments: the environment arguments the agent was trained with.
        metadata: further data, JSON-able.
    """

    network: str
    action: str
    algorithm: str
    choices: tuple[int, ...]
    centre: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    bernoulli: bool = False
    activation: str = "tanh"
    lstm: int = 0
    hidden: tuple[int, ...] = ()
    num_fixed: int
    queue_window: int
    queue_features: int
    active_window: int
    active_features: int
    prefix: tuple[int, ...] = ()
    row_dim: int = 0
    context_dim: int = 0
    attention: bool = False
    env_arguments: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def outputs(self) -> Outputs:
        """Outputs of the network."""
        return OUTPUTS[self.action]

    @property
    def observation_size(self) -> int:
        """Length of an observation."""
        rows = self.queue_window * self.queue_features + self.active_window * self.active_features
        return self.num_fixed + rows

    @property
    def num_logits(self) -> int:
        """Number of logits, or of outputs for real numbers."""
        if self.outputs.real:
            return len(self.centre)
        return len(self.choices) if self.bernoulli else sum(self.choices)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every array of weights."""
        layers: dict[str, tuple[int, int]] = {}
        if self.network == "mlp":
            read = self.observation_size
            if self.lstm:
                layers["lstm.input"] = (4 * self.lstm, read)
                layers["lstm.state"] = (4 * self.lstm, self.lstm)
            sizes = (self.lstm or read, *self.hidden, self.num_logits)
            for i in range(len(sizes) - 1):
                layers[f"layer.{i}"] = (sizes[i + 1], sizes[i])
        else:
            d, h, outputs = self.row_dim, self.context_dim, self.outputs
            windows = {
                "queue": (self.queue_features + len(self.prefix), outputs.queue),
                "active": (self.active_features, outputs.active),
            }
            for rows, (num_features, scored) in windows.items():
                layers[f"{rows}.first"], layers[f"{rows}.second"] = (d, num_features), (d, d)
                if scored:
                    layers[f"{rows}.mix"], layers[f"{rows}.out"] = (d, d + h), (1, d)
            if self.attention:
                layers["attention.inputs"], layers["attention.out"] = (3 * d, d), (d, d)
            layers["pool"], layers["summary"] = (h, self.num_fixed + 4 * d), (h, h)
            if outputs.rest:
                of_rows = outputs.queue * self.queue_window + outputs.active * self.active_window
                layers[f"head.{outputs.rest}"] = (self.num_logits - of_rows, h)
            if self.algorithm == "dqn":
                layers["head.base"] = (1, h)
        weights = {f"{name}.weight": shape for name, shape in layers.items()}
        noise = {"log_std": (self.num_logits,)} if self.outputs.real else {}
        return {**weights, **{f"{name}.bias": shape[:1] for name, shape in layers.items()}, **noise}

    def check(self) -> None:
        """Check that names and sizes are possible.

        Raises:
            ConfigError: one is not.
        """
        for name, valid in (
            ("network", ("mlp", "slots")),
            ("action", tuple(OUTPUTS)),
            ("algorithm", ALGORITHMS),
            ("activation", ("tanh", "relu")),
        ):
            if getattr(self, name) not in valid:
                raise ConfigError(
                    f"{name} must be one of {', '.join(valid)}, got {shown(getattr(self, name))}"
                )
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name == "lstm":
                fine = type(value) is int and (value > 0) is (self.algorithm == "recurrent_ppo")
            elif item.name in ("row_dim", "context_dim"):
                fine = type(value) is int and (value > 0 or self.network == "mlp")
            elif item.type == "int":
                fine = type(value) is int and value > 0
            elif item.type == "tuple[int, ...]":
                least = 0 if item.name == "prefix" else 1
                fine = isinstance(value, tuple) and all(type(n) is int and n >= least for n in value)
            elif item.type == "tuple[float, ...]":
                fine = isinstance(value, tuple) and all(type(x) is float and math.isfinite(x) for x in value)
            elif item.type == "dict[str, Any]":
                fine = isinstance(value, dict)
            else:
                fine = isinstance(value, bool if item.type == "bool" else str)
            if not fine:
                raise ConfigError(f"{item.name} must be of type {item.type} and in range, got {shown(value)}")
        if (self.lstm and self.network != "mlp") or (self.attention and self.network != "slots"):
            raise ConfigError(
                f"lstm {self.lstm} and attention {self.attention} do not fit network {self.network}: an mlp may have "
                "an LSTM, a slots network attention"
            )
        self._check_numbers()
        flags = self.action == "flags"
        number = {"flags": self.queue_window + self.active_window, "knobs": max(len(self.choices), 1)}
        expected = 0 if self.outputs.real else number.get(self.action, 1)
        wrong = len(self.choices) != expected or (flags and set(self.choices) != {2})
        if wrong or (self.bernoulli and not flags):
            raise ConfigError(f"choices {self.choices}, bernoulli {self.bernoulli} do not fit {self.action}")
        if any(k >= self.queue_features for k in self.prefix):
            raise ConfigError(f"prefix {self.prefix} exceeds the {self.queue_features} queue features")
        discrete = {
            "admit_evict": self.queue_window + self.active_window + 1,
            "admit_count": self.queue_window + 1,
        }
        if self.action in discrete and self.choices != (discrete[self.action],):
            raise ConfigError(f"choices {self.choices} do not fit {self.action} with these windows")

    def _check_numbers(self) -> None:
        """Check what belongs to real numbers.

        Raises:
            ConfigError: sizes that do not belong together, or bounds or spreads that are none.
        """
        outputs, expected = self.outputs, 0
        if outputs.real:
            of_rows = outputs.queue * self.queue_window + outputs.active * self.active_window
            expected = max(len(self.centre), 1) if outputs.rest else of_rows
        given = {name: getattr(self, name) for name in ("centre", "spread", "low", "high")}
        for name, numbers in given.items():
            if len(numbers) != expected:
                raise ConfigError(
                    f"{name} must have {expected} numbers for {self.action}, got {len(numbers)}"
                )
        for name, fine in (
            ("spread", all(x > 0 for x in self.spread)),
            ("low", all(a < b for a, b in zip(self.low, self.high, strict=True))),
        ):
            if not fine:
                raise ConfigError(
                    f"{name} {given[name]} is impossible: spreads are positive, and low is below high"
                )


def windows_of(config: EnvConfig) -> dict[str, Any]:
    """Return the fields of a header that describe the flat observation of an environment."""
    queue, active = len(queue_features(config)), len(active_features(config))
    return {
        "num_fixed": observation_size(config) - config.queue_window * queue - config.active_window * active,
        "queue_window": config.queue_window,
        "queue_features": queue,
        "active_window": config.active_window,
        "active_features": active,
    }
