"""The native vector environment equals SyncVectorEnv of the scalar one, bit for bit."""

from __future__ import annotations

import copy
import itertools
import pickle
import tracemalloc

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

from helpers.environments import vector_play
from helpers.selection import others_long
from kvgym.compiling.kernel import uncompiled
from kvgym.envs import SCHEDULING_IDS as IDS
from kvgym.envs.scheduling.memory import LINE, NUM_TABLES, Sizes, places_of
from kvgym.envs.scheduling.opening import fetch_environment
from kvgym.envs.scheduling.stepping import MANY
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError

N = 3
MODES = tuple(AutoresetMode)
OBSERVATIONS = ("flat", "dict", "rllib")
TINY = {"num_requests": 3, "horizon": 60.0}


def pair(name, mode, max_episode_steps=None, **arguments):
    """Return the native environment and SyncVectorEnv."""
    return vector_play.pair(name, N, mode, max_episode_steps, **arguments)


def actions_for(native, rng, masked=True):
    """Return random actions, inside the masks or not."""
    if not masked:
        return native.action_space.sample()
    space, rows = native.single_action_space, native.action_masks()
    space.seed(int(rng.integers(2**31)))
    if isinstance(space, gym.spaces.Discrete):
        config = native.unwrapped.config
        if config.action == "admit_evict" and rng.random() < 0.8:  # few evictions, so that episodes end
            rows[:, config.queue_window : -1] = False
        return np.array([space.sample(mask=row.astype(np.int8)) for row in rows])
    if isinstance(space, gym.spaces.MultiBinary):
        return np.array([space.sample(mask=(2 * row[1::2]).astype(np.int8)) for row in rows])
    return native.action_space.sample()


def run_both(native, sync, equal, seed, steps=150, masked=True, start=None):
    """Step both with the same actions, comparing everything; return the number of ended episodes."""
    rng = np.random.default_rng(0)
    native.action_space.seed(1)
    reset = start or {"seed": seed}
    return vector_play.drive(native, sync, equal, lambda: actions_for(native, rng, masked), steps, reset)


