"""The slots network in PyTorch: symmetries, layouts, training, files and errors."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3 import A2C, DQN, PPO

from kvgym.agents.sb3.networks import (
    MaskableSlotsPolicy,
    SlotsDQNPolicy,
    SlotsExtractor,
    SlotsPolicy,
    policy_for,
)
from kvgym.agents.sb3.rows import Attention, MaximumOverRows
from kvgym.agents.sb3.vec_env import make_sb3_env
from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.observations import ACTIVE_FEATURES, QUEUE_FEATURES
from kvgym.errors import ConfigError, UnknownNameError

ALGORITHMS = {"ppo": PPO, "maskable_ppo": MaskablePPO, "a2c": A2C, "dqn": DQN}
SHORT_RUN = {
    "ppo": {"n_steps": 16, "batch_size": 16, "n_epochs": 1},
    "maskable_ppo": {"n_steps": 16, "batch_size": 16, "n_epochs": 1},
    "a2c": {"n_steps": 8},
    "dqn": {"learning_starts": 8, "buffer_size": 64, "batch_size": 8, "train_freq": 4},
}
DISCRETE = ("admit_evict", "admit_count")
COMBINATIONS = [
    (algorithm, action)
    for algorithm in ALGORITHMS
    for action in ("admit_evict", "admit_count", "flags", "knobs")
    if algorithm != "dqn" or action in DISCRETE
]
Q, W = 4, 3


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def config_of(action, **arguments):
    return EnvConfig.of(
        **{"action": action, "features": (), "queue_window": Q, "active_window": W, **arguments}
    )


def make_policy(action, algorithm="ppo", seed=0, attention=False):
    """Return a policy with weights, biases included, that are not near zero."""
    config = config_of(action)
    cls, arguments = policy_for("slots", algorithm, config, row_dim=8, context_dim=12, attention=attention)
    torch.manual_seed(seed)
    policy = cls(
        spaces.observation_space(config), config.kind.space(config), lambda _progress: 1e-3, **arguments
    )
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(0.0, 0.4)
    policy.set_training_mode(False)
    return policy


def logits_of(policy, observations):
    with torch.no_grad():
        x = torch.as_tensor(observations)
        if hasattr(policy, "q_net"):
            return policy.q_net(x).numpy()
        return policy.action_net(policy.features_extractor(x)).numpy()


def values_of(policy, observations):
    with torch.no_grad():
        return policy.predict_values(torch.as_tensor(observations)).numpy()


def observations_of(num, rng, present=None):
    """Return random observations (num, D) and views of their queue and active rows."""
    parts = spaces.parts(config_of("admit_count"))
    x = rng.uniform(0, 1, (num, parts["active"][1])).astype(np.float32)
    queue = x[:, slice(*parts["queue"])].reshape(num, Q, len(QUEUE_FEATURES))
    active = x[:, slice(*parts["active"])].reshape(num, W, len(ACTIVE_FEATURES))
    for rows in (queue, active):
        rows[:, :, 0] = rng.integers(0, 2, rows.shape[:2]) if present is None else present
    x[:, slice(*parts["queue"])] = queue.reshape(num, -1)
    x[:, slice(*parts["active"])] = active.reshape(num, -1)
    return x, queue.copy(), active.copy()


def with_rows(x, queue, active):
    x, parts = x.copy(), spaces.parts(config_of("admit_count"))
    x[:, slice(*parts["queue"])] = queue.reshape(len(x), -1)
    x[:, slice(*parts["active"])] = active.reshape(len(x), -1)
    return x


# ---------------------------------------------------------------- symmetries


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("algorithm", ["ppo", "maskable_ppo", "dqn"])
def test_permuting_rows_permutes_admit_evict(algorithm, attention):
    rng = np.random.default_rng(0)
    policy = make_policy("admit_evict", algorithm, attention=attention)
    x, queue, active = observations_of(20, rng)
    of_queue, of_active = rng.permutation(Q), rng.permutation(W)
    permuted = with_rows(x, queue[:, of_queue], active[:, of_active])
    places = np.concatenate([of_queue, Q + of_active, [Q + W]])
    before, after = logits_of(policy, x), logits_of(policy, permuted)
    np.testing.assert_allclose(after, before[:, places], atol=1e-5)
    assert np.ptp(before, axis=1).min() > 1e-3
    if algorithm != "dqn":
        np.testing.assert_allclose(values_of(policy, permuted), values_of(policy, x), atol=1e-5)


def test_permuting_rows_permutes_flags():
    rng = np.random.default_rng(1)
    policy = make_policy("flags")
    x, queue, active = observations_of(20, rng)
    of_queue, of_active = rng.permutation(Q), rng.permutation(W)
    permuted = with_rows(x, queue[:, of_queue], active[:, of_active])
    places = np.concatenate([of_queue, Q + of_active])
    np.testing.assert_allclose(logits_of(policy, permuted), logits_of(policy, x)[:, places], atol=1e-5)


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize(("algorithm", "action"), COMBINATIONS)
def test_content_of_absent_rows_does_not_matter(algorithm, action, attention):
    rng = np.random.default_rng(2)
    policy = make_policy(action, algorithm, attention=attention)
    x, queue, active = observations_of(20, rng)
    before = logits_of(policy, x)
    for rows in (queue, active):
        absent = rows[:, :, 0] == 0
        rows[absent, 1:] = rng.uniform(-1, 1, (int(absent.sum()), rows.shape[2] - 1))
    changed = with_rows(x, queue, active)
    assert not np.array_equal(changed, x)
    np.testing.assert_array_equal(logits_of(policy, changed), before)
    if algorithm != "dqn":
        np.testing.assert_array_equal(values_of(policy, changed), values_of(policy, x))


@pytest.mark.parametrize(("algorithm", "action"), COMBINATIONS)
def test_content_of_present_rows_matters(algorithm, action):
    rng = np.random.default_rng(3)
    policy = make_policy(action, algorithm)
    x, queue, active = observations_of(1, rng, present=1)
    before = logits_of(policy, x)
    for rows in (queue, active):
        for k in range(1, rows.shape[2]):
            kept = rows.copy()
            rows[0, 0, k] += 0.5
            assert np.abs(logits_of(policy, with_rows(x, queue, active)) - before).max() > 1e-5
            rows[:] = kept


def test_attention_by_hand():
    """Two present rows attend to each other; further absent rows change nothing."""
    attention = Attention(1)
    with torch.no_grad():
        attention.inputs.weight[:] = torch.tensor(
            [[1.0], [2.0], [3.0]]
        )  # query, key, value of a row e: e, 2 e, 3 e
        attention.inputs.bias[:] = 0.0
        attention.out.weight[:], attention.out.bias[:] = -0.5, 0.25
    rows = torch.tensor([[[1.0], [0.5], [0.0], [0.0]]])
    with torch.no_grad():
        found = attention(rows, torch.tensor([[1.0, 1.0, 0.0, 0.0]]))
        short = attention(rows[:, :2], torch.ones(1, 2))
    for own, after in zip((1.0, 0.5), found[0, :2, 0].tolist(), strict=True):
        first, second = math.exp(own * 2), math.exp(own * 1)  # query times the keys 2 and 1
        attended = (first * 3 + second * 1.5) / (first + second)
        assert after == pytest.approx(max(own - 0.5 * attended + 0.25, 0.0), abs=1e-6)
    np.testing.assert_array_equal(found[0, 2:], 0.0)
    np.testing.assert_allclose(found[:, :2], short, atol=1e-7)


def test_rows_attend_to_each_other():
    """Without a context, a row's score depends on the other rows only through attention."""
    rng = np.random.default_rng(12)
    x, queue, active = observations_of(6, rng, present=1)
    for attention in (False, True):
        policy = make_policy("admit_evict", attention=attention)
        with torch.no_grad():
            policy.features_extractor.summary.weight.zero_()
        changed = queue.copy()
        changed[:, 1, 1:] += 0.5
        difference = logits_of(policy, with_rows(x, changed, active)) - logits_of(policy, x)
        assert np.abs(difference[:, 1]).max() > 1e-4
        assert (np.abs(np.delete(difference, 1, 1)).max() > 1e-4) == attention


