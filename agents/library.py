"""Trained agents by name or file, as policies, routers or autoscalers.

``kvgym compare --policies mc_sf,MODEL``, ``--router MODEL`` and ``--autoscaler MODEL`` find them here.
"""

from __future__ import annotations

import functools
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from gymnasium.spaces import Box

from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.envs.agents import AgentPolicy
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.experiments.scenario_options import OVERLOAD_SCENARIO
from kvgym.policies.policy import Policy, register_policy_source
from kvgym.policies.routing import Router, register_router_source
from kvgym.policies.scaling import Autoscaler, register_autoscaler_source
from kvgym.utils.arguments import explained
from kvgym.utils.reading import check_archive

DEFAULT_METRIC = "e2e_latency_mean"

Model = NumpyModel | EvolvedModel

LOADERS: dict[str, Callable[[Path], Model]] = {".npz": NumpyModel.load, ".json": EvolvedModel.load}
"""Readers of agents' files, by suffix."""

SUFFIXES = (*LOADERS, ".zip")


@functools.lru_cache(maxsize=1)
def _files() -> dict[str, Any]:
    folder = resources.files("kvgym.agents").joinpath("models")
    if not folder.is_dir():
        return {}
    files = sorted(folder.iterdir(), key=str)
    return {Path(f.name).stem: f for f in files if f.name.endswith(tuple(LOADERS))}


def agent_names() -> dict[str, str]:
    """Return the shipped agents with their summaries."""
    return {name: str(_shipped(name).metadata.get("summary", "")) for name in _files()}


@functools.lru_cache(maxsize=16)
def _shipped(name: str) -> Model:
    with resources.as_file(_files()[name]) as path:
        return LOADERS[path.suffix](path)


def model_card(name: str) -> str:
    """Return the model card of a shipped agent, Markdown.

    Raises:
        UnknownNameError: there is no such agent.
    """
    if name not in _files():
        raise UnknownNameError("agent", name, list(_files()))
    return resources.files("kvgym.agents").joinpath("models").joinpath(f"{name}.md").read_text("utf-8")


_DRAWN = re.compile(r"(.+):deterministic=(true|false)", re.IGNORECASE)


def split_options(spec: str | Path) -> tuple[str | Path, dict[str, bool]]:
    """Split ``MODEL:deterministic=false`` into the model and the option; without it the option is absent."""
    found = _DRAWN.fullmatch(str(spec))
    return (spec, {}) if found is None else (found[1], {"deterministic": found[2].lower() == "true"})


def is_agent(spec: str) -> bool:
    """Return whether ``spec`` names a shipped agent, a model file, or the folder of a training run.

    A slash in its name makes it a path, even if there is no such file.
    """
    spec = str(split_options(spec)[0])
    return spec in _files() or spec.endswith(SUFFIXES) or "/" in spec.partition(":")[0] or _is_run(Path(spec))


def _is_run(path: Path) -> bool:
    """Return whether this is a readable folder of a training run."""
    try:
        return bool(path.name) and (path / "config.yaml").is_file()
    except OSError:  # a long spec is not a file name
        return False


def agent_of(spec: str) -> Policy | None:
    """Return the agent that ``spec`` names, None if it names none."""
    return load_agent(spec) if is_agent(spec) else None


def router_of(spec: str) -> Router | None:
    """Return the learned router that ``spec`` names, None if it names no agent."""
    return load_router(spec) if is_agent(spec) else None


def autoscaler_of(spec: str) -> Autoscaler | None:
    """Return the learned autoscaler that ``spec`` names, None if it names no agent."""
    return load_autoscaler(spec) if is_agent(spec) else None


def _of_kind(kind: str) -> Callable[[], list[str]]:
    return lambda: [name for name in _files() if kind_of(name) == kind]


register_policy_source(agent_of, _of_kind("policy"))
register_router_source(router_of, _of_kind("router"))
register_autoscaler_source(autoscaler_of, _of_kind("autoscaler"))


def load_model(spec: str | Path) -> Model:
    """Return the model in the file of an agent.

    Args:
        spec: name of a shipped agent, an ``.npz`` or ``.json`` file, or the folder of a training run
            (its best agent).

    Returns:
        The weights of a network, or of an evolved policy, router or autoscaler.

    Raises:
        UnknownNameError: no such agent.
        ConfigError: the file is damaged or has another format.
    """
    text = str(split_options(spec)[0])
    if text in _files():
        return _shipped(text)
    path = Path(text)
    if path.suffix in LOADERS:
        return LOADERS[path.suffix](path)
    if (path / "config.yaml").is_file():
        for file in (path / f"{name}{suffix}" for name in ("best", "final") for suffix in LOADERS):
            if file.is_file():
                return LOADERS[file.suffix](file)
        raise ConfigError(f"training run {path} has no agent yet; wait for its first evaluation")
    raise UnknownNameError(
        "agent", text, _files(), "a file MODEL.npz or MODEL.json, or the folder of a training run"
    )


