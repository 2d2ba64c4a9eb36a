"""States are restored, copied and pickled at random moments of random play, for every id, bit for bit."""

from __future__ import annotations

import copy
import os
import pickle
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from kvgym.envs import IDS, ROUTING_ID, SCHEDULING_IDS
from kvgym.errors import ConfigError

TASK = {"scenario": "mc-sf-model-2", "num_requests": 12}
HARD = {  # little memory, wrong predictions, and a scheduler that draws random numbers
    "scenario": "a100-llama2-70b",
    "workload": {
        "preset": "lmsys",
        "limits": {"max_prompt_len": 60, "max_output_len": 40},
        "predictions": {"kind": "noisy", "epsilon": 0.5},
    },
    "kv_capacity": 250,
    "num_requests": 20,
    "rate": 400.0,
}


def make(name, hard=False, **arguments):
    if hard and name == ROUTING_ID:
        arguments |= {"policy": "alpha_beta:beta=0.5", "workers": 3}
    if hard and name in SCHEDULING_IDS:
        arguments |= {"reward_reference": "mc_sf", "load": (0.5, 2.0)}
    return gym.make(
        name, disable_env_checker=True, max_episode_steps=90, **{**(HARD if hard else TASK), **arguments}
    )


def play(env, steps, seed, reset=False):
    """Play at random, mostly inside the mask, across ends of episodes; return all results."""
    rng = np.random.default_rng(seed)
    found = [env.reset(seed=int(rng.integers(1000)))] if reset else []
    for _ in range(steps):
        env.action_space.seed(int(rng.integers(2**31)))
        mask = env.unwrapped.sample_mask() if rng.random() < 0.7 else None
        found.append(env.step(env.action_space.sample(mask)))
        if found[-1][2] or found[-1][3]:
            found += [env.unwrapped.result().requests.copy(), env.reset()]
    return found


def check_moments(name, moments, equal, seed=0):
    """Restore, copy and pickle an environment at random moments, and continue each."""
    rng = np.random.default_rng(seed)
    env = other = None
    for k in range(moments):
        if k % 4 == 0:  # sometimes another environment, and one in the middle of another episode
            env, other = (make(name, hard=k % 8 == 4) for _ in range(2))
            play(env, 0, k, reset=True)
            play(other, 7, k + 1, reset=True)
        latest = play(env, int(rng.integers(1, 40)), int(rng.integers(2**31)))[-1]
        state, moment = env.unwrapped.get_state(), (env.unwrapped.sample_mask(), latest[0])
        steps, ahead = int(rng.integers(1, 40)), int(rng.integers(2**31))
        limit = env._elapsed_steps
        expected = play(env, steps, ahead)
        observation, info = env.unwrapped.set_state(state)
        assert equal((info["action_mask"], observation), moment)
        env._elapsed_steps = limit
        if k % 4 < 2:
            again = env
        elif k % 4 == 2:
            other.unwrapped.set_state(state)
            other._elapsed_steps = limit
            again = other
        else:
            again = copy.deepcopy(env) if k % 8 < 4 else pickle.loads(pickle.dumps(env))
        assert equal(play(again, steps, ahead), expected), (name, k)


@pytest.mark.parametrize("name", IDS)
def test_random_moments(name, equal):
    """Eight moments; KVGYM_MOMENTS=125 makes it a thousand over all ids, in about two minutes."""
    check_moments(name, int(os.environ.get("KVGYM_MOMENTS", "8")), equal)


@pytest.mark.parametrize("name", IDS)
def test_a_copy_is_equal_and_independent(name, equal):
    """A copy has the random numbers of later episodes and of its spaces, and does not change the original."""
    env = make(name)
    play(env, 5, 0, reset=True)
    env.action_space.seed(3)
    twin = copy.deepcopy(env)
    assert equal(twin.action_space.sample(), env.action_space.sample())
    before = env.unwrapped.get_state()
    play(twin, 30, 1)
    after = env.unwrapped.get_state()
    assert equal(getattr(before, "episode", before).memory, getattr(after, "episode", after).memory)
    assert before.generator == after.generator
    fresh = copy.deepcopy(make(name))
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        fresh.unwrapped.get_state()
    assert equal(fresh.reset(seed=2), env.reset(seed=2))