def test_admit_count_adds_up_and_has_prefix_sums():
    """A row changes the scores of rows behind it by the prefix sums; logit 0 is 0, absent rows score alike."""
    rng = np.random.default_rng(4)
    policy = make_policy("admit_count")
    assert policy.features_extractor.prefix == [
        [name for name, _ in QUEUE_FEATURES].index(name) for name in ("prompt", "peak")
    ]
    x, queue, _ = observations_of(6, rng, present=1)
    assert (logits_of(policy, x)[:, 0] == 0).all()
    queue[:, 2:] = 0
    x = with_rows(x, queue, np.zeros((6, W, len(ACTIVE_FEATURES)), np.float32))
    steps = np.diff(logits_of(policy, x), axis=1)
    bias = policy.features_extractor.queue.out.bias.item()
    np.testing.assert_allclose(steps[:, 2:], bias, atol=1e-6)
    # Swapping the two requests leaves all but their prefix sums as it was.
    swapped = with_rows(x, queue[:, [1, 0, 2, 3]], np.zeros((6, W, len(ACTIVE_FEATURES)), np.float32))
    again = np.diff(logits_of(policy, swapped), axis=1)
    assert np.abs(again[:, [1, 0]] - steps[:, :2]).max() > 1e-3


def test_flags_have_pairs_of_logits_for_masks():
    rng = np.random.default_rng(5)
    x, _, _ = observations_of(5, rng)
    single = make_policy("flags", "ppo")
    masked = make_policy("flags", "maskable_ppo")
    masked.load_state_dict(single.state_dict())
    pairs = logits_of(masked, x)
    assert (pairs[:, ::2] == 0).all()
    np.testing.assert_array_equal(pairs[:, 1::2], logits_of(single, x))


