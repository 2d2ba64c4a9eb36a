"""Masks: two forms, at least one valid action, feasible allowed choices, and no effect of masked-out ones."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from helpers.environments.plain import plain_env
from kvgym.envs import SCHEDULING_IDS as IDS
from kvgym.envs.scheduling.actions.knobs import knob_levels


class Snapshot:
    """A saved state of an environment, to try several actions from it."""

    ARRAYS = ("observations", "masks", "rewards", "terms", "outcomes", "ignored", "times")

    def __init__(self, env):
        self.env, self.block = env, env.episodes.slots[0].block
        self.buffer = self.block.memory.copy()
        self.arrays = {name: getattr(env.episodes, name).copy() for name in self.ARRAYS}
        self.done = env._done
        self.reference = copy.copy(env.episodes.slots[0].reference)

    def restore(self):
        self.block.memory[:] = self.buffer
        for name, array in self.arrays.items():
            getattr(self.env.episodes, name)[:] = array
        self.env._done = self.done
        self.env.episodes.slots[0].reference = copy.copy(self.reference)

    def outcome(self, action):
        """Return the step and the state after an action."""
        self.restore()
        observation, reward, terminated, truncated, info = self.env.step(action)
        state = self.block.memory.copy()
        self.restore()
        return (observation, reward, terminated, truncated), info, state


def must_admit(env):
    """Whether ``must_admit`` excludes admitting nothing: an empty worker with a waiting request, which fits alone."""
    decision = env.episodes.slots[0].block["decision"][0]
    idle = env.view.num_active == 0 and decision["num_admit"] == 0 and env.view.num_waiting > 0
    return idle and env.config.must_admit


def check_forms(env):
    """Check that both forms agree, sb3-contrib's and the one of ``space.sample``, and that an action is valid."""
    bools, sample = env.action_masks(), env.sample_mask()
    space = env.action_space
    assert bools.dtype == bool
    if isinstance(space, gym.spaces.Discrete):
        assert bools.shape == sample.shape == (space.n,)
        assert sample.dtype == np.int8
        np.testing.assert_array_equal(bools, sample == 1)
        if env.config.action != "keep":
            assert bools[0 if env.config.action == "admit_count" else -1] == (not must_admit(env))
        assert bools.any()
    elif isinstance(space, gym.spaces.MultiBinary):
        assert bools.shape == (2 * space.n,)
        assert sample.shape == (space.n,)
        assert bools[0::2].tolist() == [not must_admit(env), *[True] * (space.n - 1)]
        np.testing.assert_array_equal(bools[1::2], sample > 0)
        np.testing.assert_array_equal(bools[0::2], sample != 1)
    elif env.config.action in ("rank", "priority"):
        assert sample is None
        assert bools.shape == space.shape
        assert bools.all()
    elif isinstance(space, gym.spaces.Box):  # sampled without a mask
        assert sample is None
        config = env.config
        present = [
            *(np.arange(config.queue_window) < env.view.num_waiting),
            *(np.arange(config.active_window) < env.view.num_active),
        ]
        assert bools.tolist() == [*present, *([True] if config.action == "tokens" else [])]
    else:
        assert tuple(space.nvec) == knob_levels()
        assert bools.shape == (space.nvec.sum(),)
        assert isinstance(sample, tuple)
        assert [part.shape for part in sample] == [(n,) for n in space.nvec]
        np.testing.assert_array_equal(bools, np.concatenate(sample) == 1)
        names = ("protection", "cap", "budget", "quantum")
        allowed = [
            [level in env.config.knobs.get(name, range(len(part))) for level in range(len(part))]
            for name, part in zip(names, sample, strict=True)
        ]
        if env.view.num_active == 0 and env.view.num_waiting > 0:
            allowed[1][0] = False  # a request must be admitted
        assert [part.tolist() for part in sample] == allowed
        assert all(part.dtype == np.int8 and part.any() for part in sample)
    assert space.contains(space.sample(sample))


