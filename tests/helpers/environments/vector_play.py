"""What tests of vector environments share: one driven next to Gymnasium's SyncVectorEnv, with every output compared."""

from __future__ import annotations

import copy
import dataclasses

import gymnasium as gym
from gymnasium.vector import AutoresetMode


def pair(name, count, mode, max_episode_steps=None, **arguments):
    """Return the native vector environment and SyncVectorEnv."""
    if max_episode_steps is not None:
        name = limited(name, max_episode_steps)
    native = gym.make_vec(
        name, count, vectorization_mode="vector_entry_point", autoreset_mode=mode, **arguments
    )
    sync = gym.make_vec(
        name, count, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, **arguments
    )
    return native, sync


def limited(name, steps):
    """Return an id of the same environment that declares another limit of steps."""
    made = f"limited{steps}/{name.partition('/')[2]}"
    if made not in gym.registry:
        gym.registry[made] = dataclasses.replace(gym.spec(name), id=made, max_episode_steps=steps)
    return made


def drive(native, sync, equal, choose, steps, reset):
    """Drive both with the same actions, comparing everything; returns the number of ended episodes.

    Args:
        native: the one environment.
        sync: the other.
        equal: the fixture that compares.
        choose: called without arguments for the next actions.
        steps: how many.
        reset: arguments of the first reset.
    """
    assert equal(native.reset(**copy.deepcopy(reset)), sync.reset(**copy.deepcopy(reset)))
    ended = 0
    for _ in range(steps):
        actions = choose()
        ours, theirs = native.step(actions), sync.step(actions)
        for name, a, b in zip(
            ("observation", "reward", "terminated", "truncated"), ours, theirs, strict=False
        ):
            assert equal(a, b), name
        assert ours[4].keys() == theirs[4].keys()
        for key in ours[4]:
            assert equal(ours[4][key], theirs[4][key]), key
        done = ours[2] | ours[3]
        ended += int(done.sum())
        if native.metadata["autoreset_mode"] == AutoresetMode.DISABLED and done.any():
            again = {"reset_mask": done}
            assert equal(native.reset(options=dict(again)), sync.reset(options=dict(again)))
    return ended