@explained
def load_agent(
    spec: str | Path,
    *,
    name: str | None = None,
    trusted: bool = False,
    deterministic: bool = True,
    **arguments: Any,
) -> Policy:
    """Return a trained agent as a policy, for ``simulate`` and ``compare``.

    Args:
        spec: name of a shipped agent (``kvgym list agents``), an ``.npz`` or ``.json`` file, the
            folder of a training run, or a Stable-Baselines3 ``.zip`` (needs ``kvgym[train]``, and ``arguments``).
            With ``:deterministic=false`` after it, as below.
        name: label in results; None = the name, or the path without its suffix.
        trusted: read a ``.zip`` without plain weights next to it. Reading such a file can run any code: trust only
            your own files.
        deterministic: take the most probable actions of a network; False draws them, from the seed of the run.
        **arguments: changes of the environment arguments; for a ``.zip`` all of them, with ``action``. An evolved
            policy takes none.

    Raises:
        UnknownNameError: no such agent.
        ConfigError: the file is damaged, has another format, is no policy, or is not trusted.
    """
    spec, options = split_options(spec)
    deterministic = options.get("deterministic", deterministic)
    path, label = Path(spec), name or _label(spec)
    if path.suffix == ".zip":
        return _load_zip(path, label, trusted, {"deterministic": deterministic, **arguments})
    model = load_model(spec)
    if isinstance(model, NumpyModel):
        given = {**model.header.env_arguments, **arguments}
        if wrong := sorted({"self", "model", "name", "cls", "deterministic"} & given.keys()):
            raise ConfigError(f"agent {label}: there is no environment argument {wrong[0]!r}")
        agent = AgentPolicy(model, name=label, deterministic=deterministic, **given)
        _check_bounds(model, agent)
        return agent
    if not deterministic:
        raise ConfigError(f"agent {label}: an evolved policy draws no actions; leave deterministic out")
    if arguments:
        raise ConfigError(
            f"agent {label}: an evolved policy takes no environment arguments; got {', '.join(arguments)}"
        )
    made = model.make(label)
    if isinstance(made, Router):
        raise ConfigError(f"agent {label} is a router, not a policy; use it as the router of a cluster")
    if isinstance(made, Autoscaler):
        raise ConfigError(
            f"agent {label} is an autoscaler, not a policy; use it as the autoscaler of a fleet"
        )
    return made


def _check_bounds(model: NumpyModel, agent: AgentPolicy) -> None:
    """Check that an agent's actions of real numbers have the ranges of its training.

    Raises:
        ConfigError: their number or their ranges differ.
    """
    space = agent.config.action_space
    if isinstance(space, Box) and (model.header.low, model.header.high) != (
        tuple(space.low.tolist()), tuple(space.high.tolist())
    ):  # fmt: skip
        raise ConfigError(
            f"agent {agent.info.name}: its {agent.config.action} actions have {len(model.header.low)} numbers in the "
            f"ranges of training, here {len(space.low)} in others; use the arguments of training, or train again"
        )


@explained
def load_router(spec: str | Path, *, name: str | None = None) -> Router:
    """Return a learned router, for ``simulate(router=...)`` and scenarios.

    Args:
        spec: name of a shipped one (``kvgym list agents``), a ``.json`` file, or the folder of a
            training run.
        name: label in results; None = the name, or the path without its suffix.

    Raises:
        UnknownNameError: no such agent.
        ConfigError: the file is damaged, has another format, or is a policy.
    """
    made, kind = _evolved(spec, name)
    if not isinstance(made, Router):
        what = _WITH_ARTICLE[kind]
        raise ConfigError(f"agent {name or _label(spec)} is {what}, not a router; use it as {what}")
    return made


@explained
def load_autoscaler(spec: str | Path, *, name: str | None = None) -> Autoscaler:
    """Return a learned autoscaler, for ``simulate(autoscaler=...)`` and scenarios.

    Args:
        spec: a ``.json`` file, or the folder of a training run.
        name: label in results; None = the name, or the path without its suffix.

    Raises:
        UnknownNameError: no such agent.
        ConfigError: the file is damaged, has another format, or is no autoscaler.
    """
    made, kind = _evolved(spec, name)
    if not isinstance(made, Autoscaler):
        what = _WITH_ARTICLE[kind]
        raise ConfigError(f"agent {name or _label(spec)} is {what}, not an autoscaler; use it as {what}")
    return made