@pytest.mark.parametrize("name", SCHEDULING_IDS)
def test_vector(name, equal):
    """A vector continues from its own states, and from the state of a single environment in all places."""
    env = gym.make_vec(name, 3, max_episode_steps=30, **TASK).unwrapped
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(40)]
    for action in actions[:11]:
        env.step(action)
    states, twin = env.get_state(), copy.deepcopy(env)
    expected = [env.step(action) for action in actions]
    assert equal([twin.step(action) for action in actions], expected)
    env.set_state(states)
    assert equal([env.step(action) for action in actions], expected)
    single = make(name)
    latest = play(single, 4, 0, reset=True)[-1]
    observations, _ = env.set_state([single.unwrapped.get_state()] * 3)
    assert equal(observations[2], latest[0])
    observation, reward, *_ = single.step(actions[0][1])
    found = env.step(np.stack([actions[0][1]] * 3))
    assert equal((found[0][0], found[1][0]), (observation, np.float64(reward)))
    with pytest.raises(ConfigError, match="1 states for 3 environments"):
        env.set_state([states[0]])


@pytest.mark.parametrize("name", IDS)
def test_states_of_other_environments_are_refused(name):
    one, other = make(name), make(name, num_requests=5, kv_capacity=80)
    one.reset(seed=0)
    with pytest.raises(
        ConfigError, match="another kv_capacity, num_requests; make both with the same arguments"
    ):
        other.unwrapped.set_state(one.unwrapped.get_state())


def test_pictures_begin_with_the_copy():
    env = make("kvgym/AdmitCount-v0", render_mode="ansi")
    play(env, 5, 0, reset=True)
    twin = copy.deepcopy(env)
    assert twin.render() == env.render()
    play(twin, 5, 1)
    state = env.unwrapped.get_state()
    text = env.render()
    play(env, 3, 2)
    env.unwrapped.set_state(state)
    assert env.render() == text


@pytest.mark.parametrize("name", IDS)
def test_invalid_states_are_refused(name):
    one = make(name).unwrapped
    for wrong in ("x", None, 5):
        with pytest.raises(ConfigError, match="expected what get_state"):
            one.set_state(wrong)


def test_invalid_states_of_a_vector_are_refused():
    env = gym.make_vec("kvgym/AdmitCount-v0", num_envs=2, **TASK)
    for wrong, message in ((None, "None for 2 environments"), (["x", "y"], "expected what get_state")):
        with pytest.raises(ConfigError, match=message):
            env.set_state(wrong)
    with pytest.raises(ConfigError, match="workload_seed"):
        env.reset(options={"workload_seed": np.array(1.5)})
    env.reset(options={"workload_seed": np.array(3)})


DAMAGES = {
    "no state": lambda state: {"config": 3},
    "memory of another size": lambda state: with_episode(state, memory=np.zeros(7, np.uint8)),
    "memory of another dtype": lambda state: with_episode(state, memory=np.zeros(7)),
    "no memory": lambda state: with_episode(state, memory=None),
    "no generator": lambda state: replace(state, generator={"bit_generator": "PCG64"}),
    "a generator of another kind": lambda state: replace(state, generator=np.random.MT19937(0).state),
    "steps": lambda state: replace(state, steps=-1),
    "a wrong end": lambda state: replace(state, ended=3),
}


def with_episode(state, **changes):
    """Return a state with a changed episode; for a cluster, the episode is the state itself."""
    if hasattr(state, "episode"):
        return replace(state, episode=replace(state.episode, **changes))
    return replace(state, **changes)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["kvgym/AdmitCount-v0", "kvgym/Route-v0"])
