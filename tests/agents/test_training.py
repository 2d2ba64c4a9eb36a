"""Training runs: curves, checkpoints, kill and resume, equal seeds."""

import csv
import json

import pytest
import yaml

from helpers.amount import some
from helpers.training.fake_tracker import FakeTracker
from helpers.training.training_runs import SMALL, learner_of
from kvgym.agents import train
from kvgym.agents.library import load_agent, load_model
from kvgym.agents.runs.checkpoints import checkpoints
from kvgym.agents.runs.config import load_training, make_training
from kvgym.agents.runs.evaluation import SHOWN, baseline_metrics
from kvgym.agents.sb3.algorithms import make_environments, make_model, schedule
from kvgym.agents.sb3.config import TrainConfig
from kvgym.envs.demonstrations.record import demonstrate
from kvgym.errors import ConfigError
from kvgym.experiments.comparison import compare
from kvgym.utils.reading import shipped_texts

SHIPPED = {name: load_training(name) for name in shipped_texts("train")}


def small(**changes):
    return make_training({**SMALL, **changes})


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


def test_a_wrong_hyperparameter_leaves_no_run(tmp_path):
    with pytest.raises(ConfigError, match=r"no hyperparameter 'n_step'; valid: .*n_steps"):
        train(small(hyperparameters={"n_step": 3}), tmp_path)
    assert not (tmp_path / "config.yaml").exists()
    with pytest.raises(ConfigError, match="lin_3e-4"):
        schedule("cos_1")


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
    learner = learner_of(config, tmp_path)
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
