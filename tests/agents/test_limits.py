"""Numbers of training configurations beyond the limits of PyTorch, NumPy or memory are errors with name and limit."""

import inspect

import pytest

from helpers.training.tiny_training import TINY
from kvgym.agents.runs.config import load_training, make_training
from kvgym.agents.runs.limits import MAX_SEED, RANGES
from kvgym.agents.sb3.algorithms import _OURS, ALGORITHMS, make_environments, make_model, network_size
from kvgym.agents.sb3.config import NetworkConfig
from kvgym.errors import ConfigError
from kvgym.utils import resources

HUGE = 10**30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": HUGE}, rf"field seed: .*less than or equal to {MAX_SEED}"),
        ({"num_envs": HUGE}, r"field num_envs: .*less than or equal to 2147483647"),
        ({"total_steps": HUGE}, r"field total_steps: .*less than or equal to 999999999999"),
        ({"threads": HUGE}, r"field threads: .*less than or equal to 1024"),
        ({"network": {"hidden": [HUGE]}}, r"hidden: .*1 to 64 numbers of units from 1 to 65,536"),
        ({"network": {"hidden": [4] * 65}}, r"hidden: .*1 to 64 numbers of units"),
        ({"network": {"row_dim": HUGE}}, r"network.row_dim: .*less than or equal to 65536"),
        ({"evaluation": {"seeds": HUGE}}, r"evaluation.seeds: .*less than or equal to 1000000"),
        *[
            ({"hyperparameters": {name: value}}, rf"hyperparameter {name} = .*; expected {expected}")
            for name, value, expected in (
                ("learning_rate", "1e400", "a number from 0 to 1e"),
                ("learning_rate", -1, "a number from 0 to 1e"),
                ("learning_rate", float("nan"), "a number from 0 to 1e"),
                ("n_steps", HUGE, "a whole number from 1 to 2,147,483,647"),
                ("n_steps", 2.5, "a whole number from 1 to 2,147,483,647"),
                ("batch_size", 1e40, "a whole number from 2 to 10,000,000"),
                ("n_epochs", 10**6, "a whole number from 1 to 10,000"),
                ("gamma", 3, "a number from 0 to 1"),
                ("stats_window_size", HUGE, "a whole number from 1 to"),
                ("ent_coef", 1e300, "a number from -1e"),
            )
        ],
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_named_with_their_limit(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_training({**TINY, **changes})
    assert len(str(caught.value)) <= 300


def test_evolution_has_limits_too():
    for change in ("population=1000000000", f"generations={HUGE}", f"seed={HUGE}", "jobs=1000000"):
        with pytest.raises(ConfigError, match=rf"field {change.partition('=')[0]}: .*less than or equal to"):
            load_training("ranked", [change])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hyperparameters": {"n_steps": 10**8}}, r"rollouts of num_envs × n_steps = 200,000,000 steps take about"),
        ({"network": {"hidden": [65536, 65536]}}, r"a network of 8,\d{3},\d{3},\d{3} weights, .*GB are free: choose"),
        (
            {
                "algorithm": "dqn",
                "env": {**TINY["env"], "action": "admit_count"},
                "hyperparameters": {"buffer_size": 10**9},
            },
            r"buffer_size = 1,000,000,000 steps take about",
        ),
    ],
)  # fmt: skip
def test_memory_is_estimated_before_allocation(monkeypatch, changes, message):
    config = make_training({**TINY, **changes})
    monkeypatch.setattr(resources, "free_memory", lambda: 10 * 10**9)
    envs = make_environments(config, 0)
    with pytest.raises(ConfigError, match=message):
        make_model(config, envs)


def test_environments_are_estimated_too(monkeypatch):
    config = make_training({**TINY, "num_envs": 10**9})
    with pytest.raises(
        ConfigError, match=r"1,000,000,000 environments of 10 requests take about .* choose fewer"
    ):
        make_environments(config, 0)


def test_populations_are_estimated_too(monkeypatch):
    monkeypatch.setattr(resources, "free_memory", lambda: 10**8)
    with pytest.raises(ConfigError, match=r"a population of 1,000,000 vectors of \d+ weights take about"):
        load_training("ranked", ["population=1000000"])


def test_the_estimated_size_of_a_network_is_the_actual_one():
    config = make_training(TINY)
    model = make_model(config, make_environments(config, 0))
    made = sum(x.numel() for x in model.policy.parameters())
    width, choices = model.observation_space.shape[0], int(model.action_space.nvec.sum())
    estimated, _ = network_size(config.network, width, choices)
    assert 0.7 * made < estimated < 1.5 * made
    slots = NetworkConfig(kind="slots", row_dim=8, context_dim=16)
    assert network_size(slots, width, choices)[0] > 0


def test_every_number_of_the_algorithms_has_a_range():
    for cls in ALGORITHMS.values():
        for name, parameter in inspect.signature(cls).parameters.items():
            if name not in _OURS and not isinstance(parameter.default, bool):
                assert name in RANGES, (cls, name)
