"""Training with Stable-Baselines3, and agents as policies."""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

import kvgym
from helpers.selection import others_long
from kvgym.envs import SCHEDULING_IDS as IDS
from kvgym.envs.agents import AgentPolicy
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.scenario import load_scenario
from kvgym.metrics.catalogue import metric_names

torch = pytest.importorskip("torch")
sb3 = pytest.importorskip("stable_baselines3")
contrib = pytest.importorskip("sb3_contrib")
vec_env = pytest.importorskip("kvgym.agents.sb3.vec_env")

TINY = {"num_requests": 3, "horizon": 60.0}
make = vec_env.make_sb3_env


pytestmark = pytest.mark.usefixtures("one_torch_thread")


# ---------------------------------------------------------------- the adapter


@pytest.mark.parametrize(
    ("name", "observation"),
    others_long(
        list(itertools.product(IDS, ["flat", "dict"])),
        [(name, ("dict", "flat")[k % 2]) for k, name in enumerate(IDS)],
    ),
)
def test_steps_are_those_of_dummy_vec_env(name, observation, small, equal):
    """Same observations, rewards, ends, final observations and masks as N monitored scalar environments."""
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    arguments = {**small, **TINY, "observation": observation}
    ours = make(name, 3, seed=7, **arguments)
    theirs = DummyVecEnv([lambda: Monitor(gym.make(name, **arguments)) for _ in range(3)])
    theirs.seed(7)
    first = theirs.reset()
    assert equal(ours.reset(), dict(first) if isinstance(first, dict) else first)
    ours.action_space.seed(0)
    episodes = 0
    for _ in range(150):
        masks = ours.env_method("action_masks")
        assert equal(np.stack(masks), np.stack(theirs.env_method("action_masks")))
        actions = np.stack([sample(ours.action_space, row) for row in masks])
        a, b = ours.step(actions), theirs.step(actions)
        assert equal(a[0], dict(b[0]) if isinstance(b[0], dict) else b[0])
        assert equal(a[1], b[1])
        assert equal(a[2], b[2])
        for mine, other in zip(a[3], b[3], strict=True):
            assert ("episode" in mine) == ("episode" in other)
            if "episode" in mine:
                episodes += 1
                assert equal(mine["terminal_observation"], other["terminal_observation"])
                assert mine["TimeLimit.truncated"] == other["TimeLimit.truncated"]
                assert mine["episode"]["l"] == other["episode"]["l"]
                assert mine["episode"]["r"] == pytest.approx(other["episode"]["r"], abs=1e-5)
                assert mine["episode"]["t"] >= 0
                metrics = [mine[f"kv/{name}"] for name in metric_names()]
                np.testing.assert_array_equal(metrics, other["metrics"])
    assert episodes > 2


def sample(space, row):
    """Return a random action inside an sb3-contrib mask."""
    if isinstance(space, gym.spaces.Discrete):
        valid = row.astype(np.int8)
        if space.n == 7:  # one at a time: evicts seldom
            valid[3:6] = 0
        return space.sample(mask=valid)
    if isinstance(space, gym.spaces.MultiBinary):
        return space.sample(mask=np.concatenate([2 * row[1:6:2], np.zeros(3, bool)]).astype(np.int8))
    return space.sample()


def test_time_limit(small):
    env = make("admit_count", 2, seed=0, max_episode_steps=4, **small)
    env.reset()
    for step in range(1, 9):
        *_, done, infos = env.step(np.zeros(2, np.int64))
        assert done.tolist() == [step % 4 == 0] * 2
        for info in infos:
            assert ("episode" in info) == (step % 4 == 0)
            if info:
                assert info["TimeLimit.truncated"] is True
                assert info["episode"]["l"] == 4
                assert set(info) > {f"kv/{name}" for name in metric_names()}


