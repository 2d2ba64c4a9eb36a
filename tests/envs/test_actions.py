"""Valid and invalid actions of every id, scalar and vector."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from helpers.environments.plain import plain
from kvgym.envs import IDS, SCHEDULING_IDS
from kvgym.envs.scheduling.actions.reading import ActionReader, action_bounds, sample_mask
from kvgym.errors import ConfigError

TASK = {"scenario": "mc-sf-model-2", "num_requests": 20}
NO_NUMBERS = ["abc", b"1", 1j, None, {}, [1j], ["0"], [[0], [0, 1]], np.array(None)]


def make(name, **arguments):
    return gym.make(name, disable_env_checker=True, **TASK, **arguments)


def wrong_actions(space):
    """Return actions that are not in a space, with the text of the error."""
    for action in NO_NUMBERS:
        yield action, "dtype|none of|shape"
    if isinstance(space, gym.spaces.Discrete):
        yield from ((x, "outside Discrete") for x in (space.n, -1, 2**40, np.int64(space.n), np.array(-1)))
        yield from (
            (x, "of dtype") for x in (True, np.True_, 1.0, 1.5, float("nan"), np.float32(0), np.array(0.0))
        )
        yield from ((x, "has shape") for x in ([0], np.zeros(1, int), [[0]], np.zeros((1, 1), int), []))
        yield 10**400, "too large"
        return
    zero = np.zeros(space.shape, space.dtype)
    yield from ((x, "has shape") for x in (0, zero[:-1], zero[None], [], np.append(zero, zero)))
    low, high = action_bounds(space).reshape(2, -1)
    for k in (0, len(low) - 1):
        for x in (low[k] - 1, high[k] + 1):
            far = zero.astype(np.float64 if space.dtype.kind == "f" else np.int64)
            far[k] = x
            yield far, f"number {k} of the action is {x:.15g}, outside"
    if isinstance(space, gym.spaces.MultiBinary):
        yield zero + 0.5, "outside MultiBinary"
        yield zero + np.nan, "outside"
        return
    yield zero.astype(bool), "of dtype bool"
    yield zero + 1j, "of dtype complex"
    if space.dtype.kind == "f":
        yield from ((zero + x, "outside") for x in (np.nan, np.inf, -np.inf))
    else:
        yield from ((zero + x, "of dtype float64") for x in (0.0, 0.5, np.nan))


def right_actions(space):
    """Return actions in a space, in all accepted types."""
    action = space.sample()
    if isinstance(space, gym.spaces.Discrete):
        return [int(action), action, np.int16(action), np.uint16(action), np.array(action)]
    wide = np.float64 if space.dtype.kind == "f" else np.int32
    forms = [action, action.tolist(), action.astype(wide), np.stack([action, action], 1)[:, 0]]
    return [*forms, action.astype(bool), action.astype(np.float32)] if space.dtype == np.int8 else forms


@pytest.mark.parametrize("name", IDS)
def test_wrong_actions_change_nothing(name, equal):
    env, twin = make(name), make(name)
    env.reset(seed=0)
    twin.reset(seed=0)
    for _ in range(3):
        for action, message in wrong_actions(env.action_space):
            with pytest.raises(ConfigError, match=message) as caught:
                env.step(action)
            assert type(env.action_space).__name__ in str(caught.value)
        right = twin.action_space.sample()
        assert equal(env.step(right), twin.step(right))


@pytest.mark.parametrize("name", IDS)
def test_right_actions_of_any_type(name, equal):
    env = make(name)
    env.action_space.seed(1)
    outcomes = []
    for action in right_actions(env.action_space):
        env.reset(seed=0)
        outcomes.append(env.step(action))
    assert all(equal(outcome, outcomes[0]) for outcome in outcomes)


@pytest.mark.parametrize("name", IDS)
def test_vector(name, equal):
    """One wrong action of three is refused and named; a wrong one for an environment that restarts is ignored."""
    env, twin = (gym.make_vec(name, 3, **TASK, max_episode_steps=4) for _ in range(2))
    env.reset(seed=0)
    twin.reset(seed=0)
    single = env.single_action_space
    right = env.action_space.sample()
    for action, message in wrong_actions(single):
        if "outside" not in message or not isinstance(action, np.ndarray | int):
            with pytest.raises(ConfigError):
                env.step([action] * 3)
            continue
        with pytest.raises(ConfigError, match=message.replace(" is ", " of environment 1 is ")):
            env.step(np.stack([right[0], action, right[2]]))
    for wrong in (right[:2], right[None], right[0], 0, True):
        with pytest.raises(ConfigError):
            env.step(wrong)
    for _ in range(10):  # restarts every fifth step, together
        assert equal(env.step(right), twin.step(right))


def test_nothing_has_changed_if_one_restarts(equal):
    """An action is refused before restarting environments draw their requests."""
    env, twin = (gym.make_vec("kvgym/AdmitCount-v0", 2, queue_window=16, **TASK) for _ in range(2))
    both = [(e.reset(seed=0), e.reset(seed=0)) for e in (env, twin)]
    assert equal(*both)
    for e in (env, twin):
        e.unwrapped._ended[0] = True
    with pytest.raises(ConfigError, match=r"action of environment 1 is 99, outside Discrete\(17\)"):
        env.step(np.array([0, 99]))
    assert equal(env.step(np.array([99, 0])), twin.step(np.array([99, 0])))


@pytest.mark.parametrize("name", IDS)
def test_sampling_by_the_mask_of_the_information(name):
    env = gym.make(name, **TASK)
    _, info = env.reset(seed=0)
    env.action_space.seed(0)
    discrete = isinstance(env.action_space, gym.spaces.Discrete)
    for _ in range(40):
        *_, terminated, truncated, info = env.step(env.action_space.sample(mask=info["action_mask"]))
        if discrete:
            assert info["ignored"] == 0
        if terminated or truncated:
            _, info = env.reset()


@pytest.mark.parametrize("name", SCHEDULING_IDS)
def test_sampling_by_the_masks_of_a_vector(name):
    env = gym.make_vec(name, 3, **TASK)
    _, info = env.reset(seed=0)
    for _ in range(10):
        info = env.step(env.action_space.sample(mask=env.unwrapped.sample_mask()))[4]
        if isinstance(env.single_action_space, gym.spaces.Discrete):
            assert not info["ignored"].any()
            env.action_space.sample(mask=tuple(info["action_mask"]))
        for mask in info["action_mask"]:
            assert env.single_action_space.sample(mask=mask) in env.single_action_space


def test_masks_by_hand():
    mask = np.array([1, 0, 1, 1, 1], np.uint8)
    assert sample_mask(gym.spaces.Discrete(5), mask).tolist() == [1, 0, 1, 1, 1]
    assert sample_mask(gym.spaces.MultiBinary(2), mask[1:]).tolist() == [1, 2]
    assert sample_mask(gym.spaces.MultiBinary(2), mask[:4]).tolist() == [0, 2]
    parts = sample_mask(gym.spaces.MultiDiscrete([2, 3]), mask)
    assert [part.tolist() for part in parts] == [[1, 0], [1, 1, 1]]
    both = sample_mask(gym.spaces.MultiDiscrete([2, 3]), np.stack([mask, mask[::-1]]))
    assert [part.tolist() for part in both[1]] == [[1, 1], [1, 0, 1]]
    assert sample_mask(gym.spaces.Box(0, 1, (5,)), mask) is None


def test_spaces_of_numbers_only():
    with pytest.raises(ConfigError, match="Text; expected a Discrete, MultiDiscrete, MultiBinary or Box"):
        action_bounds(gym.spaces.Text(3))
    with pytest.raises(ConfigError, match="dtype <U3"):
        ActionReader(gym.spaces.Discrete(3), np.zeros(1)).read("one")


@pytest.mark.parametrize("count", [None, 2])
@pytest.mark.parametrize("name", IDS)
def test_actions_of_every_type_in_turn(name, count, equal):
    """Copied and converted actions give the same steps, in any order."""
    made = [gym.make(name, **TASK) if count is None else gym.make_vec(name, count, **TASK) for _ in range(2)]
    for env in made:
        env.reset(seed=0)
    made[0].action_space.seed(0)
    whole = np.issubdtype(made[0].action_space.dtype, np.integer)
    forms = (
        lambda a: a,
        lambda a: a.tolist(),
        lambda a: a,
        lambda a: a.astype(np.int16 if whole else np.float64),
    )
    for step in range(24):
        action = made[0].action_space.sample()
        given = forms[step % len(forms)](np.asarray(action))
        found = [env.step(one) for env, one in zip(made, (action, given), strict=True)]
        assert equal(*found)
        if count is None and (found[0][2] or found[0][3]):
            assert equal(*(env.reset(seed=step) for env in made))


@pytest.mark.parametrize("name", IDS)
def test_unmasked_random_play_ends(name):
    """Every id has a limit of steps, scalar and vector; -1 removes it."""
    limit = gym.spec(name).max_episode_steps
    assert 5_000 <= limit <= 25_000
    assert "<TimeLimit<" in repr(gym.make(name, **TASK))
    assert "<TimeLimit<" not in repr(gym.make(name, max_episode_steps=-1, **TASK))
    if name in SCHEDULING_IDS:
        assert gym.make_vec(name, 2, **TASK).unwrapped.max_episode_steps == limit
        assert gym.make_vec(name, 2, max_episode_steps=-1, **TASK).unwrapped.max_episode_steps is None


def test_limits_of_steps_are_whole():
    for wrong in (0, -2):
        with pytest.raises(
            ConfigError, match=f"max_episode_steps = {wrong}; expected a whole number ≥ 1, or -1"
        ):
            gym.make_vec("kvgym/AdmitCount-v0", 2, max_episode_steps=wrong, **TASK)


def test_random_play_of_choices_one_at_a_time_ends():
    """Unmasked random play of AdmitEvict keeps evicting; the limit ends it long before the horizon."""
    env = gym.make_vec("kvgym/AdmitEvict-v0", 1, autoreset_mode="SameStep", **plain("admit_evict"))
    env.reset(seed=0)
    limit = env.unwrapped.max_episode_steps
    actions = np.random.default_rng(0).integers(env.single_action_space.n, size=(limit, 1))
    for step in range(limit):
        *_, terminated, truncated, info = env.step(actions[step])
        assert not terminated.any()
        assert truncated.tolist() == [step == limit - 1]
    assert (info["final_info"]["time"] > 100).all()
    assert info["time"].max() < 10
