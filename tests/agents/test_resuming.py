"""Interrupted runs continue and end as whole ones do, bit for bit, whatever learns."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from helpers.training.evolution_runs import TINY as EVOLUTION
from helpers.training.training_runs import REINFORCE, SMALL, interrupted, results
from kvgym.agents import resume, train
from kvgym.agents.runs.checkpoints import checkpoints, latest_checkpoint
from kvgym.agents.runs.config import make_training
from kvgym.errors import ConfigError

RANKED = {
    **EVOLUTION, "policy": "ranked", "fixed": {}, "weights": ["prompt", "footprint"], "generations": 2,
    "held_out": {"services": 2, "interval": 1}, "reference": ["fcfs", "ranked"],
}  # fmt: skip
WITHOUT_PREDICTIONS = {
    "kv_capacity": 300,
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 30.0},
        "lengths": {"kind": "pairs", "prompt_len": [15, 70], "output_len": [60, 4]},
        "num_requests": 40,
        "predictions": {"kind": "none"},
    },
}
REAL = {"scenario": "mc-sf-model-2", "num_requests": 12, "queue_window": 5, "active_window": 3, "hold": 2}
RUNS = {
    "maskable_ppo": SMALL,
    "a2c": {**SMALL, "algorithm": "a2c", "hyperparameters": {"n_steps": 8},
            "network": {"kind": "slots", "row_dim": 4}},
    "dqn": {**SMALL, "algorithm": "dqn", "warm_start": None, "hyperparameters": {
        "learning_starts": 32, "batch_size": 16, "train_freq": 8, "buffer_size": 256, "learning_rate": "lin_1e-3"}},
    "ppo": {**SMALL, "algorithm": "ppo",
            "variants": [{}, {"rate": 5.0}, {"hardware": "llama3-8b-a100-tp1"}],
            "curriculum": [[0.0, [0.5, 1.0]], [0.5, [1.0, 2.0]]]},
    "recurrent_ppo": {**SMALL, "algorithm": "recurrent_ppo", "warm_start": None},
    "rank, mlp": {**SMALL, "algorithm": "a2c", "warm_start": None, "hyperparameters": {"n_steps": 16},
                  "env": {"action": "rank", **REAL}, "normalize_observations": True},
    "rank_scores, slots": {**SMALL, "algorithm": "ppo", "warm_start": None, "normalize_reward": False,
                           "env": {"action": "rank_scores", **REAL},
                           "network": {"kind": "slots", "row_dim": 8, "context_dim": 12}},
    "reinforce": {**REINFORCE, "fit": 2},
    "cma_es": EVOLUTION,
    "openai_es": {**EVOLUTION, "algorithm": "openai_es"},
    "average": {**EVOLUTION, "average": 3},
    "imitation": {**RANKED, "fixed": {"hidden": 2}, "weights": ["footprint", "network"],
                  "imitate": {"services": 4, "every": 5, "iterations": 50}},
    "predictor": {**RANKED, "services": {"families": [WITHOUT_PREDICTIONS]},
                  "predictor": {"services": 8, "hidden": [8], "passes": 100}},
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the result of a run without a break."""
    found = {}

    def run(name):
        if name not in found:
            found[name] = train(make_training(RUNS[name]), tmp_path_factory.mktemp("runs") / "run")
        return found[name]

    return run


def report_of(result):
    return [line.replace(str(result.folder), "run") for line in result.report()]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == "a2c" else name for name in RUNS]
)
def test_a_resumed_run_ends_as_a_whole_one(tmp_path, whole, name):
    config, folder = make_training(RUNS[name]), tmp_path / "cut"
    interrupted(config, folder)
    done = latest_checkpoint(folder / "checkpoints")[1]["steps"]
    assert 0 < done < config.length
    resumed = resume(folder, command="again")
    assert results(folder) == results(whole(name).folder)
    assert report_of(resumed) == report_of(whole(name))
    [entry] = json.loads((folder / "run.json").read_text())["resumed"]
    assert (entry["command"], entry[config.units]) == ("again", done)


@pytest.mark.parametrize("name", ["maskable_ppo", "reinforce", "cma_es", "openai_es"])
def test_another_seed_gives_another_agent(tmp_path, whole, name):
    other = train(make_training({**RUNS[name], "seed": 1}), tmp_path / "run")
    suffix = other.agent.suffix
    assert results(other.folder)[f"final{suffix}"] != results(whole(name).folder)[f"final{suffix}"]


