"""Trained agents by name or file, as policies or routers.

``kvgym compare --policies mc_sf,MODEL`` and ``--router MODEL`` find them here.
"""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from gymnasium.spaces import Box

from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.evolution.services import Services
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.envs.agents import AgentPolicy
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.scenario import DEFAULT_SCENARIO, Scenario, load_scenario
from kvgym.policy import Policy, register_policy_source
from kvgym.routing import Router, register_router_source
from kvgym.utils.arguments import explained
from kvgym.utils.reading import check_archive

DEFAULT_METRIC = "e2e_latency_mean"

Model = NumpyModel | EvolvedModel

LOADERS: dict[str, Callable[[Path], Model]] = {".npz": NumpyModel.load, ".json": EvolvedModel.load}
"""How the file of an agent is read, by its suffix."""

SUFFIXES = (*LOADERS, ".zip")


@functools.lru_cache(maxsize=1)
def _files() -> dict[str, Any]:
    folder = resources.files("kvgym.agents").joinpath("models")
    if not folder.is_dir():
        return {}
    files = sorted(folder.iterdir(), key=str)
    return {Path(f.name).stem: f for f in files if f.name.endswith(tuple(LOADERS))}


def agent_names() -> dict[str, str]:
    """Return the trained agents that come with kvgym, with a line each."""
    return {name: str(_shipped(name).metadata.get("summary", "")) for name in _files()}


@functools.lru_cache(maxsize=16)
def _shipped(name: str) -> Model:
    with resources.as_file(_files()[name]) as path:
        return LOADERS[path.suffix](path)


def model_card(name: str) -> str:
    """Return the model card of an agent that comes with kvgym, Markdown.

    Raises:
        UnknownNameError: there is no such agent.
    """
    if name not in _files():
        raise UnknownNameError("agent", name, list(_files()))
    return resources.files("kvgym.agents").joinpath("models").joinpath(f"{name}.md").read_text("utf-8")


def is_agent(spec: str) -> bool:
    """Whether ``spec`` names an agent: one that comes with kvgym, a model file, or the folder of a training run.

    What has a slash where others have their name is a path, whether or not anything is there.
    """
    return spec in _files() or spec.endswith(SUFFIXES) or "/" in spec.partition(":")[0] or _is_run(Path(spec))


def _is_run(path: Path) -> bool:
    """Whether this is the folder of a training run that may be read."""
    try:
        return bool(path.name) and (path / "config.yaml").is_file()
    except OSError:  # a long spec is no name of a file
        return False


def agent_of(spec: str) -> Policy | None:
    """Return the agent that ``spec`` names, None where it names none."""
    return load_agent(spec) if is_agent(spec) else None


def router_of(spec: str) -> Router | None:
    """Return the learned router that ``spec`` names, None where it names no agent."""
    return load_router(spec) if is_agent(spec) else None


register_policy_source(agent_of, lambda: [name for name in _files() if not is_router(name)])
register_router_source(router_of, lambda: filter(is_router, _files()))


def load_model(spec: str | Path) -> Model:
    """Return what the file of an agent holds.

    Args:
        spec: name of an agent that comes with kvgym, an ``.npz`` or ``.json`` file, or the folder of a training run
            (its best agent).

    Returns:
        A network's plain weights, or those of an evolved policy or router.

    Raises:
        UnknownNameError: none of these.
        ConfigError: the file is damaged or something else.
    """
    text = str(spec)
    if text in _files():
        return _shipped(text)
    path = Path(spec)
    if path.suffix in LOADERS:
        return LOADERS[path.suffix](path)
    if (path / "config.yaml").is_file():
        for file in (path / f"{name}{suffix}" for name in ("best", "final") for suffix in LOADERS):
            if file.is_file():
                return LOADERS[file.suffix](file)
        raise ConfigError(f"training run {path} has no agent yet; its first evaluation was not reached")
    raise UnknownNameError(
        "agent", text, _files(), "a file MODEL.npz or MODEL.json, or the folder of a training run"
    )


@explained
def load_agent(
    spec: str | Path, *, name: str | None = None, trusted: bool = False, **arguments: Any
) -> Policy:
    """Return a trained agent as a policy, for ``simulate`` and ``compare``.

    Args:
        spec: name of an agent that comes with kvgym (``kvgym list agents``), an ``.npz`` or ``.json`` file, the
            folder of a training run, or a Stable-Baselines3 ``.zip`` (needs ``kvgym[train]``, and ``arguments``).
        name: label in results; None = the name, or the path without its suffix.
        trusted: read a ``.zip`` that has no plain weights beside it. Such a file runs code when it is read: only say
            so of one that you wrote yourself.
        **arguments: environment arguments that differ from those of training; for a ``.zip`` all of them,
            ``action`` first. An evolved policy acts in no environment and takes none.

    Raises:
        UnknownNameError: no such agent.
        ConfigError: the file is damaged or something else, such as a router, or would run code and is not trusted.
    """
    path, label = Path(spec), name or _label(spec)
    if path.suffix == ".zip":
        return _load_zip(path, label, trusted, arguments)
    model = load_model(spec)
    if isinstance(model, NumpyModel):
        given = {**model.header.env_arguments, **arguments}
        if wrong := sorted({"self", "model", "name", "cls"} & given.keys()):
            raise ConfigError(f"agent {label}: there is no environment argument {wrong[0]!r}")
        agent = AgentPolicy(model, name=label, **given)
        _check_bounds(model, agent)
        return agent
    if arguments:
        raise ConfigError(
            f"agent {label}: an evolved policy takes no environment arguments; got {', '.join(arguments)}"
        )
    made = model.make(label)
    if isinstance(made, Router):
        raise ConfigError(
            f"agent {label} is a router, not a policy; give it as the router of a cluster, beside a policy"
        )
    return made