@pytest.mark.parametrize("observation", ["flat", "dict"])
def test_returned_arrays_may_be_kept_and_changed(observation, small, equal):
    arguments = {**small, **TINY, "observation": observation}
    env, twin = (make("admit_count", 2, seed=1, **arguments) for _ in range(2))
    kept = [env.reset()]
    twin.reset()
    snapshots = [copy.deepcopy(kept[0])]
    for _ in range(60):
        masks = env.action_masks()
        assert equal(masks, twin.action_masks())
        actions = masks[:, 1].astype(np.int64)
        returned = env.step(actions)
        kept.append(returned)
        snapshots.append(copy.deepcopy(returned))
        spoilt = twin.step(actions)
        spoilt[1][:] = 99.0
        spoilt[2][:] = True
        for array in spoilt[0].values() if isinstance(spoilt[0], dict) else [spoilt[0]]:
            array[:] = -1
        masks[:] = False
    assert equal(kept, snapshots)


def test_attributes_and_methods(small):
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecMonitor, is_vecenv_wrapped

    env = make("kvgym:kvgym/AdmitCount-v0", 3, seed=1, **small)
    env.reset()
    assert env.has_attr("action_masks")
    assert not env.has_attr("no_such_thing")
    assert [mask().shape for mask in env.get_attr("action_masks", [0, 2])] == [(4,), (4,)]
    assert len(env.env_method("action_masks", indices=1)) == 1
    assert env.get_attr("render_mode") == [None] * 3
    assert env.get_attr("config", 0)[0].queue_window == 3
    assert env.env_is_wrapped(Monitor) == [True] * 3
    assert env.env_is_wrapped(gym.wrappers.TimeLimit) == [False] * 3
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        assert is_vecenv_wrapped(VecMonitor(env), VecMonitor)
    with pytest.raises(AttributeError, match="only action_masks"):
        env.env_method("fly")
    with pytest.raises(ConfigError, match="queue_window cannot be set"):
        env.set_attr("queue_window", 3)
    assert env.get_images() == [None] * 3
    env.close()


def test_options(small):
    env = make("admit_count", 2, seed=1, **small)
    env.set_options({"workload_seed": 5})
    first = env.reset()
    assert np.array_equal(first[0], first[1])
    assert not np.array_equal(*env.reset())  # options hold for one reset
    env.set_options([{"workload_seed": 5}, {"workload_seed": 6}])
    assert np.array_equal(env.reset()[0], first[0])
    env.set_options([{"workload_seed": 5}, {}])
    with pytest.raises(ConfigError, match="same options"):
        env.reset()


def test_wrong_arguments(small):
    with pytest.raises(UnknownNameError, match=r"admit_cuont.*Did you mean 'admit_count'"):
        make("admit_cuont", 2)
    with pytest.raises(ConfigError, match="kvgym/Scale-v0 decides for a cluster and has no adapter"):
        make("kvgym/Scale-v0", 2)
    with pytest.raises(ConfigError, match="queue_windo"):
        make("admit_count", 2, queue_windo=2)
    with pytest.raises(ConfigError, match="needs autoreset_mode='SameStep', got 'NextStep'"):
        vec_env.SB3VecEnv(ServingVectorEnv(2, **small))
    with pytest.raises(ConfigError, match="needs a ServingVectorEnv"):
        vec_env.SB3VecEnv(gym.make_vec("CartPole-v1", 2))


@pytest.mark.parametrize("missing", ["stable_baselines3", "torch"])
def test_without_the_training_extra(missing):
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import kvgym, kvgym.agents\n"
        "from kvgym.errors import ConfigError\n"
        "try:\n    import kvgym.agents.sb3.vec_env\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 'pip install "kvgym[train]"' in done.stdout


# ---------------------------------------------------------------- training


def train(algorithm, env, steps=768, policy="MlpPolicy"):
    """Train a small network for a few hundred steps."""
    model = algorithm(
        policy, env, n_steps=32, batch_size=128, n_epochs=2, seed=3, device="cpu",
        policy_kwargs={"net_arch": [16]},
    )  # fmt: skip
    model.learn(steps)
    return model