@pytest.mark.parametrize("name", ["rank_scores, slots", "cma_es", "average", "imitation"])
def test_a_longer_run_ends_as_one_without_a_break(tmp_path, whole, name):
    config, folder = make_training(RUNS[name]), tmp_path / "run"
    train(make_training({**RUNS[name], config.LENGTH: config.length - config.interval}), folder)
    resume(folder, length=config.length)
    # The best agent may name the shorter training.
    one, other = (
        {name: x for name, x in results(run).items() if not name.startswith("best")}
        for run in (folder, whole(name).folder)
    )
    assert one == other
    last = checkpoints(folder / "checkpoints")[-1] / "state.json"
    before = last.stat().st_mtime_ns
    assert resume(folder).steps == config.length
    assert last.stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=f"{config.length} {config.units} already, more than 1"):
        resume(folder, length=1)


@pytest.mark.parametrize("name", ["maskable_ppo", "reinforce", "cma_es"])
def test_a_run_that_has_made_no_update_starts_over(tmp_path, whole, name):
    """With its first checkpoint, without it, and where temporary files are left."""

    def stop(done):
        raise KeyboardInterrupt

    for case in ("checkpoint", "nothing"):
        folder = tmp_path / case
        with pytest.raises(KeyboardInterrupt):
            train(make_training(RUNS[name]), folder, progress=stop)
        assert latest_checkpoint(folder / "checkpoints")[1]["steps"] == 0
        if case == "nothing":
            shutil.rmtree(folder / "checkpoints")
            (folder / ".kvgym-0123456789abcdef.tmp.npz").write_bytes(b"half")
            (folder / "run.json").write_text("[]")
        resume(folder)
        assert results(folder) == results(whole(name).folder)
        assert not list(folder.glob(".*"))
        assert len(json.loads((folder / "run.json").read_text())["resumed"]) == 1


def test_a_killed_run_resumes(tmp_path):
    """SIGKILL at some moment after the first checkpoint: nothing is corrupt, and the result is the same."""
    fields = {**SMALL, "total_steps": 1024}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(fields, sort_keys=False))
    command = ["train", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "run"), "--no-progress"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from kvgym.cli.app import main; main()", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while len(checkpoints(tmp_path / "run/checkpoints")) < 2 and process.poll() is None:
        assert time.monotonic() < deadline, "no checkpoint within two minutes"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    assert resume(tmp_path / "run").steps == 1024
    train(make_training(fields), tmp_path / "whole")
    assert results(tmp_path / "run") == results(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("maskable_ppo", "model.pt", "damaged", "cannot be read, or damaged.*remove the checkpoint's folder"),
        ("maskable_ppo", "state.json", "[1]", "must be a mapping.*remove the checkpoint's folder"),
        ("reinforce", "learner.json", "{}", "damaged: KeyError.*remove the checkpoint's folder"),
        ("cma_es", "strategy.json", "{", "not valid JSON: .*remove the checkpoint's folder"),
        ("cma_es", "strategy.json", "[]", "must be a mapping"),
        ("cma_es", "strategy.json", "{}", "damaged: KeyError.*remove the checkpoint's folder"),
        ("cma_es", "state.json", '{"steps": 6}', "damaged: KeyError"),
    ],
)
def test_damaged_checkpoints(tmp_path, whole, name, file, text, message):
    folder = tmp_path / "copy"
    shutil.copytree(whole(name).folder, folder)
    last = checkpoints(folder / "checkpoints")[-1]
    (last / file).write_text(text)
    with pytest.raises(ConfigError, match=message):
        resume(folder)
    shutil.rmtree(last)
    resume(folder)  # from the one before
    assert results(folder) == results(whole(name).folder)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("average", {"average": [1.0, 2.0]}, "expected 1 finite numbers"),
        ("average", {"average": [None]}, "expected 1 finite numbers"),
        ("reinforce", {"baselines": {"fcfs": {}}}, "damaged: KeyError"),
        ("reinforce", {"rows": [{"updates": "2"}]}, "updates is not a number"),
        ("maskable_ppo", {"rows": [{"steps": 256}, {"return": 1.0}]}, "rows with different figures"),
    ],
)
def test_damaged_counters(tmp_path, whole, name, changes, message):
    folder = tmp_path / "copy"
    shutil.copytree(whole(name).folder, folder)
    place = checkpoints(folder / "checkpoints")[-1] / "state.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **changes}))
    with pytest.raises(ConfigError, match=message):
        resume(folder)


def test_occupied_and_empty_folders(tmp_path, whole):
    with pytest.raises(ConfigError, match="holds a training run already; resume it with --resume"):
        train(make_training(EVOLUTION), whole("cma_es").folder)
    with pytest.raises(ConfigError, match="holds no training run"):
        resume(tmp_path)
