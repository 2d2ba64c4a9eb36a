"""Registered reward terms and observation parts: the contract of all of them and of the page's example."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from kvgym.envs import SCHEDULING_IDS
from kvgym.envs.registration import register_observation, register_reward
from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.components import (
    OBSERVATIONS,
    REWARDS,
    ObservationPart,
    RewardTerm,
    earn_normalized_latency,
    write_backlog,
)
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.tables import REWARD_TERMS
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "components.md"


@pytest.fixture(scope="module", autouse=True)
def example():
    """Import the page's example, which registers its components, and remove them at the end."""
    first, check = re.findall(r"(?<! -->\n)```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert "features" in first
    assert "check_component" in check
    path = ROOT / "scripts" / "examples" / "acme_components.py"
    spec = importlib.util.spec_from_file_location("acme_components", path)
    module = sys.modules["acme_components"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    exec(check, {})  # the page's example
    yield module
    del sys.modules["acme_components"], REWARDS._items["acme_headroom"], OBSERVATIONS._items["acme_seniority"]


def everything(**arguments):
    """Return arguments of an environment with all components."""
    weights = {name: 0.25 + k for k, name in enumerate(REWARDS)}
    return {"reward": {"latency": 1.0, **weights}, "features": ["priority", *OBSERVATIONS], **arguments}


def trajectory(env, steps=60, seed=0):
    rng = np.random.default_rng(seed)
    found = [env.reset(seed=seed)]
    for _ in range(steps):
        env.action_space.seed(int(rng.integers(2**31)))
        found.append(env.step(env.action_space.sample(env.sample_mask())))
        if found[-1][2] or found[-1][3]:
            found.append(env.reset())
    return found


@pytest.mark.parametrize("action", ["admit_count", "rank"])
@pytest.mark.parametrize("observation", ["flat", "dict"])
def test_components_change_nothing_else(action, observation, small, equal):
    """Standard terms and features are unchanged, the reward is the weighted sum, and all values are within bounds."""
    arguments = {**small, "action": action, "observation": observation}
    usual = {"features": ["rank"]} if action == "rank" else {"features": []}
    chosen = everything()
    chosen["features"] = [*usual["features"], *OBSERVATIONS]
    plain, rich = ServingEnv(**arguments, **usual), ServingEnv(**arguments, **chosen)
    names = rich.reward_terms
    assert names == (*REWARD_TERMS, *REWARDS)
    weights = np.array([chosen["reward"].get(name, 0.0) for name in names])
    size = len(spaces.feature_names(plain.config))
    features = spaces.feature_names(rich.config)[size:]
    assert features[:3] == ("backlog.prompt", "backlog.predicted", "backlog.behind")
    seen = 0.0
    for one, other in zip(trajectory(plain), trajectory(rich), strict=True):
        if observation == "flat":
            np.testing.assert_array_equal(one[0], other[0][:size])
        else:
            assert all(equal(one[0][key], other[0][key]) for key in one[0])
            assert set(other[0]) == {*one[0], *OBSERVATIONS}
        assert other[0] in rich.observation_space
        terms = other[-1]["reward_terms"]
        np.testing.assert_array_equal(one[-1]["reward_terms"], terms[:5])
        if len(one) == 5:
            assert other[1] == pytest.approx(float(weights @ terms), rel=1e-12)
        seen = seen + np.abs(terms)
    assert (seen[5:] > 0).all()


@pytest.mark.parametrize("action", dict.fromkeys(SCHEDULING_IDS.values()))
def test_vectors_are_equal(action, small, equal):
    """Native and synchronous vectors give equal bits, across ends of episodes."""
    arguments = everything(**small, action=action)
    native = ServingVectorEnv(2, **arguments)
    singles = gym.vector.SyncVectorEnv([lambda: ServingEnv(**arguments)] * 2)
    assert equal(native.reset(seed=1), singles.reset(seed=1))
    native.action_space.seed(0)
    for _ in range(25):
        actions = native.action_space.sample()
        assert equal(native.step(actions), singles.step(actions))


def test_uncompiled(small, equal):
    arguments = everything(**small, action="admit_count", block_size=4)
    found = [trajectory(ServingEnv(compiled=c, **arguments), 25) for c in (True, False)]
    assert equal(*found)


def test_states_include_the_memory_of_terms(small, equal):
    env = ServingEnv(**everything(**small, action="admit_count"))
    env.reset(seed=0)
    for _ in range(4):
        env.step(1 if env.action_masks()[1] else 0)
    state = env.get_state()
    found = []
    for _ in range(2):
        env.set_state(state)
        found.append([env.step(0) for _ in range(4)])
    assert equal(*found)


def test_the_built_in_components_by_hand(requests_of):
    """Memory 10 in slotted time: prompts 4, outputs 2, three requests at 0; two fit, and the third waits for both."""
    workload = requests_of((0, 4, 2), (0, 4, 2), (0, 4, 2))
    env = ServingEnv(
        scenario="mc-sf-model-2", kv_capacity=10, workload=workload, queue_window=2, active_window=2,
        must_admit=False, reward={"normalized_latency": 1.0, "queue_shaping": 0.0}, reward_scale=1.0,
        features=["backlog"],
    )  # fmt: skip
    observation, info = env.reset(seed=0)
    # 12 tokens of prompt and 6 of output against a capacity of 10; one of three is beyond the window.
    np.testing.assert_allclose(observation[-3:], [12 / 22, 6 / 16, 1 / 3], rtol=1e-6)
    found, ended = [], False
    while not ended:
        observation, reward, ended, _, info = env.step(int(info["action_mask"].sum()) - 1)
        found.append((info["time"], reward, *info["reward_terms"][5:]))
    finish = env.result().requests["finish_time"]
    assert sum(reward for _, reward, *_ in found) == -(finish / 2).sum()
    assert found[0][3] == -1.0  # from none to one waiting
    assert sum(change for *_, change in found) == 0.0
    assert observation[-3:].tolist() == [0.0, 0.0, 0.0]


def test_agents_observe_the_parts(small):
    """A model that acts by a part alone has the same schedule in the environment and as a policy."""
    import kvgym
    from kvgym.envs.agents import AgentPolicy

    arguments = {**small, "features": ["backlog"], "action": "admit_count"}
    env = ServingEnv(**arguments)

    class Model:
        def predict(self, observation, deterministic=True, action_masks=None):
            return (1 if action_masks[1] and observation[-3] > 0.3 else 0), None

    observation, _ = env.reset(options={"workload_seed": 3})
    ended = False
    while not ended:
        action, _ = Model().predict(observation, action_masks=env.action_masks())
        observation, _, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
    policy = AgentPolicy(Model(), name="by_part", **arguments)
    result = kvgym.simulate(env.episodes.system, env.result().table, policy, seed=3)
    np.testing.assert_array_equal(result.requests["finish_time"], env.result().requests["finish_time"])


def test_wrong_components():
    good = {"name": "mine", "earn": earn_normalized_latency, "summary": "s"}
    for change, message in (
        ({"name": "latency"}, "'latency': expected a name .* other than latency"),
        ({"name": "two words"}, "expected a name of letters"),
        ({"earn": write_backlog}, "earn must be made by reward_kernel"),
        ({"memory": -1}, "memory = -1; expected 0 to"),
    ):
        with pytest.raises(ConfigError, match=message):
            RewardTerm(**{**good, **change})
    good = {"name": "mine", "write": write_backlog, "features": (("a", "b"),)}
    for change, message in (
        ({"name": "queue"}, "other than system"),
        ({"name": "rank"}, "other than system"),
        ({"write": len}, "write must be made by observation_kernel"),
        ({"features": ()}, "expected one or more"),
        ({"low": 2.0}, "low < high"),
    ):
        with pytest.raises(ConfigError, match=message):
            ObservationPart(**{**good, **change})
    with pytest.raises(ConfigError, match="reward term 'queue_shaping' is already registered"):
        register_reward(RewardTerm("queue_shaping", earn_normalized_latency, "another"))
    with pytest.raises(ConfigError, match="feature 'backlog' is already registered"):
        register_observation(ObservationPart("backlog", write_backlog, (("a", "b"),)))


def test_too_many_components(small):
    names = [f"many_{k}" for k in range(9)]
    for name in names:
        register_reward(RewardTerm(name, earn_normalized_latency, "s"))
    try:
        with pytest.raises(ConfigError, match="9 registered reward terms; an environment takes 8 at most"):
            ServingEnv(**small, reward=dict.fromkeys(names, 1.0))
        assert ServingEnv(**small, reward=dict.fromkeys(names[:8], 1.0)).reward_terms[5:] == tuple(names[:8])
    finally:
        for name in names:
            del REWARDS._items[name]


def test_the_page_names_the_built_in_components():
    page = PAGE.read_text("utf-8")
    listed = {"normalized_latency", "queue_shaping", "backlog"}
    found = {name for name in (*REWARDS, *OBSERVATIONS) if not name.startswith("acme")}
    assert listed == found, "a new component goes into the table of docs/components.md, and is listed here"
    assert all(f"| `{name}` |" in page for name in listed)
    assert all(REWARDS[name].summary in page for name in ("normalized_latency", "queue_shaping"))
