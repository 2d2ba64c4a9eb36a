"""REINFORCE with groups: gradients, equal requests, and agents that act as in training."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import kvgym
from helpers.training.training_runs import REINFORCE, curve_of, learner_of
from kvgym.agents import train
from kvgym.agents.curves import read_curve
from kvgym.agents.reinforce.network import Adam, Network
from kvgym.agents.runs.config import load_training, make_training
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError


def test_gradients_are_those_of_the_outputs():
    rng = np.random.default_rng(1)
    network = Network(2, (3, 4), rng)
    for array in network.numbers:
        array += 0.1 * rng.standard_normal(array.shape)
    x, weights = rng.standard_normal((5, 2)), rng.standard_normal(5)

    def value() -> float:
        return float(weights @ network.outputs(x)[0])

    found = network.gradient(network.outputs(x)[1], weights)
    for array, slope in zip(network.numbers, found, strict=True):
        for place in np.ndindex(array.shape):
            before = array[place]
            array[place] = before + 1e-6
            up = value()
            array[place] = before - 1e-6
            assert slope[place] == pytest.approx((up - value()) / 2e-6, abs=1e-6)
            array[place] = before


def test_sharp_units_bend_all_over_the_data():
    network = Network(2, (4_000, 3), np.random.default_rng(2), sharp=True)
    weights, biases = network.numbers[:2]
    np.testing.assert_allclose(weights.std(1), 4.0 / 2**0.5, rtol=0.05)
    # A unit's sum is 0 at its bend. Seen along its own weights, bends lie as standardised data do.
    bends = -biases / np.linalg.norm(weights, axis=0)
    assert abs(bends.mean()) < 0.05
    assert bends.std() == pytest.approx(1.0, rel=0.05)
    assert network.numbers[3].shape == (3,)
    assert network.outputs(np.zeros((1, 2)))[0] == 0.0


@pytest.mark.parametrize(("fit", "width"), [(0, 4.0), (1, 1.5)])
def test_the_first_layer_is_sharp_without_a_fit(tmp_path, fit, width):
    learner = learner_of(make_training({**REINFORCE, "hidden": [2_000], "fit": fit}), tmp_path)
    assert learner.network.numbers[0].std() == pytest.approx(width / 2**0.5, rel=0.05)


def test_adam_moves_by_the_rate_at_first():
    numbers = [np.array([1.0, 2.0])]
    optimiser = Adam(numbers)
    optimiser.step([np.array([3.0, -0.001])], 0.5)
    np.testing.assert_allclose(numbers[0], [1.5, 1.5], rtol=1e-4)
    other = [np.zeros(2)]
    again = Adam(other)
    again.restore(optimiser.state())
    for each in (optimiser, again):
        each.step([np.array([1.0, 1.0])], 0.5)
    np.testing.assert_array_equal(numbers[0], other[0])
    with pytest.raises(ValueError, match="another shape"):
        Adam([np.zeros(3)]).restore(optimiser.state())


def test_a_group_has_the_same_requests_in_every_episode():
    env = ServingVectorEnv(4, group_size=2, num_requests=3, action="knobs", queue_window=1, active_window=1)
    with pytest.raises(gym.error.ResetNeeded):
        _ = env.tables
    for seed in (7, None):
        env.reset(seed=seed)
        episodes = env.tables
        for first, second in ((0, 1), (2, 3)):
            np.testing.assert_array_equal(episodes[first].arrival_time, episodes[second].arrival_time)
        assert (episodes[1].arrival_time != episodes[2].arrival_time).any()
    env.step(np.zeros((4, len(env.single_action_space.nvec)), int))
    again = [env._generators[k].bit_generator.state for k in range(4)]
    assert again[0] == again[1] != again[2]
    with pytest.raises(ConfigError, match="group_size = 3 does not divide num_envs = 4"):
        ServingVectorEnv(4, group_size=3, action="knobs")


def test_a_run_and_the_agent_that_it_exports(tmp_path):
    config = make_training(REINFORCE)
    whole = train(config, tmp_path / "whole")
    assert whole.report()[-1] == f"agent: {tmp_path / 'whole' / 'best.npz'}"
    assert "updates" in whole.report()[-2]
    curve = read_curve(tmp_path / "whole")
    assert (curve["unit"], curve["length"], len(curve["y"])) == ("updates", 2, 3)
    assert set(curve["baselines"]) == {"fcfs"}
    assert [int(row["episodes"]) for row in curve_of(tmp_path / "whole")] == [0, 4, 8]

    # As a policy it has the latencies that training measured.
    agent = kvgym.load_agent(tmp_path / "whole" / "final.npz")
    scenario = config.evaluation_config().make_scenario()
    workload, system = scenario.make_workload(), scenario.make_system()
    played = [
        kvgym.compute_metrics(kvgym.simulate(system, workload.sample(seed), agent))["e2e_latency_mean"]
        for seed in config.evaluation.workload_seeds
    ]
    assert np.mean(played) == pytest.approx(whole.curve[-1]["e2e_latency_mean"], rel=1e-12)


def test_the_export_reads_plain_observations(tmp_path):
    learner = learner_of(make_training(REINFORCE), tmp_path)
    learner.prepare()
    for array in learner.network.numbers:
        array += 0.01
    observation, _ = learner.envs.reset(seed=1)
    x = (observation[:, learner.places] - learner.centre) / learner.spread
    expected = np.clip(learner.usual[0] + learner.usual[1] * learner.network.outputs(x)[0], -1, 1)
    np.testing.assert_allclose(learner.agent({}).predict(observation)[0][:, 0], expected, atol=1e-6)
    assert learner.spread.shape == (2,)


def test_a_fit_starts_from_a_prediction_of_outputs(tmp_path):
    env = {**REINFORCE["env"], "num_requests": 30}
    learner = learner_of(
        make_training({**REINFORCE, "env": env, "inputs": ["asked.prompt"], "hidden": [8], "fit": 100}),
        tmp_path,
    )
    learner.prepare()
    prompts, outputs = (
        np.concatenate([getattr(table, name) for table in learner.tables])
        for name in ("prompt_len", "output_len")
    )
    x = (np.log2(1.0 + prompts) / 17 - learner.centre) / learner.spread
    predicted = 8.0 + learner.network.outputs(x[:, None])[0]
    logs = np.log2(outputs)
    assert np.mean((logs - predicted) ** 2) < 0.8 * logs.var()
    assert predicted.mean() == pytest.approx(logs.mean(), abs=0.2)
    assert learner_of(make_training(REINFORCE), tmp_path / "plain").network.outputs(np.ones((1, 2)))[0] == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": ["asked.colour"]}, "expected a part"),
        ({"env": {"action": "knobs"}}, "one decision per request"),
        ({"env": {"ask_every": 4}}, "ask_every 4"),
        ({"fit": 3, "env": {"answer": "score"}}, "env.answer must be predicted_length; got 'score'"),
        ({"group_size": 3}, "multiple of 2"),
    ],
)
def test_wrong_configurations(change, message):
    with pytest.raises(ConfigError, match=message):
        make_training({**REINFORCE, **change})


def test_the_shipped_configuration_is_of_one_network_of_the_prompt():
    config = load_training("hidden_kinds")
    assert (config.inputs, config.hidden, config.group_size) == (("asked.prompt",), (16,), 2)
    assert len(config.places()) == 1