def test_states_are_checked_before_they_are_restored(name, damage):
    env = make(name).unwrapped
    env.reset(seed=1)
    state = env.get_state()
    before = pickle.dumps(state)
    with pytest.raises(ConfigError) as caught:
        env.set_state(DAMAGES[damage](state))
    assert len(str(caught.value)) <= 300
    assert pickle.dumps(env.get_state()) == before
    env.step(0)


@pytest.mark.parametrize("name", ["kvgym/AdmitCount-v0", "kvgym/Route-v0"])
@pytest.mark.parametrize("how", ["replace", "set", "unlock", "outputs"])
def test_a_state_is_restored_only_with_saved_arrays(name, how):
    """Compiled code uses the numbers in them as indices: others would crash the process."""
    env = make(name).unwrapped
    env.reset(seed=1)
    state = env.get_state()
    part = getattr(state, "episode", state)
    other = np.full_like(part.memory, 0x7F)
    if how == "unlock":
        with pytest.raises(ValueError, match="WRITEABLE"):
            part.memory.setflags(write=True)
        return
    if how == "replace":
        state = with_episode(state, memory=other)
    elif how == "set":
        object.__setattr__(part, "memory", other)
    elif hasattr(part, "outputs"):
        state = with_episode(state, outputs=tuple(array.copy() for array in part.outputs))
    else:
        return
    with pytest.raises(ConfigError, match="arrays that were not saved with it"):
        env.set_state(state)
    env.step(0)


@pytest.mark.parametrize("name", ["kvgym/AdmitCount-v0", "kvgym/Route-v0"])
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_copies_of_states_can_be_restored(name, how):
    env = make(name).unwrapped
    env.reset(seed=1)
    state = env.get_state()
    first = env.step(0)
    env.set_state(how(state))
    again = env.step(0)
    assert first[0].tobytes() == again[0].tobytes()
    assert first[1] == again[1]


@pytest.mark.parametrize("name", ["kvgym/AdmitCount-v0", "kvgym/Route-v0"])
def test_pickled_states_detect_damage_and_are_read_only(name):
    env = make(name).unwrapped
    env.reset(seed=1)
    state = getattr(env.get_state(), "episode", env.get_state())
    with pytest.raises(ValueError, match="read-only"):
        state.memory[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        pickle.loads(pickle.dumps(state)).memory[0] = 1
    parts = state.__getstate__()
    for wrong in (
        {**parts, "memory": parts["memory"] ^ np.uint8(1)},
        {**parts, "digest": b"0"},
        {**parts, "memory": parts["memory"].astype(object)},
        {**parts, "more": 1},
        {"memory": parts["memory"]},
        [],
    ):
        with pytest.raises(ConfigError, match="damaged"):
            type(state).__new__(type(state)).__setstate__(wrong)


@pytest.mark.parametrize("name", ["kvgym/AdmitCount-v0", "kvgym/Route-v0"])
def test_damaged_pickles_of_environments(name):
    env = make(name).unwrapped
    env.reset(seed=1)
    vector = gym.make_vec(name, num_envs=2, vectorization_mode="vector_entry_point", **TASK).unwrapped
    vector.reset(seed=1)
    for one in (env, vector):
        parts = one.__getstate__()
        space = gym.spaces.Discrete(99)
        for wrong in (
            {},
            {**parts, "own": {}},
            {**parts, "own": {**parts["own"], "action_space": space}},
            {**parts, "own": {**parts["own"], "spec": 3}},
            {**parts, "arguments": {"scenario": 3}},
            {**parts, ("state" if one is env else "states"): (3,)},
        ):
            with pytest.raises(ConfigError):
                type(one).__new__(type(one)).__setstate__(wrong)
    parts = vector.__getstate__()
    wrong = {**parts, "own": {**parts["own"], "_generators": [3, 4]}}
    with pytest.raises(ConfigError, match="_generators"):
        type(vector).__new__(type(vector)).__setstate__(wrong)
