"""Training configurations: YAML with validated keys, by name or from a file, with overrides by dotted keys.

The class of a configuration and the learner that it is for follow from its algorithm (:data:`KINDS`). They are loaded
by name, so that PyTorch is imported only by algorithms that use it.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from kvgym.agents.runs.limits import MAX_COUNT, MAX_SEED
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.metrics.catalogue import metric_info
from kvgym.utils.arguments import explained
from kvgym.utils.reading import (
    Description,
    parse_fields,
    parse_yaml,
    read_text,
    shipped_texts,
    validate_fields,
)
from kvgym.workloads.base import TRACE_SUFFIXES

DEFAULT_TRAINING = "default"

SERVICE_TRAINING = "service"
"""Configuration for a scenario of the user, if none is named."""


MOST_DRAWN = 1000
"""Largest number of requests of an episode that are drawn from a trace."""

_OF_SERVICE = (
    "scenario", "hardware", "engine", "batch_time", "kv_capacity", "block_size", "workload", "num_requests", "rate",
    "system", "load", "horizon",
)  # fmt: skip
"""Environment arguments that describe the service."""


class Part(Description):
    """A part of a training configuration: frozen; unknown keys and non-finite numbers are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def known_metric(value: str) -> str:
    """Return the name of a metric with a direction.

    Raises:
        ValueError: it is unknown or has no direction.
    """
    if metric_info(value).lower_is_better is None:
        raise ValueError(f"{value} has no better or worse; choose another metric")
    return value


class TrainingConfig(Part):
    """Fields that all training configurations share.

    Attributes:
        name: id, also of the trained agent.
        summary: one line.
        algorithm: see :data:`KINDS`.
        seed: seed of all random numbers.
        tracker: ``"trackio"`` or ``"wandb"``, which get the curves that TensorBoard gets; None = TensorBoard alone.
        keep_checkpoints: number of latest checkpoints to keep.
    """

    LENGTH: ClassVar[str]
    """Field with the length of the run."""

    UNIT: ClassVar[str]
    """What the length counts, singular: ``"step"``, ``"update"`` or ``"generation"``."""

    name: str
    summary: str = ""
    algorithm: str
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    tracker: Literal["trackio", "wandb"] | None = None
    keep_checkpoints: int = Field(default=2, ge=1, le=MAX_COUNT)

    @property
    def length(self) -> int:
        """Length of the run, in environment steps, updates or generations."""
        return int(getattr(self, self.LENGTH))

    @property
    def units(self) -> str:
        """Plural of :attr:`UNIT`."""
        return f"{self.UNIT}s"

    @property
    @abstractmethod
    def interval(self) -> int:
        """Length between two evaluations."""

    @property
    @abstractmethod
    def figure(self) -> str:
        """Name of the figure that ``train.log`` has of each evaluation."""

    @abstractmethod
    def check(self) -> TrainingConfig:
        """Check everything beyond types, and return the configuration.

        Raises:
            ConfigError: a value is wrong; the message has the valid ones.
        """


@dataclass(frozen=True)
class Kind:
    """A training method.

    Attributes:
        algorithms: values of ``algorithm`` in a configuration.
        config: ``"module:class"`` of the configuration, a :class:`TrainingConfig`.
        learner: ``"module:class"`` of the learner, a :class:`kvgym.agents.runs.learner.Learner`.
    """

    algorithms: tuple[str, ...]
    config: str
    learner: str

    def config_class(self) -> Any:
        """Return the class of the configuration."""
        return _loaded(self.config)

    def learner_class(self) -> Any:
        """Return the class of the learner."""
        return _loaded(self.learner)


