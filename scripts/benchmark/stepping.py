"""Timed work of the environment benchmarks: steps of one environment or of many.

Most functions return work for :func:`microseconds`.
"""

from __future__ import annotations

import copy
import statistics
import time
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numba
import numpy as np

from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.scheduling.actions.reading import action_bounds, inside, is_whole, write_rows
from kvgym.envs.scheduling.environment import ServingEnv


def microseconds(work: Callable[[], tuple[int, float]], repeats: int) -> float:
    """Return the median CPU time per unit; ``work`` returns the number of units and their seconds."""
    figures = []
    for _ in range(repeats):
        count, seconds = work()
        figures.append(1e6 * seconds / count)
    return statistics.median(figures)


def busiest(env: ServingEnv) -> Any:
    """Return the action that admits the most requests at once."""
    kind, mask = env.config.action, env.episodes.masks[0]
    if kind == "admit_count":
        return int(mask.sum()) - 1
    if kind == "admit_evict":
        return 0 if mask[0] else mask.size - 1
    if kind == "flags":
        flags = mask[1::2].astype(np.int8)
        flags[env.config.queue_window :] = 0
        return flags
    if kind in ("tokens", "rank", "rank_scores"):
        return env.config.kind.greedy(env.config, mask)
    return np.array([2, 6, 7, 0])


def play(env: Any, steps: int) -> Callable[[], tuple[int, float]]:
    """Return work that replays the first steps of a busy episode, through the wrappers of ``env``."""
    inner = env.unwrapped
    env.reset(seed=0)
    actions: list[Any] = []
    ended = False
    while not ended and len(actions) < steps:
        actions.append(busiest(inner))
        _, _, terminated, truncated, _ = env.step(actions[-1])
        ended = terminated or truncated

    def work() -> tuple[int, float]:
        env.reset(seed=0)
        step = env.step
        started = time.process_time()
        for action in actions[:-1]:
            step(action)
        return len(actions) - 1, time.process_time() - started

    return work


def check_actions(env: ServingEnv, steps: int) -> float:
    """Return the microseconds to check an action: all that ``step`` does with it beyond a NumPy assignment.

    The figure is a difference of minima, and negative if the check takes less time than NumPy takes to store the action
    as float64. A step checks numbers in its compiled call; here a separate call does so for a thousand actions at once.
    """
    action, out = env.action_space.sample(), env.episodes.actions[0]
    target = out.reshape(env.action_space.shape)
    bounds, whole = action_bounds(env.action_space), int(is_whole(env.action_space))
    rows = np.zeros((1000, out.size)) + bounds[: out.size]
    given = rows.astype(env.action_space.dtype)

    def fastest(act: Callable[[], object], count: int) -> float:
        return 1e6 * min(timeit.repeat(act, number=count, repeat=15, timer=time.process_time)) / count

    read = fastest(lambda: env._reader.read(action), steps)
    write = fastest(lambda: target.__setitem__(..., action), steps)
    inside_all(bounds, whole, given, rows)  # compile
    return read - write + fastest(lambda: inside_all(bounds, whole, given, rows), 20) / len(rows)


@numba.njit
def inside_all(bounds: Any, whole: int, given: Any, rows: Any) -> bool:
    """Write rows as the stepping functions do, and return whether all are inside the bounds."""
    found = True
    write_rows(given, rows, 0)
    for n in range(rows.shape[0]):
        found &= inside(bounds, whole, rows[n])
    return found


def state_costs(env: Any, repeats: int, medians: int) -> dict[str, float]:
    """Return the microseconds to save a state, restore it, and copy the environment, in mid-episode."""
    env.reset(seed=0)
    for _ in range(20):
        env.step(env.action_space.sample(mask=env.sample_mask()))
    state = env.get_state()
    works: dict[str, tuple[Callable[[], object], int]] = {
        "get_state": (env.get_state, 20 * repeats),
        "set_state": (lambda: env.set_state(state), 20 * repeats),
        "deepcopy": (lambda: copy.deepcopy(env), min(repeats, 5)),
    }

    def timed(act: Callable[[], object], count: int) -> tuple[int, float]:
        started = time.process_time()
        for _ in range(count):
            act()
        return count, time.process_time() - started

    return {what: microseconds(partial(timed, act, count), medians) for what, (act, count) in works.items()}


def route(steps: int) -> Callable[[], tuple[int, float]]:
    """Return work that steps the routing environment, with workers chosen in turn; ends and resets included."""
    env = RoutingEnv(num_requests=1000)
    env.reset(seed=0)  # compile

    def work() -> tuple[int, float]:
        started = time.process_time()
        env.reset(seed=0)
        for k in range(steps):
            if env.step(k & 3)[2]:
                env.reset(seed=0)
        return steps, time.process_time() - started

    return work


def draw(name: str, count: int) -> Callable[[], tuple[int, float]]:
    """Return work that draws pictures of an environment, a step apart; the steps are not timed."""
    env: Any = gym.make(name, render_mode="rgb_array", num_requests=200, rate=40, kv_capacity=8000).unwrapped
    act = env.player(env.players()[0], 0)

    def work() -> tuple[int, float]:
        observation, _ = env.reset(seed=0)
        for _ in range(50):  # something to see
            observation = env.step(act(observation, env.action_masks()))[0]
        seconds = 0.0
        for _ in range(count):
            observation = env.step(act(observation, env.action_masks()))[0]
            started = time.process_time()
            env.render()
            seconds += time.process_time() - started
        return count, seconds

    return work


def play_vector(envs: Any, steps: int, *, restart: bool) -> Callable[[], tuple[int, float]]:
    """Return work that steps a vector environment with admit counts.

    With ``restart`` every repetition starts new episodes, none of which ends; otherwise it continues from the last
    one, ends and new episodes included.
    """
    masks = envs.reset(seed=0)[1]["action_mask"]

    def work() -> tuple[int, float]:
        nonlocal masks
        if restart:
            masks = envs.reset(seed=0)[1]["action_mask"]
        started = time.process_time()
        for _ in range(steps):
            masks = envs.step(masks.sum(axis=1) - 1)[4]["action_mask"]
        return steps * envs.num_envs, time.process_time() - started

    return work


def cartpole(steps: int) -> Callable[[], tuple[int, float]]:
    """Return work that steps the unwrapped CartPole-v1."""
    env = gym.make("CartPole-v1").unwrapped

    def work() -> tuple[int, float]:
        env.reset(seed=0)
        started = time.process_time()
        for k in range(steps):
            if env.step(k & 1)[2]:
                env.reset()
        return steps, time.process_time() - started

    return work
