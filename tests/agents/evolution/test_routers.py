"""Evolution of routers: configurations, files, runs and commands."""

import json

import pytest
import yaml

import kvgym
from helpers.training.evolution_runs import SERVICES, TINY
from kvgym.agents import train
from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.evolution.objective import measure
from kvgym.agents.evolution.role import AS_POLICY, KINDS, Role
from kvgym.agents.library import background, is_router, load_agent, load_router
from kvgym.agents.runs.config import load_training, make_training
from kvgym.errors import ConfigError
from kvgym.experiments.comparison import label_of
from kvgym.experiments.scenario import load_scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router, make_router
from kvgym.policies.runner import simulate

FAMILY = {**SERVICES["families"][0], "workers": [{"count": 2}, {"count": 1, "kv_capacity": 600}]}
ROUTING = {
    **TINY,
    "name": "routing",
    "router": "weighted",
    "policy": "mc_sf:overrun=extend",
    "fixed": {"pace": 2.0},
    "weights": ["work", "requests"],
    "generations": 2,
    "services": {"families": [FAMILY]},
    "reference": ["join_shortest_queue", "weighted:work=1.0"],
}
LATENCY = "e2e_latency_mean"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "routing"
    train(make_training(ROUTING), folder)
    return folder


def test_a_run(run):
    agent = load_router(run)
    assert isinstance(agent, Router)
    assert (agent.info.name, label_of(agent), type(agent).info.name) == (str(run), str(run), "weighted")
    given = agent.hyperparameters()
    assert set(given) == {"pace", "work", "requests"}
    assert given["pace"] == 2.0
    content = json.loads((run / "final.json").read_text())
    assert content["router"] == "weighted"
    assert "policy" not in content
    assert content["metadata"]["training"]["policy"] == "mc_sf:overrun=extend"
    assert any(content["weights"][name] != 0.3 for name in ("work", "requests"))
    found = background(run, agent)
    assert (found.policy, found.baselines) == (ROUTING["policy"], tuple(ROUTING["reference"]))
    assert len(found.scenario.make_system().workers) == 3


def test_metrics_of_routers():
    config = make_training(ROUTING)
    service = config.services.draw(3)
    result = simulate(
        service.system, service.table, ROUTING["policy"], router="weighted:work=2.0", seed=service.seed
    )
    expected = compute_metrics(result, [LATENCY])
    assert measure(service, "weighted", {"work": 2.0}, [LATENCY], config.role).metrics == expected
    refused = measure(service, "weighted", {"work": 99.0}, [LATENCY], config.role)
    assert "work = 99.0" in refused.error


def test_roles():
    assert Role().cast("fcfs", {}, None)[1] is None
    other = make_router("round_robin")
    policy, router, _ = AS_POLICY.cast("fcfs", {"protection": 0.1}, other)
    assert isinstance(policy, Policy)
    assert policy.hyperparameters() == {"protection": 0.1}
    assert router is other
    policy, router, _ = Role("router", "fcfs:protection=0.2").cast("weighted", {"pace": 3.0}, other)
    assert policy.hyperparameters() == {"protection": 0.2}
    assert router.hyperparameters() == {"pace": 3.0}
    assert set(KINDS) == {"policy", "router", "autoscaler"}


def test_a_file_is_a_router_in_scenarios_and_comparisons(run, tmp_path):
    path = run / "best.json"
    assert EvolvedModel.load(path).kind == "router"
    assert make_router(str(path)).hyperparameters() == load_router(run).hyperparameters()
    scenario = load_scenario("a100-llama2-70b").override(
        workload={"preset": "lmsys", "num_requests": 40}, workers=3, router=str(path), seeds=1
    )
    label = str(path.with_suffix(""))
    alone = kvgym.compare(scenario, ["mc_sf"]).values("mc_sf", LATENCY)
    both = kvgym.compare(scenario, ["mc_sf"], routers=[str(path), "round_robin"])
    assert both.policies == (label, "round_robin")
    assert both.values(label, LATENCY).tolist() == alone.tolist()
    copy = tmp_path / "again.json"
    EvolvedModel.load(path).save(copy)
    assert copy.read_bytes() == path.read_bytes()


