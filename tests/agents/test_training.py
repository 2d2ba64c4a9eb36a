"""Training runs: curves, checkpoints, kill and resume, equal seeds."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml

from helpers.amount import some
from helpers.fake_tracker import FakeTracker
from kvgym.agents import resume, train
from kvgym.agents.library import load_agent, load_model
from kvgym.agents.runs.checkpoints import checkpoints, latest_checkpoint, save_checkpoint
from kvgym.agents.runs.config import load_training, make_training
from kvgym.agents.runs.evaluation import SHOWN, baseline_metrics
from kvgym.agents.runs.progress import TrainingLog
from kvgym.agents.runs.tracker import Curves
from kvgym.agents.sb3.algorithms import make_environments, make_model, schedule
from kvgym.agents.sb3.config import TrainConfig
from kvgym.agents.sb3.learner import SB3Learner
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.envs.demonstrations.record import demonstrate
from kvgym.errors import ConfigError
from kvgym.experiments.comparison import compare
from kvgym.utils.files import write_text
from kvgym.utils.reading import shipped_texts

SHIPPED = {name: load_training(name) for name in shipped_texts("train")}
SMALL = {
    "name": "small",
    "algorithm": "maskable_ppo",
    "env": {
        "action": "admit_count",
        "num_requests": 6,
        "rate": 20.0,
        "queue_window": 6,
        "active_window": 2,
        "epochs": "decision",
    },
    "num_envs": 4,
    "network": {"hidden": [8]},
    "hyperparameters": {"n_steps": 16, "batch_size": 32, "n_epochs": 1},
    "total_steps": 256,
    "warm_start": {"policy": "fcfs", "steps": 256, "epochs": 20},
    "evaluation": {"interval": 128, "seeds": 2, "baselines": ["fcfs"]},
}


def small(**changes):
    return make_training({**SMALL, **changes})


def weights(path):
    return NumpyModel.load(path).arrays


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_files_of_a_run(tmp_path):
    seen = []
    result = train(small(), tmp_path / "run", command="a test", progress=seen.append)
    assert result.steps == 256
    assert seen == sorted(seen)
    names = {f.name for f in (tmp_path / "run").iterdir()}
    assert names >= {
        "config.yaml",
        "run.json",
        "curve.csv",
        "best.npz",
        "final.npz",
        "model.zip",
        "tensorboard",
    }
    assert make_training(yaml.safe_load((tmp_path / "run/config.yaml").read_text())) == small()
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["seed"] == 0
    assert run["command"] == "a test"
    assert {"torch", "stable-baselines3", "numpy"} <= run["libraries"].keys()
    rows = list(csv.DictReader((tmp_path / "run/curve.csv").read_text().splitlines()))
    assert [int(row["steps"]) for row in rows] == [0, 128, 256]
    best = min(float(row["e2e_latency_mean"]) for row in rows if row["e2e_latency_mean"] != "nan")
    assert result.best == best
    assert load_model(tmp_path / "run").header.metadata["evaluation"]["e2e_latency_mean"] == best
    assert [p.name for p in checkpoints(tmp_path / "run/checkpoints")] == [
        "step-000000000128",
        "step-000000000256",
    ]


def test_the_evaluation_is_that_of_compare(tmp_path):
    config = small(total_steps=64)
    result = train(config, tmp_path)
    scenario = config.evaluation_config().make_scenario()
    agent = load_agent(tmp_path / "final.npz", name="agent")
    seeds = range(config.evaluation.first_seed, config.evaluation.first_seed + 2)
    comparison = compare(scenario, [agent, "fcfs"], seeds=seeds)
    for name in set(SHOWN) - {"tbt_p99"}:  # the environment's histogram of token gaps is coarser
        assert result.curve[-1][name] == pytest.approx(
            comparison.values("agent", name).mean(), rel=1e-12, nan_ok=True
        )
    expected = comparison.values("fcfs", "e2e_latency_mean").mean()
    assert result.baselines["fcfs"] == pytest.approx(expected, rel=1e-12)


def test_tensorboard_and_a_tracker_have_metrics_and_reference_lines(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said, tracker = [], FakeTracker(monkeypatch, "trackio")
    changes = {"curriculum": [[0.0, [0.5, 1.0]], [1.0, [1.0, 2.0]]], "tracker": "trackio"}
    result = train(small(**changes), tmp_path, echo=said.append)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    own = events.Tags()["scalars"]
    assert {
        "kv/e2e_latency_mean",
        "kv/ttft_mean",
        "kv/evictions",
        "kv/kv_utilisation",
        "kv/load_high",
    } <= set(own)
    assert {"kv/eval/e2e_latency_mean", "rollout/ep_rew_mean", "train/loss"} <= set(own)
    rewards = [(e.step, e.value) for e in events.Scalars("eval/mean_reward")]
    assert rewards == [(row["steps"], pytest.approx(row["return"], rel=1e-6)) for row in result.curve]
    lengths = [e.value for e in events.Scalars("eval/mean_ep_length")]
    assert len(lengths) == 3
    assert min(lengths) >= 1
    hparams = {tag for tag in events.summary_metadata if tag.startswith("_hparams_/session_start_info")}
    assert hparams
    assert b"hyperparameters.n_steps" in events.summary_metadata[hparams.pop()].plugin_data.content
    assert [line.split(" of ")[0] for line in said] == ["0", "128", "256"]
    assert (tmp_path / "train.log").read_text().count("e2e_latency_mean") == 3
    lines = EventAccumulator(str(tmp_path / "tensorboard/baseline-fcfs")).Reload()
    values = [(e.step, e.value) for e in lines.Scalars("kv/eval/e2e_latency_mean")]
    assert [step for step, _ in values] == [0, 128, 256]
    assert len({value for _, value in values}) == 1
    for name in own:
        expected = {e.step: pytest.approx(e.value, rel=1e-6) for e in events.Scalars(name)}
        assert tracker.curves.get(name) == expected or name.startswith("_hparams_")
    assert tracker.curves["baselines/fcfs"] == {step: pytest.approx(value) for step, value in values}
    assert (tracker.started["group"], tracker.finished) == (small().name, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param(
            {"algorithm": "a2c", "hyperparameters": {"n_steps": 8}, "network": {"kind": "slots", "row_dim": 4}},
            marks=pytest.mark.long,
        ),
        {
            "algorithm": "dqn", "warm_start": None,
            "hyperparameters": {
                "learning_starts": 32, "batch_size": 16, "train_freq": 8, "buffer_size": 256,
                "learning_rate": "lin_1e-3",
            },
        },
        {
            "algorithm": "ppo", "variants": [{}, {"rate": 5.0}, {"hardware": "llama3-8b-a100-tp1"}],
            "curriculum": [[0.0, [0.5, 1.0]], [0.5, [1.0, 2.0]]],
            "normalize_reward": False,
        },
    ],
    ids=["maskable_ppo", "a2c", "dqn", "ppo"],
)  # fmt: skip
def test_equal_seeds_give_equal_curves_and_resuming_changes_nothing(tmp_path, changes):
    config = small(**changes)
    whole = train(config, tmp_path / "whole")
    again = train(config, tmp_path / "again")
    assert (tmp_path / "whole/curve.csv").read_bytes() == (tmp_path / "again/curve.csv").read_bytes()
    assert same(weights(tmp_path / "whole/final.npz"), weights(tmp_path / "again/final.npz"))
    assert (whole.best, whole.best_step) == pytest.approx((again.best, again.best_step), rel=0, nan_ok=True)

    class StopError(Exception):
        pass

    def stop(steps):
        if steps > 160:
            raise StopError

    with pytest.raises(StopError):
        train(config, tmp_path / "cut", progress=stop)
    assert latest_checkpoint(tmp_path / "cut/checkpoints")[1]["steps"] == 128
    resumed = resume(tmp_path / "cut", command="again")
    assert (tmp_path / "cut/curve.csv").read_bytes() == (tmp_path / "whole/curve.csv").read_bytes()
    assert same(weights(tmp_path / "cut/final.npz"), weights(tmp_path / "whole/final.npz"))
    assert same(weights(tmp_path / "cut/best.npz"), weights(tmp_path / "whole/best.npz"))
    expected = (whole.best, whole.best_step)
    assert (resumed.best, resumed.best_step) == pytest.approx(expected, rel=0, nan_ok=True)
    assert json.loads((tmp_path / "cut/run.json").read_text())["resumed"][0]["steps"] == 128
    other = train(small(**changes, seed=1), tmp_path / "other")
    assert not same(weights(tmp_path / "other/final.npz"), weights(tmp_path / "whole/final.npz"))
    assert other.steps == whole.steps


def test_a_killed_run_resumes(tmp_path):
    """SIGKILL at some moment after the first checkpoint: nothing is corrupt, and the result is the same."""
    fields = {**SMALL, "total_steps": 2048}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(fields))
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
    result = resume(tmp_path / "run")
    assert result.steps == 2048
    train(make_training(fields), tmp_path / "whole")
    assert (tmp_path / "run/curve.csv").read_bytes() == (tmp_path / "whole/curve.csv").read_bytes()
    assert same(weights(tmp_path / "run/final.npz"), weights(tmp_path / "whole/final.npz"))


def test_partial_files_are_never_read(tmp_path):
    def fails(place):
        (place / "model.zip").write_text("half")
        raise KeyboardInterrupt

    save_checkpoint(tmp_path, 10, lambda place: (place / "model.zip").write_text("whole"), {"steps": 10}, 2)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 20, fails, {"steps": 20}, 2)
    assert latest_checkpoint(tmp_path)[1] == {"steps": 10}
    for step in (20, 30):
        save_checkpoint(tmp_path, step, lambda place: None, {"steps": step}, 2)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-000000000020", "step-000000000030"]
    path = tmp_path / "text"
    write_text(path, "one\n")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "one\n"
    assert not list(tmp_path.glob(".*"))


def test_more_steps_for_a_finished_run(tmp_path):
    train(small(total_steps=128), tmp_path)
    result = resume(tmp_path, length=256)
    assert result.steps == 256
    assert [row["steps"] for row in result.curve] == [0, 128, 256]
    assert resume(tmp_path).steps == 256


def test_errors_of_runs(tmp_path):
    with pytest.raises(ConfigError, match="holds no training run"):
        resume(tmp_path)
    train(small(total_steps=64), tmp_path / "run")
    with pytest.raises(ConfigError, match="--resume"):
        train(small(total_steps=64), tmp_path / "run")
    for path in checkpoints(tmp_path / "run/checkpoints"):
        (path / "model.pt").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="cannot be read, or damaged"):
        resume(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"no hyperparameter 'n_step'; valid: .*n_steps"):
        train(small(hyperparameters={"n_step": 3}), tmp_path / "other")
    with pytest.raises(ConfigError, match="lin_3e-4"):
        schedule("cos_1")
    assert not (tmp_path / "other/config.yaml").exists()


def test_a_run_killed_before_its_first_milestone_starts_over(tmp_path):
    """The end is that of a whole run: after the first checkpoint, before it, and where temporary files are left."""
    config = small(total_steps=128)

    def stop(steps):
        raise KeyboardInterrupt

    train(config, tmp_path / "whole")
    for name in ("step", "nothing"):
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / name, progress=stop)
    assert latest_checkpoint(tmp_path / "step/checkpoints")[1]["steps"] == 0
    shutil.rmtree(tmp_path / "nothing/checkpoints")
    (tmp_path / "nothing/.kvgym-0123456789abcdef.tmp.npz").write_bytes(b"half")
    (tmp_path / "nothing/run.json").write_text("[]")
    for name in ("step", "nothing"):
        assert resume(tmp_path / name).steps == 128
        assert (tmp_path / name / "curve.csv").read_bytes() == (tmp_path / "whole/curve.csv").read_bytes()
        assert same(weights(tmp_path / name / "final.npz"), weights(tmp_path / "whole/final.npz"))
        assert not list((tmp_path / name).glob(".*"))
        assert len(json.loads((tmp_path / name / "run.json").read_text())["resumed"]) == 1


def test_a_finished_run_keeps_its_last_checkpoint(tmp_path):
    train(small(total_steps=64), tmp_path)
    last = checkpoints(tmp_path / "checkpoints")[-1]
    before = (last / "state.json").stat().st_mtime_ns
    assert resume(tmp_path).steps == 64
    assert (last / "state.json").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="64 steps already"):
        resume(tmp_path, length=32)


@pytest.mark.parametrize("name", ["model.pt", "state.json"])
def test_damaged_checkpoints(tmp_path, name):
    train(small(total_steps=64), tmp_path)
    (checkpoints(tmp_path / "checkpoints")[-1] / name).write_bytes(b"[1]")
    with pytest.raises(ConfigError, match="remove the checkpoint's folder"):
        resume(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_epochs": 0}, r"n_epochs = 0; expected a whole number from 1 to 10,000"),
        ({"n_steps": "x"}, r"n_steps = 'x'; expected a whole number"),
        ({"batch_size": 1}, r"batch_size = 1; expected a whole number from 2"),
        ({"batch_size": 63}, r"n_steps = 16 leaves one in batches of 63"),
        ({"gamma": None}, r"gamma = None; expected a number"),
        ({"normalize_advantage": 1}, r"expected true or false"),
        ({"target_kl": "x"}, r"target_kl = 'x'; expected a number"),
        ({"learning_rate": 1e30}, r"training diverged by step 64"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_wrong_hyperparameters(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        train(small(hyperparameters={**SMALL["hyperparameters"], **changes}, warm_start=None), tmp_path)


def test_numbers_that_yaml_reads_as_text(tmp_path):
    (tmp_path / "x.yaml").write_text(
        "hyperparameters: {learning_rate: 1e-3, n_steps: 1e1, clip_range: lin_1e-1}"
    )
    found = load_training(tmp_path / "x.yaml").hyperparameters
    assert found == {"learning_rate": 1e-3, "n_steps": 10.0, "clip_range": "lin_1e-1"}
    config = small(hyperparameters={"n_steps": 10.0, "batch_size": 20})
    assert make_model(config, make_environments(config, 0)).n_steps == 10


def test_the_curriculum_holds_from_the_first_episode(tmp_path):
    config = small(curriculum=[[0.0, [3.0, 4.0]]], total_steps=64, warm_start=None)
    log = TrainingLog(tmp_path, config.length, config.units, config.figure)
    learner = SB3Learner(config, tmp_path, log, Curves(config, tmp_path))
    loads, envs = [], learner.model.env
    reset = envs.reset
    envs.reset = lambda: loads.append(envs.get_attr("load")[0]) or reset()
    learner.learn(lambda steps: False)
    learner.close()
    assert loads == [(3.0, 4.0)]


def test_baselines_are_cut_off_where_agents_are():
    config = small(env={**SMALL["env"], "horizon": 0.5})
    assert baseline_metrics(config.evaluation, config.evaluation_config())["fcfs"]["unfinished"] > 0


@pytest.mark.parametrize(
    "name", some([name for name, config in SHIPPED.items() if isinstance(config, TrainConfig)], 2)
)
def test_every_configuration_trains(tmp_path, name):
    """Each configuration that comes with kvgym, on a few small episodes."""
    config = load_training(name)
    changes = {"total_steps": 256, "num_envs": max(4, len(config.variants)), "env.num_requests": 10}
    changes |= {"evaluation.seeds": 1, "evaluation.interval": 128}
    if config.algorithm == "dqn":
        changes |= {"hyperparameters.learning_starts": 64, "hyperparameters.buffer_size": 512}
    else:
        changes |= {"hyperparameters.n_steps": 16}
    if config.algorithm in ("ppo", "maskable_ppo"):
        changes |= {"hyperparameters.batch_size": 32}
    if config.warm_start is not None:
        changes |= {"warm_start.steps": 128}
    result = train(load_training(name, changes), tmp_path)
    assert result.steps >= 256
    assert load_agent(tmp_path).info.name == str(tmp_path)


def test_overrides_and_errors_of_configurations(tmp_path):
    config = load_training("knobs", ["env.rate=20", "network.hidden=[32]", "hyperparameters.gamma=1e-1"])
    assert config.env["rate"] == 20
    assert config.network.hidden == (32,)
    assert config.hyperparameters["gamma"] == 0.1
    for override, message in (
        ("total_step=3", "total_step: .*valid there: name, summary, algorithm"),
        ("network.kind=cnn", "network.kind: .*'mlp' or 'slots'"),
        ("network.depth=3", "valid there: kind, hidden, lstm, row_dim"),
        ("evaluation.metric=speed", "unknown metric 'speed'"),
        ("evaluation.metric=batch_size", "no better or worse"),
        ("env.rat=3", "environment argument rat"),
        ("env.observation=dict", "observation must be 'flat'"),
        ("algorithm=dqn", "dqn needs a Discrete action"),
        ("evaluation.env.queue_window=3", "evaluation.env cannot change queue_window"),
        ("variants=[{}, {observation: dict}]", "observation must be 'flat'"),
        ("curriculum=[[0.5, [1, 2]], [0.1, [1, 2]]]", "progress must go up"),
        ("curriculum=[[0.5, [2, 1]]]", "0 < low"),
        ("variants=[{action: flags}, {}]", "variants cannot change the kind of action"),
        ("warm_start={}", "warm_start.policy"),
        ("nonsense", "expected key=value"),
        ("env=[", "not valid YAML"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_training("knobs", [override])
    with pytest.raises(ConfigError, match=r"unknown training configuration 'defalt'.*default"):
        load_training("defalt")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_training(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_training(tmp_path / "latin.yaml")
    (tmp_path / "list.yaml").write_text("[1, 2]")
    with pytest.raises(ConfigError, match="must be a mapping"):
        load_training(tmp_path / "list.yaml")


def test_curriculum_interpolates():
    config = small(curriculum=[[0.2, [0.5, 1.0]], [0.6, [1.0, 2.0]]])
    assert config.load_at(0.0) == config.load_at(0.2) == (0.5, 1.0)
    assert config.load_at(0.4) == pytest.approx((0.75, 1.5))
    assert config.load_at(0.6) == config.load_at(1.0) == (1.0, 2.0)
    assert small().load_at(0.5) is None


@pytest.mark.parametrize(
    "name", [name for name, config in SHIPPED.items() if getattr(config, "warm_start", None)]
)
def test_the_windows_of_warm_starts_hold_what_the_policy_admits(name):
    """Full-size episodes, as a run would begin with them."""
    config = load_training(name)
    arguments = config.env_configs()[0].model_dump()
    found = demonstrate(config.warm_start.policy, steps=4000, seed=1, **arguments)
    assert len(found.actions) == 4000
