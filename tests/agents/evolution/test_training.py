"""x, early stopping."""

import json
import subprocess
import sys

import numpy as np
import pytest

from helpers.training.evolution_runs import TINY
from helpers.training.training_runs import curve_of, results
from kvgym.agents import resume, train
from kvgym.agents.evolution.learner import generation_seeds
from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.evolution.objective import best_value, measure, measure_reference, objective
from kvgym.agents.library import background, load_agent
from kvgym.agents.runs.checkpoints import checkpoints
from kvgym.agents.runs.config import make_training
from kvgym.agents.runs.tracker import TensorBoardWriter


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return train(make_training(TINY), folder, command="a test")


def test_files_of_a_run(whole, tiny):
    folder = whole.folder
    assert {f.name for f in folder.iterdir()} == {
        "config.yaml", "run.json", "curve.csv", "best.json", "final.json", "checkpoints", "tensorboard",
        "train.log",
    }  # fmt: skip
    rows = curve_of(folder)
    assert [int(row["generation"]) for row in rows] == [0, 2, 4, 6]
    # Two references and the policy on 3 services; then 2 generations of 2 services for 2 references, 4 candidates.
    assert [int(row["episodes"]) for row in rows] == [9, 36, 63, 90]
    held_out = [float(row["held_out"]) for row in rows]
    assert whole.best_step == [0, 2, 4, 6][int(np.argmin(held_out))]
    assert [float(row["best"]) for row in rows] == np.minimum.accumulate(held_out).tolist()
    assert np.isnan(float(rows[0]["objective"]))
    assert float(rows[1]["objective_best"]) <= float(rows[1]["objective"])
    run = json.loads((folder / "run.json").read_text())
    assert (run["seed"], run["command"]) == (0, "a test")
    assert {"cma", "numpy"} <= run["libraries"].keys()
    assert len(checkpoints(folder / "checkpoints")) == 2
    model = EvolvedModel.load(folder / "best.json")
    assert model.metadata["generations"] == whole.best_step
    assert model.metadata["training"] == tiny().model_dump(mode="json", exclude={"jobs", "ray", "tracker"})
    assert any("best.json" in line for line in whole.report())


def test_the_held_out_objective_is_that_of_its_services(whole, tiny):
    config, final = tiny(), EvolvedModel.load(whole.folder / "final.json")
    found = []
    for seed in config.held_out.seeds:
        service = config.services.draw(seed)
        names = ("e2e_latency_mean",)
        references = [measure_reference(service, spec, names) for spec in config.reference]
        own = measure(service, "mc_sf", {**final.fixed, **final.weights}, names)
        found.append(objective(own, names[0], best_value(references, names[0])))
    last = curve_of(whole.folder)[-1]
    assert float(last["held_out"]) == np.mean(found)
    improvement = 100 * (1 - np.exp(np.mean(found)))
    assert float(last["improvement_e2e_latency_mean"]) == pytest.approx(improvement)


def test_it_learns(tiny, tmp_path):
    """From a margin that leaves three quarters of the memory unused."""
    wasteful = {"protection": {"start": 0.75, "step": 0.2, "low": 0.0, "high": 0.9}}
    result = train(
        tiny(weights=wasteful, generations=8, held_out={"services": 4, "interval": 8}), tmp_path / "run"
    )
    assert result.best > result.curve[0]["improvement_e2e_latency_mean"] + 5
    weights = EvolvedModel.load(tmp_path / "run/best.json").weights
    assert weights["protection"] < 0.6


def test_the_number_of_processes_changes_nothing(tiny, tmp_path, whole):
    train(tiny(jobs=2), tmp_path / "run")
    assert results(tmp_path / "run") == results(whole.folder)