@pytest.mark.parametrize(
    ("name", "observation"),
    others_long(
        list(itertools.product(IDS, ["flat", "dict"])),
        [(name, ("flat", "dict")[k % 2]) for k, name in enumerate(IDS)],
    ),
)
def test_ppo(name, observation, small):
    env = make(name, 8, seed=0, **{**small, **TINY, "observation": observation})
    model = train(sb3.PPO, env, policy="MlpPolicy" if observation == "flat" else "MultiInputPolicy")
    assert model.num_timesteps == 768
    assert model.ep_info_buffer
    assert {"r", "l", "t"} <= model.ep_info_buffer[0].keys()


@pytest.mark.parametrize(
    "name", [name for name in IDS if not any(box in name for box in ("Tokens", "Rank", "Priority"))]
)  # a Box has no masks
def test_maskable_ppo_respects_the_masks(name, small):
    from sb3_contrib.common.maskable.evaluation import evaluate_policy

    arguments = {**small, **TINY}
    env = make(name, 8, seed=0, **arguments)
    model = train(contrib.MaskablePPO, env)
    observation = env.reset()
    for _ in range(40):
        masks = np.stack(env.env_method("action_masks"))
        actions, _ = model.predict(observation, action_masks=masks)
        for action, row in zip(actions, masks, strict=True):
            chosen = {
                "Discrete": lambda a, r: r[a],
                "MultiBinary": lambda a, r: r.reshape(-1, 2)[np.arange(len(a)), a],
                "MultiDiscrete": lambda a, r: r[a + np.cumsum([0, *env.action_space.nvec[:-1]])],
            }[type(env.action_space).__name__](action, row)
            assert np.all(chosen)
        observation, *_ = env.step(actions)
    mean, _ = evaluate_policy(
        model, make(name, 2, seed=5, **arguments), n_eval_episodes=4, deterministic=False
    )
    assert mean < 0


@pytest.mark.parametrize("algorithm", [sb3.PPO, contrib.MaskablePPO])
def test_same_seed_same_network(algorithm, small):
    weights = []
    for _ in range(2):
        model = train(algorithm, make("admit_count", 4, **small), steps=256)
        weights.append(np.concatenate([p.detach().numpy().ravel() for p in model.policy.parameters()]))
    np.testing.assert_array_equal(*weights)


def test_normalised(small, tmp_path):
    from stable_baselines3.common.vec_env import VecNormalize

    env = VecNormalize(make("admit_count", 4, seed=0, **{**small, **TINY}))
    train(contrib.MaskablePPO, env)
    env.save(str(tmp_path / "normal.pkl"))
    again = VecNormalize.load(str(tmp_path / "normal.pkl"), make("admit_count", 4, seed=0, **small))
    np.testing.assert_array_equal(again.obs_rms.mean, env.obs_rms.mean)


def test_other_algorithms(small):
    """DQN gets the final observations of truncated episodes from the infos."""
    env = make("admit_count", 2, seed=0, max_episode_steps=5, **small)
    model = sb3.DQN(
        "MlpPolicy", env, learning_starts=20, buffer_size=500, policy_kwargs={"net_arch": [8]}, seed=0
    )
    model.learn(200)
    assert model.replay_buffer.dones.sum() > 0


# ---------------------------------------------------------------- agents as policies


class Valid:
    """Chooses a valid action by a hash of the observation."""

    def __init__(self, env: ServingEnv, rest: float = 0.95) -> None:
        self.space, self.rest, self.config = env.action_space, rest, env.config

    def predict(self, observation, *, deterministic=True, action_masks=None):
        flat = np.concatenate([np.ravel(part) for part in observation.values()]) if isinstance(observation, dict) else observation  # noqa: E501  # fmt: skip
        number = int(abs(float(flat.astype(np.float64) @ np.arange(1, len(flat) + 1))) * 1e6)
        rng = np.random.default_rng(number)
        if self.config.action == "admit_evict" and rng.random() < self.rest:
            action_masks = action_masks.copy()
            action_masks[self.config.queue_window : -1] = False  # evicts seldom
        if isinstance(self.space, gym.spaces.Discrete):
            return np.array(rng.choice(np.flatnonzero(action_masks))), None
        if self.config.action == "flags":
            ups = action_masks[1::2] & (rng.random(self.space.n) < 0.5)
            if rng.random() < 0.8:
                ups[self.config.queue_window :] = False
            return ups.astype(np.int8), None
        if isinstance(self.space, gym.spaces.Box):  # a few leave or pause, the batch always runs
            action = np.where(rng.random(self.space.shape) < 0.9, 1.0, rng.uniform(-1, 1, self.space.shape))
            action[-1] = -1.0
            return np.clip(action, self.space.low, self.space.high), None
        return np.array([rng.integers(n) for n in self.space.nvec]), None


