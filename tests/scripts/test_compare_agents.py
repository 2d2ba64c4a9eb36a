"""The scripts that compare agents with tuned baselines and put them into the package, at a size of seconds."""

import importlib.util
import json
from pathlib import Path

import pytest
from evolution_runs import TINY

from kvgym.agents.config import load_training, make_training
from kvgym.agents.evolution.training import train as evolve
from kvgym.agents.library import load_model
from kvgym.agents.training import train
from kvgym.experiments.tuning import plan_search
from kvgym.policy import make_policy

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


compare_agents, compare_routers, publish_agent = map(
    load, ("compare_agents", "compare_routers", "publish_agent")
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "noisy"
    small = {
        "env.num_requests": 10, "num_envs": 2, "hyperparameters.n_steps": 8, "hyperparameters.batch_size": 16,
        "total_steps": 16, "evaluation.interval": 16, "evaluation.seeds": 1,
    }  # fmt: skip
    train(load_training("noisy", small), folder)
    return folder


def test_compare_and_publish(run, tmp_path, capsys):
    compare_agents.main(
        ["--agents", f"{run}=noisy", "--quick", "--json", str(tmp_path / "figures.json"),
         "--curves", f"noisy={run}", "--figure", str(tmp_path / "curves.png")]
    )  # fmt: skip
    text = capsys.readouterr().out
    assert "### 20 requests/s" in text
    assert "better by" in text
    assert (tmp_path / "curves.png").stat().st_size > 1000
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {part["metric"] for part in figures} == {"e2e_latency_mean"}
    publish_agent.main(
        [str(run), "ppo_tiny", "--figures", str(tmp_path / "figures.json"), "--as", str(run), "--limits", "None known.",
         "--models", str(tmp_path)]
    )  # fmt: skip
    assert load_model(tmp_path / "ppo_tiny.npz").header.metadata["name"] == "ppo_tiny"
    card = (tmp_path / "ppo_tiny.md").read_text()
    for heading in ("# ppo_tiny", "## Trained on", "## Figures", "## Limits", "- None known."):
        assert heading in card
    other = [{**part, "values": {k: 2 * v for k, v in part["values"].items()}} for part in figures]
    (tmp_path / "other.json").write_text(json.dumps(other))
    publish_agent.main(
        [
            "--renew",
            "ppo_tiny",
            "--figures",
            str(tmp_path / "other.json"),
            "--as",
            str(run),
            "--models",
            str(tmp_path),
        ]
    )
    renewed = (tmp_path / "ppo_tiny.md").read_text()
    changed = [a for a, b in zip(card.splitlines(), renewed.splitlines(), strict=True) if a != b]
    assert len(changed) == len(figures)
    assert all(line.startswith("| ") and "e2e_latency_mean" in line for line in changed)


@pytest.mark.parametrize("name", compare_agents.TASKS)
def test_tasks_name_policies_and_values_that_exist(name):
    task = compare_agents.TASKS[name]
    assert task.training_rate in task.rates or name == "slo"
    task.at(task.rates[0]).make_workload().sample(0)
    for spec in (*task.baselines, *task.published):
        make_policy(spec)
    for spec in task.baselines:
        space = task.spaces.get(spec.partition(":")[0])
        plan_search(spec, space)


def test_publish_evolved_weights(tmp_path):
    evolve(make_training({**TINY, "generations": 2}), tmp_path / "run")
    values = {"run": 1.0, "fcfs": 1.5, "mc_sf": 1.2}
    figures = [{"heading": "10 requests/s", "metric": "e2e_latency_mean", "values": values}]
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    publish_agent.main(
        [str(tmp_path / "run"), "tiny_margin", "--figures", str(tmp_path / "figures.json"), "--as", "run",
         "--limits", "None known.", "--models", str(tmp_path)]
    )  # fmt: skip
    assert load_model(tmp_path / "tiny_margin.json").metadata["name"] == "tiny_margin"
    card = (tmp_path / "tiny_margin.md").read_text()
    for text in (
        "# tiny_margin",
        "weights of `mc_sf`",
        "| 10 requests/s | e2e_latency_mean | 1 | `mc_sf` | 1.2 |",
    ):
        assert text in card


def test_compare_and_publish_a_router(tmp_path, capsys):
    family = {**TINY["services"]["families"][0], "workers": 2}
    config = {
        **TINY, "router": "weighted", "policy": "fcfs", "fixed": {}, "weights": ["work", "pace"], "generations": 2,
        "services": {"families": [family]}, "reference": ["join_shortest_queue"],
    }  # fmt: skip
    evolve(make_training(config), tmp_path / "run")
    figures = tmp_path / "figures.json"
    compare_routers.main(
        [str(tmp_path / "run"), "--policy", "fcfs", "--others", "weighted:pace=2.0", "round_robin", "--loads", "0.5",
         "--seeds", "2", "--num-requests", "20", "--json", str(figures)]
    )  # fmt: skip
    text = capsys.readouterr().out
    assert "better than `weighted:pace=2.0`" in text
    assert text.count("load 0.5") == len(compare_routers.CLUSTERS) * len(compare_routers.PREDICTIONS)
    parts = json.loads(figures.read_text())
    assert set(parts[0]["values"]) == {str(tmp_path / "run"), "weighted:pace=2.0", "round_robin"}
    publish_agent.main(
        [str(tmp_path / "run"), "tiny_router", "--figures", str(figures), "--as", str(tmp_path / "run"),
         "--limits", "None known.", "--models", str(tmp_path)]
    )  # fmt: skip
    card = (tmp_path / "tiny_router.md").read_text()
    assert "weights of `weighted`" in card
    assert "--policies fcfs --router tiny_router" in card
    assert "under `fcfs`" in card
    assert card.count("| e2e_latency_mean |") == len(parts)
