"""Ids, specs and arguments."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import kvgym.envs
from kvgym.envs import IDS, SCHEDULING_IDS, environment_names
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.spaces import feature_names
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError, UnknownNameError, WorkloadError


def test_every_id_of_the_registry_is_listed():
    assert {name for name in gym.registry if name.startswith("kvgym/")} == set(IDS)
    assert all(re.fullmatch(r"kvgym/\w+-v0", name) for name in IDS)
    assert set(environment_names()) >= set(IDS)


@pytest.mark.parametrize("action", ["admit_evict", "flags", "tokens"])
def test_kinds_that_evict_observe_what_it_saves(action, small, equal):
    """Without the feature the observation is equal otherwise; masks do not change what actions do."""
    env, plain = (ServingEnv(**{"action": action, **small, **more}) for more in ({}, {"features": []}))
    names = feature_names(env.config)
    kept = [at for at, feature in enumerate(names) if not feature.endswith("saved_duration")]
    assert [names[at] for at in kept] == list(feature_names(plain.config))
    assert len(names) - len(kept) == env.config.active_window
    seen, ended = [each.reset(seed=3)[0] for each in (env, plain)], False
    env.action_space.seed(3)
    for _ in range(40):
        assert equal(seen[0][kept], seen[1])
        if ended:
            break
        chosen = env.action_space.sample(env.sample_mask())
        stepped = [each.step(chosen) for each in (env, plain)]
        seen, ended = [found[0] for found in stepped], stepped[0][2] or stepped[0][3]


@pytest.mark.parametrize(("name", "action"), SCHEDULING_IDS.items())
def test_an_id_is_its_kind_of_action(name, action):
    assert gym.spec(name).kwargs == {"action": action}


@pytest.mark.parametrize("name", SCHEDULING_IDS)
def test_make(name, small):
    env = gym.make(name, **small)
    assert isinstance(env.unwrapped, ServingEnv)
    assert env.unwrapped.config.action == IDS[name]
    assert gym.make(f"kvgym:{name}", **small).spec.id == name
    vector = gym.make_vec(name, num_envs=2, **small)
    assert isinstance(vector.unwrapped, ServingVectorEnv)
    assert vector.spec.id == name
    sync = gym.make_vec(f"kvgym:{name}", num_envs=2, vectorization_mode="sync", **small)
    assert sync.single_observation_space == vector.single_observation_space


@pytest.mark.parametrize("names", [tuple(SCHEDULING_IDS), ("kvgym/Route-v0", "kvgym/Scale-v0")])
def test_make_without_importing_kvgym(names, tmp_path):
    """The first id of each kind of environment imports kvgym; the others work afterwards."""
    program = (
        "import sys, gymnasium as gym; assert 'kvgym' not in sys.modules\n"
        f"try: gym.make({names[0]!r})\n"
        "except gym.error.NamespaceNotFound: pass\n"  # as docs/environments says
        f"for name in {names}:\n"
        "    env = gym.make(f'kvgym:{name}', scenario='mc-sf-model-2'); env.reset(seed=0)\n"
        "    assert env.spec.id == name\n"
        "assert 'torch' not in sys.modules; print('fine')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "fine", done.stderr


@pytest.mark.parametrize("how", ["json", "pickle"])
@pytest.mark.parametrize("name", SCHEDULING_IDS)
def test_spec_survives(name, how, small, equal):
    arguments = {
        **small,
        "workload": {"preset": "mcsf-model-2", "predictions": {"kind": "noisy", "epsilon": 0.3}},
        "system": {"first_token": "uncounted", "requeue": "front"},
        "information": ["predicted_length", "slo"],
        "reward": {"latency": 0.5, "evictions": 0.1},
        "batch_time": {"kind": "affine", "constant": 0.5, "per_context_token": 0.01},
    }
    env = gym.make(name, **arguments)
    spec = env.spec
    copy = EnvSpec.from_json(spec.to_json()) if how == "json" else pickle.loads(pickle.dumps(spec))
    again = gym.make(copy)
    assert again.unwrapped.config == env.unwrapped.config
    assert equal(env.reset(seed=1), again.reset(seed=1))
    action = env.action_space.sample(env.unwrapped.sample_mask())
    assert equal(env.step(action), again.step(action))


def test_arguments_are_json():
    config = EnvConfig.of(system={"requeue": "back"}, reward={"ttft": 1.0})
    assert EnvConfig.of(**json.loads(json.dumps(config.model_dump(mode="json")))) == config


def test_registering_again_changes_nothing():
    before = dict(gym.registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kvgym.envs.register_all()
    assert gym.registry == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"queue_windo": 3},
            "queue_windo: there is no such field; did you mean 'queue_window'.* valid there: action, scenario",
        ),
        ({"queue_window": 0}, "queue_window"),
        ({"queue_window": 2.5}, "queue_window"),
        ({"action": "fly"}, "action.*'admit_evict'"),
        ({"observation": "image"}, "observation"),
        ({"epochs": "never"}, "epochs"),
        ({"overflow": "fifo"}, "overflow"),
        ({"information": ["future"]}, "unknown information 'future'.*Valid names: .*predicted_length"),
        ({"information": ["length_interval"]}, "length_interval.*does not predict it"),
        ({"information": [], "queue_order": "predicted"}, "needs 'predicted_length'"),
        ({"reward": {"speed": 1.0}}, "unknown reward term 'speed'.*Valid names: .*latency"),
        ({"reward_scale": 0}, "reward_scale"),
        ({"reward": {"latency": float("nan")}}, "reward"),
        ({"reward_scale": float("inf")}, "reward_scale"),
        ({"horizon": float("nan")}, "horizon"),
        ({"time_scale": float("inf")}, "time_scale"),
        ({"idle_time": float("inf")}, "idle_time"),
        ({"rate": -1.0}, "rate"),
        ({"num_requests": 0}, "num_requests"),
        ({"system": {"first_token": "never"}}, "first_token = 'never'"),
        ({"system": {"speed": 3}}, "system.speed"),
        ({"batch_time": {"kind": "magic"}}, "magic"),
        ({"render_mode": "human"}, "render_mode = 'human'; valid: rgb_array, ansi"),
        ({"compile": True}, "compile"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ServingEnv(**{"scenario": "mc-sf-model-2", **arguments})


def test_wrong_names():
    with pytest.raises(UnknownNameError, match="unknown scenario 'a100'"):
        ServingEnv(scenario="a100")
    with pytest.raises(UnknownNameError, match="lmsys"):
        ServingEnv(workload="lmsis")
    with pytest.raises(WorkloadError, match="can never be served"):
        ServingEnv(kv_capacity=50).reset(seed=0)


def test_requests_that_can_never_be_served_are_dropped_where_the_scenario_says_so(tmp_path):
    path = tmp_path / "scenario.yaml"
    lengths = (
        "{kind: independent, prompt: {kind: uniform, low: 1, high: 100}, output: {kind: constant, value: 5}}"
    )
    path.write_text(
        f"""
