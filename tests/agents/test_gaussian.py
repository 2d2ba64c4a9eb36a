"""Agents for actions of real numbers: initial actions, present rows, training, files without PyTorch."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, PPO

from helpers.selection import others_long
from helpers.training.network_models import (
    SIZES,
    Q,
    W,
    arguments_of,
    make_env,
    make_model,
    observed,
    random_model,
    with_random_weights,
)
from kvgym.agents import train
from kvgym.agents.library import load_agent
from kvgym.agents.runs.config import make_training
from kvgym.agents.sb3.export import export
from kvgym.agents.sb3.networks import GaussianSlotsPolicy, policy_for
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.baselines.ranked.weights import WEIGHTS
from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.errors import ConfigError
from kvgym.policies.runner import simulate

KINDS = ("rank", "rank_scores")
NETWORKS = ("mlp", "slots")
CASES = [(kind, network) for kind in KINDS for network in NETWORKS]
NUMBER = len(WEIGHTS)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def present_in(kind, x):
    """Return which rows hold a request, bool (N, Q + W)."""
    parts = spaces.parts(EnvConfig.of(**arguments_of(kind)))
    rows = [
        x[:, a:b].reshape(len(x), n, -1)[:, :, 0] for (a, b), n in ((parts["queue"], Q), (parts["active"], W))
    ]
    return np.concatenate(rows, 1) == 1


# ---------------------------------------------------------------- in PyTorch


@pytest.mark.parametrize(("kind", "network"), CASES)
def test_an_untrained_agent_begins_at_the_usual_action(kind, network):
    """Means are near the centre, and standard deviations are the spread."""
    config = EnvConfig.of(**arguments_of(kind))
    centre, spread = config.kind.usual(config)
    policy = make_model(kind, network).policy
    with torch.no_grad():
        found = policy.get_distribution(torch.as_tensor(observed(kind)[0])).distribution
    assert (np.abs(found.mean.numpy() - centre) < 0.2 * spread).all()
    np.testing.assert_allclose(found.stddev.numpy(), np.broadcast_to(spread, found.stddev.shape), rtol=1e-6)
    optimised = {id(p) for group in policy.optimizer.param_groups for p in group["params"]}
    assert optimised == {id(p) for p in policy.parameters()}


def test_the_usual_weights_are_those_of_ranked():
    config = EnvConfig.of(action="rank")
    centre, spread = config.kind.usual(config)
    assert centre.tolist() == [w.default for w in WEIGHTS]
    assert spread.tolist() == [w.step for w in WEIGHTS]
    assert EnvConfig.of(action="tokens").kind.usual(config) is None


def test_permuting_rows_permutes_what_is_added():
    policy, x = random_model("ppo", "slots", "rank_scores").policy, observed("rank_scores")[0]
    start, end = spaces.parts(EnvConfig.of(**arguments_of("rank_scores")))["queue"]
    order = np.random.default_rng(0).permutation(Q)
    turned = x.copy()
    turned[:, start:end] = x[:, start:end].reshape(len(x), Q, -1)[:, order].reshape(len(x), -1)
    with torch.no_grad():
        one, other = (policy.get_distribution(torch.as_tensor(y)).mode().numpy() for y in (x, turned))
    np.testing.assert_allclose(other[:, :Q], one[:, :Q][:, order], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(other[:, Q:], one[:, Q:], rtol=1e-4, atol=1e-5)


def test_rows_without_a_request_have_no_effect():
    """Density and entropy are those of independent normal numbers of the rows that hold one, by hand."""
    policy, x = random_model("ppo", "slots", "rank_scores").policy, observed("rank_scores")[0]
    present = present_in("rank_scores", x)
    assert len(np.unique(present.sum(1))) > 3
    actions = np.random.default_rng(0).normal(size=present.shape).astype(np.float32)
    _, log_prob, entropy = policy.evaluate_actions(torch.as_tensor(x), torch.as_tensor(actions))
    mean = policy.get_distribution(torch.as_tensor(x)).mode().detach().numpy()
    std = float(np.exp(policy.log_std.item())) * EnvConfig.of(action="rank_scores").kind.usual(
        EnvConfig.of(**arguments_of("rank_scores"))
    )[1]  # fmt: skip
    each = -0.5 * ((actions - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(log_prob.detach().numpy(), (each * present).sum(1), rtol=1e-4, atol=1e-4)
    own = np.log(std) + 0.5 * math.log(2 * math.pi * math.e)
    np.testing.assert_allclose(entropy.detach().numpy(), (own * present).sum(1), rtol=1e-4)
    other = np.where(present, actions, 7.0).astype(np.float32)
    assert torch.equal(policy.evaluate_actions(torch.as_tensor(x), torch.as_tensor(other))[1], log_prob)


@pytest.mark.parametrize(("kind", "network"), CASES)
def test_gradients_reach_every_weight(kind, network):
    policy, x = random_model("ppo", network, kind).policy, observed(kind)[0]
    space = policy.action_space
    space.seed(0)
    actions = torch.as_tensor(np.stack([space.sample() for _ in range(len(x))]).astype(np.float32))
    policy.zero_grad()
    values, log_probs, entropy = policy.evaluate_actions(torch.as_tensor(x), actions)
    (values.sum() + log_probs.sum() + entropy.sum()).backward()
    assert not [name for name, p in policy.named_parameters() if p.grad is None or not p.grad.any()]


# ---------------------------------------------------------------- without PyTorch


@pytest.mark.parametrize(("kind", "network"), CASES)
def test_exported_agents_act_as_the_model_does(kind, network, tmp_path):
    model, x = random_model("ppo", network, kind), observed(kind)[0]
    path = tmp_path / "agent.npz"
    export(model, arguments_of(kind)).save(path)
    ours = NumpyModel.load(path)
    expected, _ = model.predict(x, deterministic=True)
    found, _ = ours.predict(x, action_masks=np.ones((len(x), 1), bool))
    assert found.dtype == np.float64
    rows = present_in(kind, x) if kind == "rank_scores" else np.ones(expected.shape, bool)
    np.testing.assert_allclose(found[rows], expected[rows], rtol=1e-4, atol=1e-5)
    one, _ = ours.predict(x[3])
    np.testing.assert_allclose(one, found[3], rtol=1e-5, atol=1e-5)
    space = EnvConfig.of(**arguments_of(kind)).kind.space(EnvConfig.of(**arguments_of(kind)))
    assert all(space.contains(row) for row in found)
    drawn, _ = ours.predict(np.repeat(x[3:4], 4000, 0), deterministic=False, rng=np.random.default_rng(0))
    with torch.no_grad():
        spread = model.policy.get_distribution(torch.as_tensor(x[3:4])).distribution.stddev[0].numpy()
    inside = ((drawn > space.low) & (drawn < space.high)).all(0)  # where nothing was clipped
    assert inside.sum() >= 3
    np.testing.assert_allclose(drawn.std(0)[inside], spread[inside], rtol=0.1)
    with pytest.raises(ConfigError, match="needs a generator"):
        ours.predict(x, deterministic=False)


def test_numbers_beyond_the_bounds_are_clipped():
    ours = export(random_model("ppo", "mlp", "rank"), arguments_of("rank"))
    far = dataclasses.replace(ours.header, spread=(1e6,) * len(WEIGHTS))
    found, _ = NumpyModel(far, ours.arrays).predict(observed("rank")[0])
    ends = np.array([[w.low, w.high] for w in WEIGHTS])
    assert np.isin(np.round(found, 9), np.round(ends, 9)).mean() > 0.9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spread": (0.0,) * NUMBER}, "spreads are positive"),
        ({"low": (1.0,) * NUMBER, "high": (1.0,) * NUMBER}, "low is below high"),
        ({"centre": (1.0,) * (NUMBER - 1)}, f"spread must have {NUMBER - 1} numbers for rank, got {NUMBER}"),
        ({"centre": (math.nan,) * NUMBER}, "centre must be of type"),
        ({"choices": (3,)}, "do not fit rank"),
        ({"action": "knobs", "choices": (3,) * NUMBER}, "centre must have 0 numbers for knobs"),
        ({"action": "rank_scores"}, f"centre must have {Q + W} numbers for rank_scores, got {NUMBER}"),
        ({"action": "tokens"}, "action must be one of .*rank, rank_scores, got 'tokens'"),
    ],
)
def test_damaged_headers(changes, message):
    ours = export(random_model("ppo", "mlp", "rank"), arguments_of("rank"))
    with pytest.raises(ConfigError, match=message):
        NumpyModel(dataclasses.replace(ours.header, **changes), ours.arrays)


def test_agents_of_other_ranges_are_an_error(tmp_path):
    """A file from before a weight got another range, or there was one more, would mean something else now."""
    ours = export(random_model("ppo", "mlp", "rank"), arguments_of("rank"))
    header, last = ours.header, f"layer.{len(ours.header.hidden)}"
    wider = dataclasses.replace(header, high=tuple(2 * x for x in header.high))
    NumpyModel(wider, ours.arrays).save(tmp_path / "wider.npz")
    numbers = {name: getattr(header, name)[:-1] for name in ("centre", "spread", "low", "high")}
    outputs = {f"{last}.weight", f"{last}.bias", "log_std"}
    arrays = {name: array[:-1] if name in outputs else array for name, array in ours.arrays.items()}
    NumpyModel(dataclasses.replace(header, **numbers), arrays).save(tmp_path / "fewer.npz")
    for name, number in (("wider", NUMBER), ("fewer", NUMBER - 1)):
        said = f"its rank actions have {number} numbers in the ranges of training, here {NUMBER} in others"
        with pytest.raises(ConfigError, match=said):
            load_agent(tmp_path / f"{name}.npz")
    ours.save(tmp_path / "ours.npz")
    assert load_agent(tmp_path / "ours.npz").config.action == "rank"


def test_a_plain_policy_of_stable_baselines_is_exported():
    """Its outputs are the numbers themselves: centre 0, spread 1."""
    plain = PPO("MlpPolicy", make_env("rank", 1), seed=0, device="cpu", policy_kwargs={"net_arch": [8]})
    model = with_random_weights(plain)
    x = observed("rank")[0]
    found, _ = export(model, arguments_of("rank")).predict(x)
    np.testing.assert_allclose(found, model.predict(x, deterministic=True)[0], rtol=1e-4, atol=1e-5)


def test_state_dependent_noise_is_an_error():
    with pytest.raises(ConfigError, match="leave use_sde out"):
        make_model("rank", "mlp", use_sde=True)
    model = PPO("MlpPolicy", make_env("rank", 1), seed=0, device="cpu", use_sde=True)
    with pytest.raises(ConfigError, match="cannot export state-dependent noise"):
        export(model, arguments_of("rank"))


# ---------------------------------------------------------------- training

TRAINING = {
    "name": "tiny",
    "num_envs": 4,
    "total_steps": 64,
    "hyperparameters": {"n_steps": 16, "gamma": 1.0},
    "evaluation": {"interval": 64, "seeds": 2},
}


@pytest.mark.parametrize(
    ("kind", "network", "algorithm"),
    others_long(
        [(*case, algorithm) for case in CASES for algorithm in ("ppo", "a2c")],
        [(*case, ("ppo", "a2c")[k % 2]) for k, case in enumerate(CASES)],
    ),
)
def test_training_makes_an_agent(algorithm, kind, network, tmp_path):
    batch = {"batch_size": 32, "n_epochs": 2} if algorithm == "ppo" else {}
    sizes = {"kind": network, **SIZES[network]}
    fields = TRAINING | {"algorithm": algorithm, "env": arguments_of(kind), "network": sizes}
    fields["hyperparameters"] = TRAINING["hyperparameters"] | batch
    assert train(make_training(fields), tmp_path).steps == 64
    agent = load_agent(tmp_path)
    config = EnvConfig.of(**arguments_of(kind))
    scenario = config.make_scenario()
    run = simulate(scenario.make_system(), scenario.make_workload().sample(1), agent)
    assert run.completed


@pytest.mark.parametrize("network", NETWORKS)
def test_saved_policies_predict_the_same(network, tmp_path):
    model = make_model("rank_scores", network, "a2c", num_envs=4, n_steps=8)
    before = [p.clone() for p in model.policy.parameters()]
    model.learn(64)
    assert all(not torch.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True))
    model.save(tmp_path / "model.zip")
    again = A2C.load(tmp_path / "model.zip", device="cpu")
    x = observed("rank_scores")[0]
    np.testing.assert_array_equal(
        again.predict(x, deterministic=True)[0], model.predict(x, deterministic=True)[0]
    )
    assert isinstance(again.policy, GaussianSlotsPolicy) == (network == "slots")


@pytest.mark.parametrize("kind", KINDS)
def test_algorithms_for_discrete_actions_are_an_error(kind):
    config = EnvConfig.of(**arguments_of(kind))
    for network in NETWORKS:
        with pytest.raises(ConfigError, match="which maskable_ppo does not support; use ppo or a2c"):
            policy_for(network, "maskable_ppo", config)
    with pytest.raises(ConfigError, match=f"{kind} has real numbers; use ppo or a2c"):
        make_training(TRAINING | {"env": arguments_of(kind)})
    with pytest.raises(
        ConfigError, match=r"dqn needs a Discrete action.*maskable_ppo all but .*rank and rank_scores"
    ):
        make_training(TRAINING | {"algorithm": "dqn", "env": arguments_of(kind)})


def test_kinds_of_action_without_agents():
    with pytest.raises(
        ConfigError, match=r"agents are trained for admit_evict, .*rank_scores, not for tokens"
    ):
        make_training(TRAINING | {"algorithm": "ppo", "env": {"action": "tokens"}})
    config = EnvConfig.of(action="tokens")
    with pytest.raises(ConfigError, match=r"the slots network is for .*, not for tokens"):
        policy_for("slots", "ppo", config)
    assert policy_for("mlp", "ppo", config) == ("MlpPolicy", {"net_arch": [64, 64]})
    with pytest.raises(ConfigError, match="tokens has real numbers"):
        policy_for("mlp", "maskable_ppo", config)