def check_actions(env, rng, equal):
    """Try every choice from the current state."""
    snapshot, config = Snapshot(env), env.config
    bools = env.action_masks()
    before = snapshot.buffer.copy()
    # If the overflow rule must evict, choosing the requests it evicts anyway changes nothing.
    fits = snapshot.block["episode"]["need"][0] <= env.episodes.system.usable_capacity
    if config.action in ("admit_evict", "admit_count"):
        nothing = 0 if config.action == "admit_count" else env.action_space.n - 1
        idle = snapshot.outcome(nothing)
        assert idle[1]["ignored"] == must_admit(env)
        for choice in range(env.action_space.n):
            step, info, state = snapshot.outcome(choice)
            assert info["ignored"] == (0 if bools[choice] else 1)
            if not bools[choice]:  # it has no effect
                assert equal(step, idle[0])
                assert equal({**info, "ignored": 0}, {**idle[1], "ignored": 0})
                check_states_equal(env, state, idle[2])
            elif choice != nothing and fits:
                assert not np.array_equal(state, idle[2])
    elif config.action == "flags":
        flags = env.action_space.n
        nothing = np.zeros(flags, np.int8)
        idle = snapshot.outcome(nothing)
        assert idle[1]["ignored"] == must_admit(env)
        for k in range(flags):
            step, info, state = snapshot.outcome(np.eye(flags, dtype=np.int8)[k])
            assert info["ignored"] == (not bools[2 * k + 1]) + (k > 0 and must_admit(env))
            if not bools[2 * k + 1]:
                assert equal(step, idle[0])
                check_states_equal(env, state, idle[2])
            elif fits:
                assert not np.array_equal(state, idle[2])
        for _ in range(4):
            env.action_space.seed(int(rng.integers(2**31)))
            snapshot.outcome(env.action_space.sample(env.sample_mask()))
            snapshot.outcome(env.action_space.sample())
    elif config.action in ("rank", "priority"):
        env.action_space.seed(int(rng.integers(2**31)))
        action = env.action_space.sample()
        assert equal(snapshot.outcome(action)[0], snapshot.outcome(action + 0.0)[0])
    elif config.action == "rank_scores":
        for _ in range(6):
            env.action_space.seed(int(rng.integers(2**31)))
            action = env.action_space.sample()
            step, info, state = snapshot.outcome(action)
            assert info["ignored"] == 0
            other = rng.uniform(env.action_space.low, env.action_space.high)
            assert equal(step, snapshot.outcome(np.where(bools, action, other))[0])
    elif isinstance(env.action_space, gym.spaces.Box):
        rows = config.queue_window + config.active_window
        for _ in range(6):
            env.action_space.seed(int(rng.integers(2**31)))
            action = env.action_space.sample()
            step, info, state = snapshot.outcome(action)
            empty = np.flatnonzero(~bools[:rows])  # numbers for positions without a request have no effect
            action[2 * empty], action[2 * empty + 1] = rng.uniform(-1, 1, (2, len(empty)))
            assert equal(step, snapshot.outcome(action)[0])
    elif config.action == "keep":
        for action in range(env.action_space.n):
            assert (snapshot.outcome(action)[1]["ignored"] == 0) == bools[action]
    else:
        for _ in range(6):
            env.action_space.seed(int(rng.integers(2**31)))
            action = env.action_space.sample()
            chosen = [part[level] for part, level in zip(env.sample_mask(), action, strict=True)]
            assert (snapshot.outcome(action)[1]["ignored"] == 0) == all(chosen)
    np.testing.assert_array_equal(snapshot.block.memory, before)


def check_states_equal(env, state, idle):
    """Compare two states except for the count of ignored choices."""
    block = env.episodes.slots[0].block
    kept = block.memory.copy()
    found = []
    for content in (state, idle):
        block.memory[:] = content
        block["episode"]["num_ignored"] = 0
        scratch = ("load", "admit", "admit_tokens", "evict")
        found.append({name: table.tobytes() for name, table in block.tables.items() if name not in scratch})
    block.memory[:] = kept
    assert [name for name in found[0] if found[0][name] != found[1][name]] == []


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
@given(seed=st.integers(0, 2**31))
def test_any_configuration(seed, random_arguments, equal):
    rng = np.random.default_rng(seed)
    env = plain_env(**random_arguments(rng))
    env.reset(seed=seed % 1000)
    assume(env.view.num_waiting + env.view.num_active > 0)  # else it is over before it begins
    ended = False
    for step in range(30):
        check_forms(env)
        if step % 5 == 0:
            check_actions(env, rng, equal)
        env.action_space.seed(int(rng.integers(2**31)))
        masked = rng.random() < 0.8
        *_, terminated, truncated, info = env.step(
            env.action_space.sample(env.sample_mask() if masked else None)
        )
        ended = terminated or truncated
        assert equal(info["action_mask"], env.sample_mask())
        if ended:
            check_forms(env)
            return


@pytest.mark.parametrize("name", IDS)
def test_vector_masks(name, small, equal):
    vector = gym.make_vec(name, 3, **small)
    _, info = vector.reset(seed=0)
    singles = [gym.make(name, **small) for _ in range(3)]
    for i, env in enumerate(singles):
        env.reset(seed=i)
    expected = np.stack([env.unwrapped.action_masks() for env in singles])
    np.testing.assert_array_equal(vector.unwrapped.action_masks(), expected)
    assert vector.unwrapped.action_masks().dtype == bool
    assert all(
        equal(row, env.unwrapped.sample_mask()) for row, env in zip(info["action_mask"], singles, strict=True)
    )