CASES = (
    {"scenario": "mc-sf-model-2", "workload": "mcsf-model-1", "num_requests": 20},  # all at once: no rate
    {"scenario": "mc-sf-model-2", "num_requests": 20},
    {"scenario": "mc-sf-model-2", "num_requests": 20, "observation": "dict", "queue_order": "predicted"},
    {
        "workload": {"preset": "lmsys", "limits": {"max_prompt_len": 40, "max_output_len": 30}},
        "kv_capacity": 200, "num_requests": 40, "rate": 100.0, "queue_order": "prompt", "information": [],
        "system": {"progress_on_evict": "recompute", "requeue": "back"}, "observation": "rllib",
    },
)  # fmt: skip


KINDS = list(dict.fromkeys(IDS.values()))


@pytest.mark.parametrize(
    ("action", "epochs", "case"),
    others_long(
        list(itertools.product(KINDS, ["iteration", "decision"], range(len(CASES)))),
        [(kind, ("iteration", "decision")[k % 2], k % len(CASES)) for k, kind in enumerate(KINDS)]
        + [("admit_count", "decision", 1), ("admit_count", "decision", 2), ("admit_count", "iteration", 3)],
    ),
)
def test_an_agent_acts_in_simulate_as_in_the_environment(action, epochs, case):
    arguments = {
        "action": action,
        "epochs": epochs,
        "queue_window": 5,
        "active_window": 4,
        "hold": 3,
        **CASES[0 if action == "keep" else case],  # keep has a scenario with sessions
    }
    env = ServingEnv(**arguments, horizon=1e5)
    agent = Valid(env)
    for seed in (0, 1):
        observation, _ = env.reset(options={"workload_seed": seed})
        ended, steps = False, 0
        while not ended:
            choice, _ = agent.predict(observation, action_masks=env.action_masks())
            observation, _, ended, truncated, _ = env.step(choice)
            steps += 1
            assert not truncated
        system = env.config.make_scenario().make_system()
        table = env.episodes.workload.sample(seed)
        result = kvgym.simulate(system, table, AgentPolicy(agent, **arguments), seed=seed)
        expected = env.result()
        assert result.completed
        for column in ("start_time", "first_token_time", "finish_time", "num_evictions", "max_token_gap"):
            np.testing.assert_array_equal(result.requests[column], expected.requests[column])
        assert result.worker["iteration"] == expected.worker["iteration"]


@pytest.mark.parametrize("algorithm", others_long([sb3.PPO, contrib.MaskablePPO], [contrib.MaskablePPO]))
def test_compare_with_a_trained_agent(algorithm, small, tmp_path):
    arguments = {**small, "horizon": None, "num_requests": None}
    model = train(algorithm, make("admit_count", 4, **arguments))
    model.save(tmp_path / "agent.zip")
    agent = AgentPolicy(
        algorithm.load(tmp_path / "agent.zip"), name="mine", action="admit_count", **arguments
    )
    scenario = load_scenario("mc-sf-model-2").override(system={"stall_limit": 100})
    found = [kvgym.compare(scenario, [agent, "fcfs"], seeds=2) for _ in range(2)]
    for comparison in found:
        assert comparison.policies == ("mine", "fcfs")
        runs = [run for run in comparison.runs if run.policy == "mine"]
        stuck = ("no progress", "admitted no request")
        assert all(run.completed_once or any(why in run.error for why in stuck) for run in runs)
    again = [[(run.policy, run.seed, run.error, str(run.metrics)) for run in c.runs] for c in found]
    assert again[0] == again[1]