@pytest.mark.parametrize(
    ("name", "observation", "mode"),
    others_long(
        list(itertools.product(IDS, OBSERVATIONS, MODES)),
        [(name, OBSERVATIONS[k % 3], MODES[(k + k // 3) % 3]) for k, name in enumerate(IDS)]
        + [
            ("kvgym/AdmitCount-v0", observation, mode)
            for observation, mode in zip(OBSERVATIONS, MODES, strict=True)
        ],
    ),
)
def test_equals_sync(name, observation, mode, small, equal):
    native, sync = pair(name, mode, **{**small, **TINY, "observation": observation})
    assert isinstance(native.unwrapped, ServingVectorEnv)
    for space in ("single_action_space", "single_observation_space", "action_space", "observation_space"):
        assert getattr(native, space) == getattr(sync, space)
    assert run_both(native, sync, equal, seed=11) >= 3
    assert run_both(native, sync, equal, seed=None, start={"seed": [5, None, 5]}, steps=20, masked=False) >= 0


@pytest.mark.parametrize("name", IDS)
def test_equals_sync_in_blocks(name, small, equal):
    native, sync = pair(name, MODES[0], **{**small, **TINY, "block_size": 8})
    assert native.unwrapped.episodes.system.block_size == 8
    assert run_both(native, sync, equal, seed=4) >= 3


@pytest.mark.parametrize(
    ("name", "mode"),
    others_long(list(itertools.product(IDS, MODES)), [(name, MODES[k % 3]) for k, name in enumerate(IDS)]),
)
def test_time_limit(name, mode, small, equal):
    native, sync = pair(name, mode, max_episode_steps=6, **{**small, **TINY, "epochs": "decision"})
    assert run_both(native, sync, equal, seed=2, steps=40) > 9


@pytest.mark.parametrize("mode", MODES)
def test_more_requests_than_the_first_episode(mode, equal):
    """Episodes of varying length, some longer than the tables."""
    arguments = {
        "scenario": "mc-sf-model-2",
        "queue_order": "prompt",
        "queue_window": 2,
        "active_window": 2,
    }
    arguments["workload"] = {"preset": "mcsf-model-2", "duration": {"low": 2, "high": 30}}
    native, sync = pair("kvgym/AdmitCount-v0", mode, **arguments)
    assert run_both(native, sync, equal, seed=8, steps=1500) > 12


def test_unseeded_continues_the_generators(small, equal):
    native, sync = pair("kvgym/AdmitCount-v0", AutoresetMode.NEXT_STEP, **small)
    assert equal(native.reset(seed=4), sync.reset(seed=4))
    assert equal(native.reset(), sync.reset())
    seeds = {"seed": [9, 9, 10], "options": {"workload_seed": 7}}
    ours = native.reset(**seeds)
    assert equal(ours, sync.reset(**seeds))
    assert np.array_equal(ours[0][0], ours[0][2])
    assert equal(native.reset(), sync.reset())


def test_seeds(small):
    env = gym.make_vec("kvgym/AdmitCount-v0", 4, **small)
    by_number, _ = env.reset(seed=20)
    np.testing.assert_array_equal(by_number, env.reset(seed=[20, 21, 22, 23])[0])
    single = gym.make("kvgym/AdmitCount-v0", **small)
    for i in range(4):
        np.testing.assert_array_equal(by_number[i], single.reset(seed=20 + i)[0])
    assert np.array_equal(env.reset(seed=[1, 1, 2, 2])[0][0], env.reset(seed=[1, 1, 2, 2])[0][1])
    with pytest.raises(ConfigError, match="3 seeds for 4"):
        env.reset(seed=[1, 2, 3])


def test_reset_mask(small, equal):
    env = gym.make_vec("kvgym/AdmitCount-v0", 3, autoreset_mode=AutoresetMode.DISABLED, **small)
    env.reset(seed=0)
    for _ in range(5):
        before, *_ = env.step(np.array([1, 1, 1]) * env.unwrapped.action_masks()[:, 1])
    after, info = env.reset(seed=30, options={"reset_mask": np.array([False, True, False])})
    assert np.array_equal(before[[0, 2]], after[[0, 2]])
    assert np.array_equal(after[1], gym.make("kvgym/AdmitCount-v0", **small).reset(seed=31)[0])
    assert info["_time"].tolist() == [False, True, False]
    for wrong in (np.zeros(3, bool), np.ones(2, bool), np.ones(3, int)):
        with pytest.raises(ConfigError, match="reset_mask needs 3 booleans"):
            env.reset(options={"reset_mask": wrong})
    with pytest.raises(ConfigError, match="unknown reset option 'mask'"):
        env.reset(options={"mask": np.ones(3, bool)})


def test_an_ended_environment_must_be_reset_if_autoreset_is_disabled(small):
    env = gym.make_vec("kvgym/AdmitCount-v0", 2, autoreset_mode=AutoresetMode.DISABLED, **{**small, **TINY})
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(2, np.int64))
    env.reset(seed=0)
    ended = np.zeros(2, bool)
    while not ended.any():
        *_, terminated, truncated, _ = env.step(env.unwrapped.action_masks()[:, 1].astype(np.int64))
        ended = terminated | truncated
    with pytest.raises(gym.error.ResetNeeded, match=rf"environments \[{np.flatnonzero(ended)[0]}"):
        env.step(np.zeros(2, np.int64))


def test_returned_arrays_belong_to_the_caller(small):
    """Later steps do not change them, and changing them has no effect on the environment."""
    for observation in OBSERVATIONS:
        env, twin = (
            ServingVectorEnv(4, autoreset_mode="SameStep", **{**small, **TINY, "observation": observation})
            for _ in range(2)
        )
        returned, snapshots = [env.reset(seed=1)], []
        twin.reset(seed=1)
        snapshots.append(pickle.dumps(returned[-1]))
        for _ in range(40):
            actions = env.action_masks()[:, 1].astype(np.int64)
            returned.append(env.step(actions))
            snapshots.append(pickle.dumps(returned[-1]))
            spoilt = twin.step(actions)
            for array in arrays(spoilt):
                array[...] = 0 if array.dtype != object else None
        assert [pickle.dumps(r) for r in returned] == snapshots
        assert all(np.array_equal(a, b) for a, b in zip(env.action_masks(), twin.action_masks(), strict=True))


def arrays(value):
    """Return all arrays inside a nested value."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [a for v in value for a in arrays(v)] if isinstance(value, list | tuple) else []


@pytest.mark.parametrize(
    "how", [lambda e: pickle.loads(pickle.dumps(e)), copy.deepcopy], ids=["pickle", "deepcopy"]
)
def test_copies_have_their_own_memory(how, small, equal):
    """A copy continues from the original's state, keeps the generators, and does not change the original."""
    env = ServingVectorEnv(2, **small)
    env.reset(seed=3)
    env.step(np.zeros(2, np.int64))
    twin = how(env)
    shared = np.intersect1d(env.episodes.control[:, :NUM_TABLES], twin.episodes.control[:, :NUM_TABLES])
    assert shared.size == 0
    fresh = ServingVectorEnv(2, **small)
    fresh.reset(seed=3)
    fresh.step(np.zeros(2, np.int64))
    assert equal(twin.step(np.ones(2, np.int64)), fresh.step(np.ones(2, np.int64)))
    assert equal(twin.reset(), fresh.reset())
    twin.step(np.ones(2, np.int64))
    assert equal(env.reset(seed=5), fresh.reset(seed=5))


@pytest.mark.parametrize("name", IDS)
def test_wrappers(name, small):
    env = gym.make_vec(name, 3, **{**small, **TINY, "observation": "dict"})
    env = wrappers.RecordEpisodeStatistics(wrappers.FlattenObservation(env))
    env = wrappers.DictInfoToList(wrappers.NormalizeReward(env))
    env.reset(seed=0)
    env.action_space.seed(0)
    seen = []
    for _ in range(200):
        observation, *_, infos = env.step(env.action_space.sample())
        assert observation.shape == env.observation_space.shape
        seen += [info["episode"] for info in infos if "episode" in info]
    assert seen
    assert all(episode["l"] > 0 for episode in seen)


@pytest.mark.parametrize("mode", MODES)
def test_any_number_of_threads_gives_the_same_bits(mode, small, equal):
    """This includes ends of episodes, new episodes, and a copy, which has its own threads."""
    arguments = {**small, **TINY, "autoreset_mode": mode}
    alone = ServingVectorEnv(5, **arguments)
    others = [ServingVectorEnv(5, num_threads=n, **arguments) for n in (2, 3, 9)]
    others.append(pickle.loads(pickle.dumps(others[0])))
    assert others[-1].num_threads == 2
    expected = alone.reset(seed=1)
    assert all(equal(env.reset(seed=1), expected) for env in others)
    ends = 0
    for _ in range(60):
        actions = alone.action_masks()[:, 1].astype(np.int64)
        expected = alone.step(actions)
        assert all(equal(env.step(actions), expected) for env in others)
        done = expected[2] | expected[3]
        ends += int(done.sum())
        if mode == AutoresetMode.DISABLED and done.any():
            again = {"options": {"reset_mask": done}}
            expected = alone.reset(**copy.deepcopy(again))
            assert all(equal(env.reset(**copy.deepcopy(again)), expected) for env in others)
    assert ends >= 5
    others[0].close()
    assert equal(others[1].reset(seed=2), alone.reset(seed=2))


def test_prefetching_changes_nothing(small, equal):
    """Calls with this many environments prefetch, calls with half of them do not, nor does uncompiled code."""
    alone, halves = (ServingVectorEnv(MANY, num_threads=n, **{**small, **TINY}) for n in (1, 2))
    assert equal(alone.reset(seed=1), halves.reset(seed=1))
    for _ in range(5):
        actions = alone.action_masks()[:, 1].astype(np.int64)
        assert equal(alone.step(actions), halves.step(actions))
    before = [slot.block.memory.copy() for slot in alone.episodes.slots[:2]]
    uncompiled(fetch_environment)(*alone.episodes.control[:2])
    for slot, memory in zip(alone.episodes.slots, before, strict=False):
        np.testing.assert_array_equal(slot.block.memory, memory)


def test_tables_begin_on_cache_lines_in_order():
    begins, total = places_of(Sizes(300, 200, 7, 302, 80))
    assert list(begins) == sorted(begins)
    assert all(begin % LINE == 0 for begin in [*begins, total])


def test_threads_refuse_an_action_before_anything_changes(small, equal):
    env, twin = (ServingVectorEnv(4, num_threads=n, **small) for n in (3, 1))
    env.reset(seed=0)
    twin.reset(seed=0)
    with pytest.raises(ConfigError, match="of environment 3 is 99, outside"):
        env.step(np.array([0, 0, 0, 99]))
    actions = env.action_masks()[:, 1].astype(np.int64)
    assert equal(env.step(actions), twin.step(actions))


@pytest.mark.parametrize("threads", [1, 2])
def test_no_episode_begins_if_an_action_is_refused_or_its_requests_cannot_be_drawn(
    threads, small, equal, monkeypatch
):
    env, twin = (ServingVectorEnv(4, num_threads=n, stagger=4, **small) for n in (threads, 1))
    env.reset(seed=0)
    twin.reset(seed=0)
    assert env.step(np.zeros(4, np.int64))[3].tolist() == [True, False, False, False]
    twin.step(np.zeros(4, np.int64))
    with pytest.raises(ConfigError, match="of environment 3 is 99, outside"):
        env.step(np.array([0, 0, 0, 99]))
    assert equal(env.step(np.zeros(4, np.int64)), twin.step(np.zeros(4, np.int64)))

    def fail(seed):
        raise ConfigError("no requests")

    monkeypatch.setattr(env.episodes, "requests", fail)
    with pytest.raises(ConfigError, match="no requests"):
        env.step(np.zeros(4, np.int64))
    monkeypatch.undo()
    assert equal(env.reset(seed=1), twin.reset(seed=1))


@pytest.mark.parametrize("threads", [0, 1.0, True, "2"])
def test_wrong_numbers_of_threads(threads, small):
    with pytest.raises(ConfigError, match=r"num_threads = .*; expected a whole number ≥ 1"):
        ServingVectorEnv(2, num_threads=threads, **small)


def test_a_state_does_not_depend_on_changes_of_the_returned_observation(small, equal):
    """Observations belong to the caller: states, and resets of others, write them again."""
    env, twin = (ServingVectorEnv(3, autoreset_mode="Disabled", **small) for _ in range(2))
    some = {"reset_mask": np.array([True, False, True])}
    for e in (env, twin):
        e.reset(seed=4)
        observation = e.step(np.ones(3, np.int64))[0]
        if e is env:
            observation[:] = 7.0
    assert equal([s.episode.outputs for s in env.get_state()], [s.episode.outputs for s in twin.get_state()])
    assert equal(env.reset(options=dict(some)), twin.reset(options=dict(some)))


def test_metadata_and_arguments(small):
    env = ServingVectorEnv(2, **small)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    other = ServingVectorEnv(2, autoreset_mode="SameStep", **small)
    assert other.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    env.close()
    env.close()
    with pytest.raises(ConfigError, match="num_envs = 0"):
        ServingVectorEnv(0, **small)
    with pytest.raises(ConfigError, match="does not render"):
        ServingVectorEnv(2, render_mode="rgb_array", **small)
    with pytest.raises(ConfigError, match="queue_windo"):
        ServingVectorEnv(2, queue_windo=3)


def test_memory_does_not_grow(small):
    env = ServingVectorEnv(2, autoreset_mode="SameStep", **{**small, **TINY})
    env.reset(seed=0)

    def play(steps):
        for _ in range(steps):
            env.step(env.action_masks()[:, 1].astype(np.int64))

    play(300)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    play(600)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 60_000


def test_staggered_first_episodes_end_one_after_another_and_are_the_same_until_then(small, equal):
    plain = ServingVectorEnv(4, group_size=2, **small)
    envs = ServingVectorEnv(
        4, group_size=2, stagger=5, **small
    )  # groups end after 2.5 and 5 steps, rounded up
    assert equal(plain.reset(seed=3), envs.reset(seed=3))
    act = np.array([1, 0, 1, 1])
    for step in range(1, 6):
        wanted, found = plain.step(act), envs.step(act)
        running = np.array([step <= 3, step <= 3, True, True])
        assert not wanted[3].any()
        for k in (0, 1, 2):
            np.testing.assert_array_equal(wanted[k][running], found[k][running])
        assert found[3].tolist() == [step == 3] * 2 + [step == 5] * 2
        if step == 2:
            again = pickle.loads(pickle.dumps(envs))
    assert [again.step(act)[3].tolist() for _ in range(3)][::2] == [
        [True] * 2 + [False] * 2,
        [False] * 2 + [True] * 2,
    ]
    envs.reset(seed=3)
    envs.set_state(plain.get_state())  # restored episodes are not cut
    assert not any(envs.step(act)[3].any() for _ in range(6))
