"""Exported agents act like the PyTorch models, survive a file, and raise errors for anything else."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.vec_env import VecNormalize

from helpers.training.network_models import ALGORITHMS, SIZES, arguments_of, make_env, observed, random_model
from kvgym.agents.sb3.export import export
from kvgym.agents.sb3.networks import policy_for
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.envs.agents import AgentPolicy
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.errors import ConfigError, KVGymError, LivelockError
from kvgym.policies.runner import prepare_run

ACTIONS = ("admit_evict", "admit_count", "flags", "knobs")
COMBINATIONS = [
    (algorithm, network, action)
    for algorithm in ALGORITHMS
    for network in ("mlp", "slots")
    for action in ACTIONS
    if algorithm != "dqn" or action in ("admit_evict", "admit_count")
] + [("ppo", "attention", "flags"), ("maskable_ppo", "attention", "admit_count")]


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@functools.cache
def exported(algorithm, network, action):
    return export(random_model(algorithm, network, action), arguments_of(action), {"seed": 5})


def torch_logits(model, x):
    policy, x = model.policy, torch.as_tensor(x)
    with torch.no_grad():
        if isinstance(model, DQN):
            return policy.q_net(x).numpy()
        return policy.action_net(policy.mlp_extractor.forward_actor(policy.extract_features(x))).numpy()


def legal(action, chosen, masks):
    """Whether every chosen option is inside its mask, bool (N,)."""
    if action == "flags":
        pairs = masks.reshape(len(masks), -1, 2)
        return np.take_along_axis(pairs, chosen[:, :, None], 2).all((1, 2))
    if action == "knobs":
        return np.ones(len(chosen), bool)
    return masks[np.arange(len(chosen)), chosen]


# ---------------------------------------------------------------- the same as PyTorch


@pytest.mark.parametrize(("algorithm", "network", "action"), COMBINATIONS)
def test_logits_and_actions_are_those_of_torch(algorithm, network, action):
    model, ours = random_model(algorithm, network, action), exported(algorithm, network, action)
    x, _ = observed(action)
    expected = torch_logits(model, x)
    np.testing.assert_allclose(ours.logits(x), expected, atol=1e-5, rtol=1e-5)
    assert ours.logits(x).dtype == np.float32
    actions, state = ours.predict(x)
    assert state is None
    np.testing.assert_array_equal(actions, model.predict(x, deterministic=True)[0])
    assert len(np.unique(actions, axis=0)) > 1
    for row, action_of_row in zip(x[:20], actions, strict=False):
        np.testing.assert_allclose(ours.logits(row), ours.logits(row[None])[0], atol=1e-5)
        one = ours.predict(row)[0]
        assert one.shape == model.action_space.shape
        assert isinstance(one, np.ndarray)
        np.testing.assert_array_equal(one, action_of_row)


@pytest.mark.parametrize("network", ["mlp", "slots"])
@pytest.mark.parametrize("action", ACTIONS)
def test_masked_actions_are_those_of_sb3_contrib(network, action):
    model, ours = random_model("maskable_ppo", network, action), exported("maskable_ppo", network, action)
    x, masks = observed(action)
    actions, _ = ours.predict(x, action_masks=masks)
    np.testing.assert_array_equal(actions, model.predict(x, deterministic=True, action_masks=masks)[0])
    for i in range(20):
        np.testing.assert_array_equal(ours.predict(x[i], action_masks=masks[i])[0], actions[i])


@pytest.mark.parametrize(("algorithm", "network", "action"), COMBINATIONS)
def test_masks_are_respected(algorithm, network, action):
    ours = exported(algorithm, network, action)
    x, masks = observed(action)
    rng = np.random.default_rng(0)
    for deterministic in (True, False):
        chosen, _ = ours.predict(x, deterministic=deterministic, action_masks=masks, rng=rng)
        assert legal(action, chosen, masks).all()
    if action != "knobs":
        assert not legal(action, ours.predict(x, deterministic=False, rng=rng)[0], masks).all()


@pytest.mark.parametrize("network", ["mlp", "slots"])
def test_ties_go_to_the_first(network):
    """All weights 0: the first action, flags down, as the modes of the distributions."""
    for algorithm, _, action in [c for c in COMBINATIONS if c[1] == network]:
        ours = exported(algorithm, network, action)
        flat = NumpyModel(ours.header, {k: np.zeros_like(v) for k, v in ours.arrays.items()})
        x, masks = observed(action)
        assert (flat.predict(x)[0] == 0).all()
        if action.startswith("admit"):
            np.testing.assert_array_equal(flat.predict(x, action_masks=masks)[0], masks.argmax(1))


def test_actions_are_drawn_with_their_probabilities():
    x, _ = observed("admit_count")
    ours, row, mask = exported("ppo", "slots", "admit_count"), x[100], np.array([1, 1, 0, 1, 0, 1], bool)
    drawn, _ = ours.predict(
        np.tile(row, (20_000, 1)),
        deterministic=False,
        action_masks=np.tile(mask, (20_000, 1)),
        rng=np.random.default_rng(1),
    )
    weights = np.where(mask, np.exp(ours.logits(row).astype(float)), 0.0)
    shares = np.bincount(drawn, minlength=6) / len(drawn)
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.015)
    flags = exported("a2c", "slots", "flags")
    row = observed("flags")[0][50]
    drawn, _ = flags.predict(np.tile(row, (20_000, 1)), deterministic=False, rng=np.random.default_rng(2))
    np.testing.assert_allclose(drawn.mean(0), 1 / (1 + np.exp(-flags.logits(row))), atol=0.015)


def test_drawing_needs_a_generator():
    x, _ = observed("knobs")
    ours = exported("ppo", "mlp", "knobs")
    with pytest.raises(ConfigError, match="needs a generator"):
        ours.predict(x, deterministic=False)
    own = NumpyModel(ours.header, ours.arrays, rng=np.random.default_rng(4))
    given, _ = ours.predict(x, deterministic=False, rng=np.random.default_rng(4))
    np.testing.assert_array_equal(own.predict(x, deterministic=False)[0], given)
    assert not np.array_equal(own.predict(x, deterministic=False)[0], given)
    values = exported("dqn", "mlp", "admit_count")
    x, _ = observed("admit_count")
    np.testing.assert_array_equal(values.predict(x, deterministic=False)[0], values.predict(x)[0])


def test_relu_and_no_hidden_layer():
    x, _ = observed("knobs")
    for arguments in ({"net_arch": [6], "activation_fn": torch.nn.ReLU}, {"net_arch": []}):
        model = PPO("MlpPolicy", make_env("knobs", 1), policy_kwargs=arguments, device="cpu")
        ours = export(model, arguments_of("knobs"))
        np.testing.assert_allclose(ours.logits(x), torch_logits(model, x), atol=1e-5)


def test_the_actor_is_exported_if_the_critic_has_its_own_extractor():
    policy, arguments = policy_for("slots", "ppo", EnvConfig.of(**arguments_of("flags")), **SIZES["slots"])
    arguments["share_features_extractor"] = False
    model = PPO(policy, make_env("flags", 1), policy_kwargs=arguments, device="cpu")
    x, _ = observed("flags")
    with torch.no_grad():
        features, _ = model.policy.extract_features(torch.as_tensor(x))
        expected = model.policy.action_net(features).numpy()
    np.testing.assert_allclose(export(model, arguments_of("flags")).logits(x), expected, atol=1e-5)


# ---------------------------------------------------------------- use


@pytest.mark.parametrize(("network", "action"), [("slots", "admit_evict"), ("mlp", "admit_count")])
def test_agent_policy_runs_it_as_the_torch_model(network, action):
    arguments = arguments_of(action)
    scenario = EnvConfig.of(**arguments).make_scenario().override(system={"stall_limit": 50})
    outcomes = []
    for model in (exported("maskable_ppo", network, action), random_model("maskable_ppo", network, action)):
        agent, asked = AgentPolicy(model, **arguments), []
        simulation, _ = prepare_run(scenario.make_system(), scenario.make_workload().sample(1), agent)
        running = simulation.start()
        try:
            while running:
                asked.append(agent.schedule(simulation.view))
                running = simulation.step(asked[-1])
        except LivelockError:
            asked.append("stalled")
        outcomes.append(asked)
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) > 10


def test_loading_and_acting_needs_no_torch(tmp_path):
    x, _ = observed("admit_evict")
    ours = exported("ppo", "slots", "admit_evict")
    ours.save(tmp_path / "agent.npz")
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys; sys.modules['torch'] = sys.modules['stable_baselines3'] = None\n"
        "import numpy as np\nfrom kvgym.agents.trained.numpy_model import NumpyModel\n"
        "print(NumpyModel.load('agent.npz').predict(np.load('x.npy'))[0].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert json.loads(done.stdout) == ours.predict(x)[0].tolist(), done.stderr


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(("algorithm", "network", "action"), COMBINATIONS)
def test_files_round_trip(algorithm, network, action, tmp_path):
    ours, path = exported(algorithm, network, action), tmp_path / "agent.npz"
    ours.save(path)
    again = NumpyModel.load(path)
    assert again.header == ours.header
    assert again.header.env_arguments == arguments_of(action)
    assert again.header.metadata == {"seed": 5}
    assert again.arrays.keys() == ours.arrays.keys()
    for name, array in ours.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    assert os.listdir(tmp_path) == ["agent.npz"]
    x, _ = observed(action)
    np.testing.assert_array_equal(again.predict(x)[0], ours.predict(x)[0])


def test_saving_is_atomic(tmp_path, monkeypatch):
    ours, path = exported("ppo", "mlp", "knobs"), tmp_path / "agent.npz"
    ours.save(path)
    before = path.read_bytes()
    bad = NumpyModel(dataclasses.replace(ours.header, metadata={"object": object()}), ours.arrays)
    with pytest.raises(ConfigError, match="JSON-able"):
        bad.save(path)

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(KVGymError, match=r"agent\.npz: cannot be written: disk full"):
        ours.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["agent.npz"]
    with pytest.raises(ConfigError, match="no folder"):
        ours.save(tmp_path / "missing" / "agent.npz")


def write(path, change_header=None, change_arrays=None):
    """Write a changed copy of a good file."""
    buffer = io.BytesIO()
    ours = exported("ppo", "slots", "admit_evict")
    header = {"format": "kvgym-agent", "version": 1, **dataclasses.asdict(ours.header)}
    header |= change_header or {}
    arrays = {"header": np.array(json.dumps({k: v for k, v in header.items() if v is not None}))}
    arrays |= ours.arrays | (change_arrays or {})
    np.savez(buffer, **{k: v for k, v in arrays.items() if v is not None})
    path.write_bytes(buffer.getvalue())


@pytest.mark.parametrize(
    ("header", "arrays", "message"),
    [
        ({"version": 2}, {}, "expected format version 1, found 2"),
        ({"format": "other"}, {}, "expected format 'kvgym-agent', found 'other'"),
        ({"network": "cnn"}, {}, "network must be one of mlp, slots, got 'cnn'"),
        ({"algorithm": None}, {}, "damaged.*algorithm"),
        ({"extra": 1}, {}, "damaged.*extra"),
        ({"row_dim": "8"}, {}, "row_dim must be of type int"),
        ({"row_dim": 0}, {}, "row_dim must be"),
        ({"row_dim": 9}, {}, r"must be float32 \(9, "),
        ({"choices": [7]}, {}, "do not fit admit_evict"),
        ({"choices": "nine"}, {}, "choices must be"),
        ({"bernoulli": True}, {}, "do not fit admit_evict"),
        ({"prefix": [99]}, {}, "prefix"),
        ({"attention": True}, {}, "missing arrays attention.inputs.bias"),
        ({"lstm": 4}, {}, "lstm must be"),
        ({"lstm": 4, "algorithm": "recurrent_ppo"}, {}, "do not fit network slots"),
        ({"env_arguments": [1]}, {}, "env_arguments must be"),
        ({}, {"pool.bias": None}, "missing arrays pool.bias; expected queue.first.weight"),
        ({}, {"more": np.zeros(1, np.float32)}, "unknown arrays more"),
        ({}, {"pool.bias": np.zeros(12)}, "must be float32 .*float64"),
        ({}, {"pool.bias": np.full(12, np.nan, np.float32)}, "not finite"),
        ({}, {"header": None}, "no array 'header'"),
        ({}, {"header": np.array("{")}, "header: not valid JSON"),
        ({}, {"header": np.array("[]")}, "header: must be a mapping"),
        ({}, {"header": np.array([{}], object)}, "not an .npz file"),
    ],
)
def test_damaged_files_are_named(header, arrays, message, tmp_path):
    write(tmp_path / "good.npz")
    NumpyModel.load(tmp_path / "good.npz")
    write(tmp_path / "bad.npz", header, arrays)
    with pytest.raises(ConfigError, match=message) as caught:
        NumpyModel.load(tmp_path / "bad.npz")
    assert "bad.npz" in str(caught.value)


def test_other_files_are_named(tmp_path):
    good = tmp_path / "good.npz"
    write(good)
    contents = {"empty": b"", "text": b"hello", "half": good.read_bytes()[:500]}
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    for name, content in {**contents, "single": buffer.getvalue()}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=f"{name}: not an .npz file"):
            NumpyModel.load(path)
    with pytest.raises(ConfigError, match="cannot be read: "):
        NumpyModel.load(tmp_path / "missing.npz")
    with pytest.raises(ConfigError, match="cannot be read: "):
        NumpyModel.load(tmp_path)


# ---------------------------------------------------------------- errors


def test_wrong_shapes():
    ours = exported("maskable_ppo", "slots", "flags")
    x, masks = observed("flags")
    for wrong in (x[:, 1:], x[0, 1:], x[None], np.float32(1)):
        with pytest.raises(ConfigError, match="observations must be of shape"):
            ours.predict(wrong)
    with pytest.raises(ConfigError, match="action_masks must be of shape"):
        ours.predict(x, action_masks=masks[:, ::2])


def test_the_first_layer_takes_the_normalisation_of_observations():
    envs = VecNormalize(make_env("admit_count", 8), norm_reward=False, clip_obs=1e6)
    model = PPO("MlpPolicy", envs, n_steps=40, batch_size=320, seed=0, device="cpu")
    model.learn(320)
    plain, _ = observed("admit_count")
    agent = export(model, arguments_of("admit_count"))
    policy: Any = model.policy
    with torch.no_grad():
        standardised = torch.as_tensor(envs.normalize_obs(plain))
        expected = policy.action_net(policy.mlp_extractor.policy_net(standardised)).numpy()
    np.testing.assert_allclose(agent.logits(plain), expected, rtol=1e-3, atol=1e-4)
    assert np.abs(envs.obs_rms.mean).max() > 0.1


def test_export_errors():
    model = random_model("ppo", "mlp", "admit_count")
    with pytest.raises(ConfigError, match="observation space"):
        export(model, {**arguments_of("admit_count"), "active_window": 4})
    with pytest.raises(ConfigError, match="action space"):
        export(model, arguments_of("admit_evict"))
    with pytest.raises(ConfigError, match="no_such_argument"):
        export(model, {**arguments_of("admit_count"), "no_such_argument": 1})
    other = SAC("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu")
    with pytest.raises(ConfigError, match="cannot export SAC"):
        export(other, arguments_of("admit_count"))
    config = EnvConfig.of(**arguments_of("admit_count"))
    policy, kwargs = policy_for("slots", "ppo", config, **SIZES["slots"])
    normalised = PPO(policy, VecNormalize(make_env("admit_count", 1)), policy_kwargs=kwargs, device="cpu")
    with pytest.raises(ConfigError, match="VecNormalize"):
        export(normalised, arguments_of("admit_count"))
    gelu = PPO(
        "MlpPolicy",
        make_env("admit_count", 1),
        policy_kwargs={"activation_fn": torch.nn.GELU},
        device="cpu",
    )
    with pytest.raises(ConfigError, match="Tanh or ReLU"):
        export(gelu, arguments_of("admit_count"))
    nested = PPO("MultiInputPolicy", make_env("admit_count", 1, observation="dict"), device="cpu")
    with pytest.raises(ConfigError, match="flat observations"):
        export(nested, {**arguments_of("admit_count"), "observation": "dict"})