def _check_bounds(model: NumpyModel, agent: AgentPolicy) -> None:
    """Check that the real numbers of an agent's actions still mean what they meant in its training.

    Raises:
        ConfigError: there are others now, or they have other ranges.
    """
    space = agent.config.kind.space(agent.config)
    if isinstance(space, Box) and (model.header.low, model.header.high) != (
        tuple(space.low.tolist()), tuple(space.high.tolist())
    ):  # fmt: skip
        raise ConfigError(
            f"agent {agent.info.name}: its actions of {agent.config.action} are {len(model.header.low)} numbers with "
            f"ranges of their own, here they are {len(space.low)}; give its own environment arguments, or train it anew"
        )


@explained
def load_router(spec: str | Path, *, name: str | None = None) -> Router:
    """Return a learned router, for ``simulate(router=...)`` and scenarios.

    Args:
        spec: name of one that comes with kvgym (``kvgym list agents``), a ``.json`` file, or the folder of a
            training run.
        name: label in results; None = the name, or the path without its suffix.

    Raises:
        UnknownNameError: no such agent.
        ConfigError: the file is damaged or something else, such as a policy.
    """
    label = name or _label(spec)
    model = load_model(spec)
    made = model.make(label) if isinstance(model, EvolvedModel) else None
    if not isinstance(made, Router):
        raise ConfigError(f"agent {label} is a policy, not a router; give it among the policies")
    return made


def is_router(spec: str | Path) -> bool:
    """Whether an agent is a router, not a policy; ``spec`` is as for :func:`load_model`, or a ``.zip`` file."""
    if Path(spec).suffix == ".zip":
        return False
    model = load_model(spec)
    return isinstance(model, EvolvedModel) and model.kind == "router"


def _label(spec: str | Path) -> str:
    """Return what results call an agent: its name, or the path without its suffix."""
    path = Path(spec)
    plain = path.with_suffix("") if path.suffix in SUFFIXES else path
    return str(spec) if str(spec) in _files() else str(plain)


@dataclass(frozen=True)
class Background:
    """What an agent was trained for.

    Attributes:
        scenario: what it was trained on; of a distribution of services one in the middle of its first family.
        metric: what it was trained for.
        baselines: policies, or routers, that it was measured against.
        policy: of a router, the policy that scheduled on its workers; else "".
        horizon: seconds after which its episodes end, None where they do not.
    """

    scenario: Scenario
    metric: str
    baselines: tuple[str, ...]
    horizon: float | None
    policy: str = ""


def background(spec: str | Path, agent: Policy | Router) -> Background:
    """Return what an agent was trained for.

    Args:
        spec: as for :func:`load_agent`.
        agent: loaded from it.
    """
    training: Mapping[str, Any] = {}
    if Path(spec).suffix != ".zip":
        training = load_model(spec).metadata.get("training", {})
    if isinstance(agent, AgentPolicy):
        measured = training.get("evaluation", {})
        return Background(
            agent.config.make_scenario(),
            measured.get("metric", DEFAULT_METRIC),
            tuple(measured.get("baselines", ())),
            agent.config.horizon,
        )
    scenario = load_scenario(DEFAULT_SCENARIO)
    if "services" in training:
        scenario = Services.model_validate(training["services"]).families[0].typical()
    metric, reference = training.get("metric", DEFAULT_METRIC), training.get("reference", ())
    policy = training.get("policy", "") if isinstance(agent, Router) else ""
    return Background(scenario, metric, tuple(reference), scenario.system.horizon, policy)


def _load_zip(path: Path, label: str, trusted: bool, arguments: dict[str, Any]) -> Policy:
    """Return a Stable-Baselines3 model as a policy, by the plain weights beside it where a training run left them."""
    beside = path.with_name("final.npz")
    if path.name == "model.zip" and beside.is_file():
        return load_agent(beside, name=label, **arguments)
    if "action" not in arguments:
        raise ConfigError(
            f"{path}: a Stable-Baselines3 file does not say what environment it is for; load it in Python: "
            'load_agent("model.zip", action="admit_count", ...), or export it once with kvgym.agents.sb3.export'
        )
    if not zipfile.is_zipfile(path):
        raise ConfigError(f"{path}: no such Stable-Baselines3 file")
    if not trusted:
        raise ConfigError(
            f"{path}: a Stable-Baselines3 file runs code when it is read; if it is your own, say trusted=True, or "
            "export it once with kvgym.agents.sb3.export"
        )
    check_archive(path, "agent")
    from kvgym.agents.sb3.algorithms import ALGORITHMS  # needs the extra, and says so

    errors = []
    for cls in ALGORITHMS.values():
        try:
            return AgentPolicy(cls.load(path, device="cpu"), name=label, **arguments)
        except Exception as error:  # another algorithm's file fails in many ways
            errors.append(f"{cls.__name__}: {error}")
    raise ConfigError(f"{path}: no algorithm can load it ({'; '.join(errors)[:300]})")