def test_rllib_observation_carries_the_mask(small):
    env = gym.make("kvgym/AdmitEvict-v0", observation="rllib", **small)
    observation, info = env.reset(seed=0)
    assert observation["action_mask"].dtype == np.float32
    np.testing.assert_array_equal(observation["action_mask"], info["action_mask"])


def test_admit_evict_by_hand(requests_of):
    """Memory 10; prompts 4, 4, 4 and at least one output token: two fit at first, the third does not."""
    workload = requests_of((0, 4, 5), (0, 4, 5), (0, 4, 5))
    env = plain_env(
        action="admit_evict", scenario="mc-sf-model-2", kv_capacity=10, workload=workload,
        queue_window=2, active_window=2,
    )  # fmt: skip
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [1, 1, 0, 0, 1]
    *_, info = env.step(1)  # the second of the queue; the third moves up
    assert info["action_mask"].tolist() == [1, 1, 0, 0, 1]
    assert info["time"] == 0
    *_, info = env.step(1)  # 4 + 1 twice: full
    assert info["action_mask"].tolist() == [0, 0, 0, 0, 1]
    *_, info = env.step(0)  # does not fit: a no-op, the batch runs as decided so far
    assert info["ignored"] == 1
    assert info["time"] == 1
    # Both hold 5 of 10 tokens and need 6 each: the next iteration does not fit, nothing can be admitted.
    assert info["action_mask"].tolist() == [0, 0, 1, 1, 1]
    *_, info = env.step(2)  # evict the latest, request 2
    assert info["action_mask"].tolist() == [0, 0, 1, 0, 1]
    *_, info = env.step(4)
    assert env.result().requests["num_evictions"].tolist() == [0, 0, 1]
    assert info["time"] == 2
    *_, info = env.step(4)
    assert env.view.active.request_id.tolist() == [1]


def test_admit_evict_in_blocks_by_hand(requests_of):
    """Memory 15, of which 12 are whole blocks of 4: prompts of 4 and an output token take two, one of 3 takes one."""
    workload = requests_of((0, 4, 5), (0, 4, 5), (0, 3, 2))
    env = plain_env(
        action="admit_evict", scenario="mc-sf-model-2", kv_capacity=15, block_size=4, workload=workload,
        queue_window=3, active_window=2,
    )  # fmt: skip
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [1, 1, 1, 0, 0, 1]
    *_, info = env.step(0)  # 8 of 12; in tokens, 5 of 15 would leave room for both others
    assert info["action_mask"].tolist() == [0, 1, 0, 0, 0, 1]
    *_, info = env.step(1)
    assert info["action_mask"].tolist() == [0, 0, 0, 0, 0, 1]
    *_, info = env.step(5)
    # They hold 5 and 4 tokens; the second needs a block that is not there.
    assert (env.view.kv_tokens, env.view.kv_allocated) == (9, 12)
    assert info["action_mask"].tolist() == [0, 0, 0, 1, 1, 1]
    *_, info = env.step(5)  # so it is evicted by the overflow rule
    assert info["ignored"] == 0
    assert env.view.active.request_id.tolist() == [0]
    assert info["action_mask"].tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(("overflow", "left"), [("lifo", [0]), ("clear", [])])
@pytest.mark.parametrize(
    "name",
    [name for name, action in IDS.items() if action not in ("rank", "rank_scores", "priority", "keep")],
)
def test_overflow_rule(name, overflow, left, requests_of):
    """Two requests of 4 + 1 tokens fill a memory of 10; without an eviction the next iteration cannot run."""
    env = gym.make(
        name, scenario="mc-sf-model-2", kv_capacity=10, workload=requests_of((0, 4, 5), (0, 4, 5)),
        queue_window=2, active_window=2, overflow=overflow, hold=1,
    ).unwrapped  # fmt: skip
    env.reset(seed=0)
    both = {
        "admit_evict": [0, 0, 4],
        "admit_count": [2],
        "flags": [np.array([1, 1, 0, 0])],
        "knobs": [[0, 7, 9, 0]],
        "tokens": [env.config.kind.greedy(env.config, env.episodes.masks[0])],
    }
    run = {"admit_evict": 4, "admit_count": 0, "flags": np.zeros(4, int), "knobs": [0, 0, 9, 0]}
    run["tokens"] = np.array([-1, 0] * 2 + [1, 0] * 2 + [-1])
    assert env.config.action in both, "say here how this kind of action admits both, and then runs the batch"
    for action in both[env.config.action]:
        env.step(action)
    assert env.view.active.request_id.tolist() == [0, 1]
    *_, info = env.step(run[env.config.action])
    assert info["ignored"] == 0
    assert env.view.active.request_id.tolist() == left
    assert env.view.clock == 2
    assert env.result().requests["num_evictions"].sum() == 2 - len(left)