def test_routers_and_policies_are_not_interchangeable(run, tmp_path):
    path = tmp_path / "margin.json"
    EvolvedModel("mc_sf", {}, {"protection": 0.1}).save(path)
    assert is_router(run)
    assert not is_router(path)
    assert not is_router(tmp_path / "model.zip")
    for attempt in (lambda: kvgym.make_policy(str(run)), lambda: load_agent(run)):
        with pytest.raises(ConfigError, match="is a router, not a policy; use it as the router"):
            attempt()
    for attempt in (lambda: make_router(str(path)), lambda: load_router("ppo_noisy")):
        with pytest.raises(ConfigError, match="is a policy, not a router; use it as a policy"):
            attempt()
    with pytest.raises(ConfigError, match="is made already"):
        make_router(load_router(run), work=1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router": "wieghted"}, "unknown router 'wieghted'. Did you mean 'weighted'"),
        ({"router": 3}, "expected a name"),
        ({"policy": "mc_sf"}, "missing or unknown: router"),
        ({"weights": {"work": 11}}, "out of range; expected -5 … 10"),
        ({"weights": {"wrok": 1}}, "router 'weighted' has no hyperparameter 'wrok'"),
        ({"fixed": {"work": 1.0}, "weights": {"work": 1.0}}, "in both fixed and weights"),
    ],
)
def test_damaged_files(tmp_path, changes, message):
    path = tmp_path / "agent.json"
    content = json.loads(EvolvedModel("weighted", {}, {"work": 1.0}, kind="router").to_json())
    path.write_text(json.dumps({**content, **changes}))
    with pytest.raises(ConfigError, match=message):
        make_router(str(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router": "weihgted"}, "unknown router 'weihgted'"),
        ({"router": "round_robin", "fixed": {}, "weights": {}}, "router 'round_robin' declares no weights"),
        ({"policy": "mc_fs"}, "unknown policy 'mc_fs'"),
        ({"reference": ["fcfs"]}, "unknown router 'fcfs'"),
        ({"fixed": {"protection": 0.1}}, "protection"),
        ({"services": SERVICES}, "one worker and nothing to route; give workers"),
    ],
)
def test_mistakes(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_training({**ROUTING, **changes})


def test_a_start_is_of_the_same_kind(tmp_path):
    path = tmp_path / "start.json"
    EvolvedModel("weighted", {}, {"work": 2.0}, kind="router").save(path)
    assert make_training({**ROUTING, "start": str(path)}).read_start() == {"work": 2.0}
    EvolvedModel("mc_sf", {}, {"protection": 0.1}).save(path)
    with pytest.raises(ConfigError, match="weights of policy 'mc_sf', not of router 'weighted'"):
        make_training({**ROUTING, "start": str(path)}).read_start()


def test_the_shipped_configuration():
    config = load_training("routing")
    assert (config.role.kind, config.learner) == ("router", "weighted")
    assert len(config.learned()[0]) == 12
    drawn = [config.services.draw(seed) for seed in range(40)]
    assert {service.family for service in drawn} == {family.name for family in config.services.families}
    assert all(len(service.system.workers) == 4 for service in drawn)
    assert all(0.6 <= service.load <= 1.5 for service in drawn)
    assert any(len({w.kv_capacity for w in service.system.workers}) == 2 for service in drawn)


def test_on_the_command_line(run, tmp_path, monkeypatch, capsys):
    import sys

    from kvgym.cli.app import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["kvgym", *map(str, arguments)])
        try:
            main()
        except SystemExit as stop:
            if stop.code:
                return int(stop.code), capsys.readouterr()
        return 0, capsys.readouterr()

    code, text = call("evaluate", run, "--seeds", 2, "--no-progress", "--out", "found")
    assert code == 0, text.err
    assert "join_shortest_queue" in text.out
    config = json.loads((tmp_path / "found/config.json").read_text())
    assert config["policies"]["join_shortest_queue"]["policy"]["overrun"] == "extend"
    code, text = call(
        "compare", "--workers", 3, "-p", "fcfs", "--router", f"{run},weighted:work=1.0,pace=2.0,round_robin",
        "-n", 20, "--seeds", 1, "--no-progress", "--no-report",
    )  # fmt: skip
    assert code == 0, text.err
    assert "60 of 60 requests" in text.out
    code, text = call("evaluate", run, "--seeds", 1, "-p", "fcfs,mc_sf", "--no-progress")
    assert code == 2
    assert "expected one policy" in text.err


def test_weights_stay_in_yaml(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in ROUTING.items() if k != "name"}))
    config = load_training(path, ["weights={pace: {step: 0.5}}", "fixed={work: 0.5}"])
    assert [(w.name, w.step) for w in config.learned()[0]] == [("pace", 0.5)]
    again = make_training(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))))
    assert again == config