def test_early_stopping(tiny, tmp_path):
    held_out = {"services": 1, "interval": 1, "patience": 2}
    # A margin that cannot matter: no evaluation is better than the first.
    indifferent = {"protection": {"start": 1e-9, "step": 1e-12, "low": 0.0, "high": 1e-8}}
    result = train(tiny(weights=indifferent, held_out=held_out), tmp_path / "run")
    assert (result.steps, result.best_step) == (2, 0)
    assert any("stopped early after 2" in line for line in result.report())
    assert resume(tmp_path / "run").steps == 2


def test_a_start_is_kept_in_the_checkpoint(tiny, tmp_path):
    start = tmp_path / "start.json"
    EvolvedModel("mc_sf", {}, {"protection": 0.125}).save(start)
    train(tiny(generations=2, start=str(start)), tmp_path / "run")
    start.unlink()
    result = resume(tmp_path / "run", length=4)
    assert result.steps == 4
    state = json.loads((checkpoints(tmp_path / "run/checkpoints")[-1] / "state.json").read_text())
    assert state["starts"] == {"protection": 0.125}


def test_a_policy_with_weights_of_its_own(weighted, tiny, tmp_path):
    config = tiny(
        policy="weighted", fixed={"count": 3}, weights={}, generations=2, hyperparameters={"sigma": 0.5},
        held_out={"services": 2, "interval": 1},
    )  # fmt: skip
    train(config, tmp_path / "run")
    agent = load_agent(tmp_path / "run")
    assert agent.label == str(tmp_path / "run")
    assert len(agent.hyperparameters()["bias"]) == 3
    found = background(tmp_path / "run", agent)
    assert (found.metric, found.baselines) == ("e2e_latency_mean", config.reference)
    assert found.scenario.make_workload().mean_rate > 1


def test_tensorboard(whole, monkeypatch, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(whole.folder / "tensorboard")).Reload()
    values = {e.step: e.value for e in found.Scalars("evolution/held_out")}
    expected = {int(row["generation"]): float(row["held_out"]) for row in curve_of(whole.folder)}
    assert values == pytest.approx(expected)
    assert "evolution/improvement_ttft_mean" in found.Tags()["scalars"]
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    without = TensorBoardWriter(tmp_path / "tensorboard")
    without.write(0, {"x": 1.0})
    without.close()
    assert "pip install" in without.missing
    assert not (tmp_path / "tensorboard").exists()


def test_seeds_of_generations():
    seeds = [generation_seeds(0, g, 8) for g in range(50)] + [generation_seeds(1, 0, 8)]
    assert len({seed for row in seeds for seed in row}) == 51 * 8
    assert generation_seeds(0, 3, 4) == seeds[3][:4]
    assert all(0 <= seed < 2**63 for row in seeds for seed in row)


def test_without_pytorch(tmp_path):
    """Evolution, resuming and what comes of it import neither PyTorch nor Stable-Baselines3."""
    (tmp_path / "tiny.yaml").write_text(json.dumps({**TINY, "generations": 1}))
    code = (
        "import sys\n"
        "from kvgym.cli.app import main\n"
        "def run(*arguments):\n"
        "    sys.argv = ['kvgym', *arguments]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as stop:\n"
        "        assert not stop.code, stop.code\n"
        "run('train', 'tiny.yaml', '--out', 'run', '--no-progress')\n"
        "run('train', '--resume', 'run', '--generations', '2', '--no-progress')\n"
        "run('compare', '-p', 'run,fcfs:protection=0.1', '-n', '20', '--seeds', '1', '--no-report')\n"
        "assert not {'torch', 'stable_baselines3'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "agent: run/best.json" in done.stdout


def test_losses_weigh_more_in_the_search_but_not_in_reports(tmp_path):
    even = train(make_training({**TINY, "generations": 0}), tmp_path / "even")
    losses = train(make_training({**TINY, "generations": 0, "behind": 5}), tmp_path / "losses")
    assert losses.curve[0]["held_out"] > even.curve[0]["held_out"]  # some reference is better on some service
    assert losses.best == even.best