_WITH_ARTICLE = {"policy": "a policy", "router": "a router", "autoscaler": "an autoscaler"}


def _evolved(spec: str | Path, name: str | None) -> tuple[Policy | Router | Autoscaler | None, str]:
    """Return what evolution has learned, None for a network, and its kind."""
    model = load_model(spec)
    made = model.make(name or _label(spec)) if isinstance(model, EvolvedModel) else None
    return made, kind_of(spec)


def kind_of(spec: str | Path) -> str:
    """Return ``"policy"``, ``"router"`` or ``"autoscaler"``; ``spec`` is as for :func:`load_model`, or a ``.zip``."""
    if Path(split_options(spec)[0]).suffix == ".zip":
        return "policy"
    model = load_model(spec)
    return model.kind if isinstance(model, EvolvedModel) else "policy"


def is_router(spec: str | Path) -> bool:
    """Return whether an agent is a router; ``spec`` is as for :func:`kind_of`."""
    return kind_of(spec) == "router"


def _label(spec: str | Path) -> str:
    """Return the label of an agent: its name, or the path without its suffix."""
    path = Path(spec)
    plain = path.with_suffix("") if path.suffix in SUFFIXES else path
    return str(spec) if str(spec) in _files() else str(plain)


@dataclass(frozen=True)
class Background:
    """Training conditions of an agent.

    Attributes:
        scenario: its training scenario; for a distribution of services a typical one of the first family.
        metric: its training metric.
        baselines: policies or routers that it was compared with.
        policy: for a router, the policy on its workers; else "".
        horizon: length of its episodes in seconds; None = to the end.
    """

    scenario: Scenario
    metric: str
    baselines: tuple[str, ...]
    horizon: float | None
    policy: str = ""


def background(spec: str | Path, agent: Policy | Router) -> Background:
    """Return the training conditions of an agent.

    Args:
        spec: as for :func:`load_agent`.
        agent: loaded from it.
    """
    training: Mapping[str, Any] = {}
    if Path(split_options(spec)[0]).suffix != ".zip":
        training = load_model(spec).metadata.get("training", {})
    if isinstance(agent, AgentPolicy):
        measured = training.get("evaluation", {})
        return Background(
            agent.config.make_scenario(),
            measured.get("metric", training.get("metric", DEFAULT_METRIC)),
            tuple(measured.get("baselines", training.get("reference", ()))),
            agent.config.horizon,
        )
    scenario = load_scenario(OVERLOAD_SCENARIO)
    if "services" in training:
        from kvgym.agents.evolution.services import Services  # slow to import

        scenario = Services.model_validate(training["services"]).families[0].typical()
    metric, reference = training.get("metric", DEFAULT_METRIC), training.get("reference", ())
    policy = training.get("policy", "") if isinstance(agent, Router) else ""
    return Background(scenario, metric, tuple(reference), scenario.system.horizon, policy)


def _load_zip(path: Path, label: str, trusted: bool, arguments: dict[str, Any]) -> Policy:
    """Return a Stable-Baselines3 model as a policy, from the plain weights next to it if there are any."""
    plain = path.with_name("final.npz")
    if path.name == "model.zip" and plain.is_file():
        return load_agent(plain, name=label, **arguments)
    if "action" not in arguments:
        raise ConfigError(
            f"{path}: a Stable-Baselines3 file has no environment arguments; load it in Python: "
            'load_agent("model.zip", action="admit_count", ...), or export it once with kvgym.agents.sb3.export'
        )
    if not zipfile.is_zipfile(path):
        raise ConfigError(f"{path}: no such Stable-Baselines3 file")
    if not trusted:
        raise ConfigError(
            f"{path}: reading a Stable-Baselines3 file can run any code; if it is your own, give trusted=True, or "
            "export it once with kvgym.agents.sb3.export"
        )
    check_archive(path, "agent")
    from kvgym.agents.sb3.algorithms import ALGORITHMS  # raises an error without the extra

    errors = []
    for cls in ALGORITHMS.values():
        try:
            return AgentPolicy(cls.load(path, device="cpu"), name=label, **arguments)
        except Exception as error:  # files of other algorithms fail in many ways
            errors.append(f"{cls.__name__}: {error}")
    raise ConfigError(f"{path}: no algorithm can load it ({'; '.join(errors)[:300]})")