def _loaded(place: str) -> Any:
    """Return what ``"module:name"`` names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


KINDS = (
    Kind(
        algorithms=("maskable_ppo", "recurrent_ppo", "ppo", "a2c", "dqn"),
        config="kvgym.agents.sb3.config:TrainConfig",
        learner="kvgym.agents.sb3.learner:SB3Learner",
    ),
    Kind(
        algorithms=("reinforce",),
        config="kvgym.agents.reinforce.config:ReinforceConfig",
        learner="kvgym.agents.reinforce.learner:ReinforceLearner",
    ),
    Kind(
        algorithms=("cma_es", "openai_es"),
        config="kvgym.agents.evolution.config:EvolutionConfig",
        learner="kvgym.agents.evolution.learner:EvolutionLearner",
    ),
)


def kind_of(algorithm: Any) -> Kind:
    """Return the training method of an algorithm.

    Raises:
        UnknownNameError: there is none.
    """
    for kind in KINDS:
        if algorithm in kind.algorithms:
            return kind
    raise UnknownNameError("algorithm", str(algorithm), [name for kind in KINDS for name in kind.algorithms])


def training_names() -> dict[str, str]:
    """Return the shipped training configurations with their summaries, the default one first."""
    names = sorted(shipped_texts("train"), key=lambda name: (name != DEFAULT_TRAINING, name))
    return {name: load_training(name).summary for name in names}


@explained
def load_training(
    name_or_path: str | Path = DEFAULT_TRAINING,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    length: int | None = None,
    scenario: str | None = None,
) -> TrainingConfig:
    """Return a training configuration.

    Args:
        name_or_path: name (``kvgym list training``), or a YAML file.
        overrides: ``"dotted.key=value"`` with the value in YAML, e.g. ``"env.rate=20"`` or
            ``"network.hidden=[64, 64]"``; or a mapping of dotted keys to values.
        length: length of the run in environment steps, updates or generations; None = the configuration's.
        scenario: name or file of a scenario, or a trace file, to train for instead of the configuration's services or
            environments; overrides come after it.

    Raises:
        UnknownNameError: kvgym ships no configuration of that name.
        ConfigError: the file cannot be read, or a key or value is wrong.
    """
    if isinstance(name_or_path, Path) or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        text, name, place = read_text(path, "training file"), path.stem, str(path)
    else:
        texts = shipped_texts("train")
        if name_or_path not in texts:
            raise UnknownNameError("training configuration", name_or_path, list(texts))
        text, name, place = texts[name_or_path], name_or_path, name_or_path
    fields = parse_fields(text, f"training {place}")
    if scenario is not None:
        fields = trained_for(fields, scenario)
    pairs = overrides.items() if isinstance(overrides, Mapping) else [pair(text) for text in overrides]
    for key, value in pairs:
        put(fields, key, value)
    return make_training({"name": name, **fields}, place, length)


def trained_for(fields: Mapping[str, Any], scenario: str) -> dict[str, Any]:
    """Return the fields of a configuration with a scenario instead of its services or environments.

    Args:
        fields: by name.
        scenario: name or file of a scenario, or a trace file. Requests of a trace are drawn from it at its mean rate,
            with unknown output lengths, so that every seed has others. Agents of environments observe the feature
            columns of its requests.

    Raises:
        ConfigError: the trace has no arrival times.
    """
    own: dict[str, Any] = {"scenario": scenario}
    if Path(scenario).suffix.lower() in TRACE_SUFFIXES:
        from kvgym.workloads.traces import load_trace  # slow to import

        trace = load_trace(scenario)
        if not (trace.has_times and math.isfinite(trace.mean_rate)):
            raise ConfigError(
                f"{scenario} has no arrival times; write a scenario file with a rate, and give that"
            )
        own = {
            "workload": {
                "name": Path(scenario).name,
                "lengths": {"kind": "trace", "path": scenario, "mode": "resample"},
                "arrivals": {"kind": "poisson", "rate": trace.mean_rate},
                "num_requests": min(len(trace), MOST_DRAWN),
                "predictions": {"kind": "none"},
            }
        }
    if "services" in fields:
        return {**fields, "services": {"families": [own]}}
    kept = {name: x for name, x in fields.items() if name not in ("variants", "curriculum")}
    env = {name: x for name, x in (fields.get("env") or {}).items() if name not in _OF_SERVICE} | own
    from kvgym.envs.scheduling.config import EnvConfig  # slow to import

    config = EnvConfig.of(**env)
    if config.make_scenario().make_workload().sample(0).feature_0 is not None:
        env["information"] = [*config.information, "features"]
        if "inputs" in kept:
            kept["inputs"] = [*kept["inputs"], "columns"]
    return {**kept, "env": env}


def make_training(
    fields: Mapping[str, Any], place: str = "configuration", length: int | None = None
) -> TrainingConfig:
    """Return a checked configuration, of the class that its algorithm needs.

    Args:
        fields: by name.
        place: origin of the fields, for messages.
        length: length of the run; None = as in the fields.

    Raises:
        ConfigError: a key or value is wrong; the message has the valid ones.
    """
    try:
        cls: type[TrainingConfig] = kind_of(fields.get("algorithm", "maskable_ppo")).config_class()
    except UnknownNameError as error:
        raise ConfigError(f"training {place}: {error}", error.details) from None
    wanted = fields if length is None else {**fields, cls.LENGTH: length}
    return validate_fields(cls, wanted, f"training {place}").check()


def read_run_config(folder: Path, length: int | None = None) -> TrainingConfig:
    """Return the configuration of the run in a folder.

    Args:
        folder: the run folder.
        length: new length of the run; None = its own.

    Raises:
        ConfigError: there is no configuration, or it is damaged.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{folder} holds no training run: it has no config.yaml")
    fields = parse_fields(read_text(path, "training run"), f"training run {path}")
    return make_training(fields, str(path), length)


def pair(text: str) -> tuple[str, Any]:
    """Return key and value of ``"dotted.key=value"``, with the value read as YAML.

    Raises:
        ConfigError: it has another form.
    """
    key, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
    if not equals or not key:
        raise ConfigError(
            f"override {shown(text)}: expected key=value, e.g. seed=1 or services_per_generation=8"
        )
    return key.strip(), number(parse_yaml(value, f"override {shown(text)}"))


def number(value: Any) -> Any:
    """Return text such as 1e-3 as a number; YAML 1.1 reads it as text."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def put(fields: dict[str, Any], key: str, value: Any) -> None:
    """Set a value by its dotted key; entries of a list have numbers.

    Raises:
        ConfigError: the key names an entry that cannot exist.
    """
    path = key.split(".")
    place: Any = fields
    for depth, part in enumerate(path):
        above = ".".join(path[:depth])
        if isinstance(place, list):
            if not (part.isdecimal() and int(part) < len(place)):
                raise ConfigError(
                    f"override {shown(key)}: {above} is a list; expected a number below {len(place)} after it"
                )
            entry: Any = int(part)
        elif isinstance(place, dict):
            entry = part
        else:
            raise ConfigError(f"override {shown(key)}: {above} is {shown(place)} and has nothing inside")
        if depth == len(path) - 1:
            place[entry] = value
            return
        if isinstance(place, dict) and place.get(entry) is None:
            place[entry] = {}
        place = place[entry]