def test_nothing_present_is_finite():
    for action in ("admit_evict", "admit_count", "flags", "knobs"):
        x, _, _ = observations_of(2, np.random.default_rng(6), present=0)
        for attention in (False, True):
            assert np.isfinite(logits_of(make_policy(action, attention=attention), x)).all()


def test_gradient_of_the_maximum():
    e = torch.rand(5, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(MaximumOverRows.apply, (e,))


def test_gradients_reach_every_weight():
    for action in ("admit_evict", "admit_count", "flags", "knobs"):
        policy = make_policy(action, attention=True)
        x, _, _ = observations_of(32, np.random.default_rng(7))
        space = policy.action_space
        actions = torch.as_tensor(np.stack([space.sample() for _ in range(32)]))
        actions = actions.float() if action == "flags" else actions
        values, log_probs, _ = policy.evaluate_actions(torch.as_tensor(x), actions)
        (values.sum() + log_probs.sum()).backward()
        without = [name for name, p in policy.named_parameters() if p.grad is None or not p.grad.any()]
        assert not without, (action, without)


# ---------------------------------------------------------------- starting point


@pytest.mark.parametrize("algorithm", ["ppo", "maskable_ppo", "a2c"])
@pytest.mark.parametrize("action", ["admit_evict", "admit_count", "flags", "knobs"])
def test_an_untrained_policy_is_nearly_uniform(algorithm, action):
    config = config_of(action)
    cls, arguments = policy_for("slots", algorithm, config)
    policy = cls(spaces.observation_space(config), config.kind.space(config), lambda _p: 1e-3, **arguments)
    x, _, _ = observations_of(20, np.random.default_rng(8))
    assert np.abs(logits_of(policy, x)).max() < 0.2
    optimised = {id(p) for group in policy.optimizer.param_groups for p in group["params"]}
    assert optimised == {id(p) for p in policy.parameters()}


# ---------------------------------------------------------------- training and files


@pytest.mark.parametrize(("algorithm", "action"), COMBINATIONS)
def test_training_and_zip_files(algorithm, action, tmp_path):
    """Weights change, and a saved model or policy predicts the same."""
    env = make_sb3_env(
        action,
        2,
        seed=1,
        scenario="mc-sf-model-2",
        num_requests=6,
        queue_window=Q,
        active_window=W,
        features=(),
    )
    cls, arguments = policy_for("slots", algorithm, env.get_attr("config")[0], row_dim=8, context_dim=12)
    assert json.loads(json.dumps(arguments)) == arguments
    model = ALGORITHMS[algorithm](
        cls, env, policy_kwargs=arguments, seed=0, device="cpu", **SHORT_RUN[algorithm]
    )
    before = {k: v.clone() for k, v in model.policy.state_dict().items()}
    model.learn(64)
    assert any(not torch.equal(v, before[k]) for k, v in model.policy.state_dict().items())
    model.save(tmp_path / "model.zip")
    again = ALGORITHMS[algorithm].load(tmp_path / "model.zip", device="cpu")
    x, _, _ = observations_of(50, np.random.default_rng(9))
    np.testing.assert_array_equal(
        again.predict(x, deterministic=True)[0], model.predict(x, deterministic=True)[0]
    )
    model.policy.save(tmp_path / "policy.pt")
    policy = cls.load(tmp_path / "policy.pt", device="cpu")
    np.testing.assert_array_equal(logits_of(policy, x), logits_of(model.policy, x))


# ---------------------------------------------------------------- policy_for


def test_policy_for():
    config = config_of("admit_count")
    assert policy_for("mlp", "ppo", config) == ("MlpPolicy", {"net_arch": [64, 64]})
    assert policy_for("mlp", "dqn", config, hidden=[8]) == ("MlpPolicy", {"net_arch": [8]})
    layout = {"queue_window": Q, "active_window": W, "action": "admit_count"}
    layout |= {"information": ["predicted_length"], "features": []}
    sizes = {"row_dim": 16, "context_dim": 64, "attention": False}
    expected = {"features_extractor_kwargs": {**layout, **sizes}}
    classes = {
        "ppo": SlotsPolicy,
        "a2c": SlotsPolicy,
        "maskable_ppo": MaskableSlotsPolicy,
        "dqn": SlotsDQNPolicy,
    }
    for algorithm, cls in classes.items():
        assert policy_for("slots", algorithm, config, row_dim=16) == (cls, expected)
    assert issubclass(MaskableSlotsPolicy, MaskableActorCriticPolicy)


@pytest.mark.parametrize(
    ("network", "algorithm", "action", "more", "sizes", "message"),
    [
        ("mlp", "dqn", "flags", {}, {}, "dqn needs one discrete choice"),
        ("slots", "dqn", "knobs", {}, {}, "dqn needs one discrete choice"),
        ("mlp", "ppo", "knobs", {"observation": "dict"}, {}, "flat observations"),
        ("mlp", "ppo", "knobs", {}, {"row_dim": 3}, "no size 'row_dim'; valid: hidden"),
        ("slots", "ppo", "knobs", {}, {"hidden": [3]}, "no size 'hidden'; valid: row_dim, context_dim"),
        ("slots", "ppo", "knobs", {}, {"row_dim": 0}, "row_dim must be a positive whole number"),
        ("slots", "ppo", "knobs", {}, {"attention": 1}, "attention must be true or false, got 1"),
        ("mlp", "ppo", "knobs", {}, {"hidden": [3, 1.5]}, "hidden must be a list of positive whole"),
    ],
)
def test_policy_for_errors(network, algorithm, action, more, sizes, message):
    with pytest.raises(ConfigError, match=message):
        policy_for(network, algorithm, config_of(action, **more), **sizes)


def test_unknown_names():
    with pytest.raises(UnknownNameError, match="'slots'"):
        policy_for("slot", "ppo", config_of("knobs"))
    with pytest.raises(UnknownNameError, match="'ppo'"):
        policy_for("mlp", "pp", config_of("knobs"))


def test_other_layouts_are_an_error():
    space = spaces.flat_space(config_of("knobs"))
    with pytest.raises(ConfigError, match="needs flat observations"):
        SlotsExtractor(space, queue_window=Q + 1, active_window=W, action="knobs")
    with pytest.raises(ConfigError, match="must be positive"):
        SlotsExtractor(space, queue_window=Q, active_window=W, action="knobs", row_dim=0)


@pytest.mark.parametrize("module", ["sb3.networks", "sb3.export"])
def test_without_torch_the_extra_is_named(module):
    code = f"import sys; sys.modules['torch'] = None; import kvgym.agents.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ConfigError" in done.stderr.splitlines()[-1]
    assert 'pip install "kvgym[train]"' in done.stderr
