"""Evolution of autoscalers: configurations, files and runs."""

from __future__ import annotations

import json

import pytest

from helpers.training.evolution_runs import SERVICES, TINY
from kvgym.agents import train
from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.library import is_router, kind_of, load_agent, load_autoscaler, load_router
from kvgym.agents.runs.config import load_training, make_training
from kvgym.errors import ConfigError
from kvgym.experiments.comparison import compare
from kvgym.experiments.scenario import load_scenario
from kvgym.policies.scaling import Autoscaler, make_autoscaler

FAMILY = {**SERVICES["families"][0], "workers": [{"count": 1, "most": 3, "startup": 5.0}]}
SCALING = {
    **TINY,
    "name": "scaling",
    "autoscaler": "linear",
    "policy": "mc_sf:overrun=extend",
    "fixed": {"day": 60.0},
    "weights": ["base", "ongoing"],
    "generations": 2,
    "metric": "gpu_hours",
    "services": {"families": [{key: x for key, x in FAMILY.items() if key != "load"}]},
    "reference": ["fixed:workers=2"],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "scaling"
    train(make_training(SCALING), folder)
    return folder


def test_a_run(run):
    agent = load_autoscaler(run, name="mine")
    assert isinstance(agent, Autoscaler)
    assert (agent.info.name, type(agent).info.name) == ("mine", "linear")
    assert set(agent.hyperparameters()) == {"day", "base", "ongoing"}
    content = json.loads((run / "final.json").read_text())
    assert content["autoscaler"] == "linear"
    assert any(content["weights"][name] != default for name, default in (("base", 1.0), ("ongoing", 0.1)))
    assert EvolvedModel.load(run / "final.json").kind == kind_of(run) == "autoscaler"
    assert not is_router(run)


def test_a_file_is_an_autoscaler_by_name(run):
    file = str(run / "best.json")
    assert make_autoscaler(file).hyperparameters() == load_autoscaler(run).hyperparameters()
    scenario = load_scenario("scale-day").override(
        workload={**load_scenario("scale-day").workload, "num_requests": 40}
    )
    found = compare(scenario, autoscalers=[file, "fixed:workers=2"], seeds=[0])
    assert found.estimate(file, "gpu_hours").value > 0


def test_what_it_is_not(run):
    with pytest.raises(ConfigError, match="is an autoscaler, not a policy"):
        load_agent(run)
    with pytest.raises(ConfigError, match="is an autoscaler, not a router"):
        load_router(run)
    with pytest.raises(ConfigError, match="routing is a router, not an autoscaler"):
        load_autoscaler("routing")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router": "weighted"}, "only one of them"),
        ({"services": SERVICES}, "nothing to route"),
        ({"services": {"families": [{**FAMILY, "workers": 2}]}}, "nothing to scale"),
        ({"imitate": {}}, "an? autoscaler has none"),
        ({"weights": ["protection"]}, "protection"),
    ],
)
def test_wrong_configurations(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_training({**SCALING, **changes})


def test_the_shipped_configuration():
    config = load_training("scale")
    assert (config.autoscaler, config.metric) == ("linear", "fleet_cost")