batch_time: {{kind: unit}}
kv_capacity: 60
workload: {{arrivals: {{kind: poisson, rate: 1}}, lengths: {lengths}, num_requests: 20}}
too_long: drop
policies: [fcfs]
"""
    )
    env = ServingEnv(scenario=str(path))
    env.reset(seed=0)
    wanted = env.episodes.scenario.make_workload().sample(0).prompt_len
    np.testing.assert_array_equal(env.episodes.requests(0).prompt_len, wanted[wanted <= 55])
    assert 0 < np.count_nonzero(wanted <= 55) < 20


def test_wrong_reset_options(small):
    env = ServingEnv(**small)
    with pytest.raises(ConfigError, match="unknown reset option 'seed'; valid: workload_seed"):
        env.reset(options={"seed": 3})
    with pytest.raises(ConfigError, match="seed must be a whole number"):
        env.reset(options={"workload_seed": -1})
    with pytest.raises(ConfigError, match="seed"):
        env.reset(options={"workload_seed": 0.5})


def test_workload_seed_gives_the_requests_of_compare(small):
    env = ServingEnv(**small)
    env.reset(options={"workload_seed": 4})
    table = env.episodes.workload.sample(4)
    np.testing.assert_array_equal(env.result().table.arrival_time, table.arrival_time)
    np.testing.assert_array_equal(env.result().table.output_len, table.output_len)


def test_stepping_needs_a_reset(small):
    for env in (ServingEnv(**small), gym.make("kvgym/AdmitCount-v0", **small)):
        with pytest.raises(gym.error.ResetNeeded):
            env.step(0)
        env.close()
        env.close()


@pytest.mark.parametrize("name", SCHEDULING_IDS)
def test_an_episode_that_is_over_before_it_begins(name, small):
    """No request arrives before the horizon: the first step ends the episode with any action."""
    arguments = {**small, "workload": {"preset": "mcsf-model-2", "arrivals": {"start": 50}}, "horizon": 10.0}
    env = gym.make(name, **arguments)
    _, info = env.reset(seed=0)
    action = env.action_space.sample(env.unwrapped.sample_mask())
    _, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["completed"] is False
    assert info["time"] <= 10.0
    vector = gym.make_vec(name, 2, **arguments)
    vector.reset(seed=0)
    for ended in (True, False, True):
        _, rewards, _, truncated, _ = vector.step(np.stack([action, action]))
        assert truncated.tolist() == [ended, ended]
        assert not rewards.any()
