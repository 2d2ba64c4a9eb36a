"""Timed work of the environment benchmarks: steps of one environment or of many.

Most functions return work for :func:`microseconds`.
"""

from __future__ import annotations

import copy
import importlib.util
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from kvgym.agents.reinforce.export import as_agent, feature_places
from kvgym.agents.reinforce.network import Network
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.scaling.config import ScalingConfig
from kvgym.envs.scaling.environment import ScalingEnv
from kvgym.envs.scheduling.environment import greedy_action

CHATS = {
    "kind": "independent",
    "prompt": {"kind": "constant", "value": 500},
    "output": {"kind": "lognormal", "median": 78, "mean": 94},
}
"""Lengths of the scenario scale-day."""


def microseconds(work: Callable[[], tuple[int, float]], repeats: int) -> float:
    """Return the median CPU time per unit; ``work`` returns the number of units and their seconds."""
    figures = []
    for _ in range(repeats):
        count, seconds = work()
        figures.append(1e6 * seconds / count)
    return statistics.median(figures)


def busiest(envs: Any, info: dict[str, Any]) -> Any:
    """Return actions of a native vector: as many admissions as possible, workers in turn, or as many workers as now."""
    if isinstance(envs.config, RoutingConfig):
        return np.arange(envs.num_envs) % envs.single_action_space.n
    if isinstance(envs.config, ScalingConfig):
        return np.full((envs.num_envs, 1), envs.config.step)  # as many workers as there are
    return np.array([greedy_action(envs.config, mask) for mask in envs.episodes.masks])


def most_admissions(envs: Any, info: dict[str, Any]) -> Any:
    """Return the actions of AdmitCount that admit as many requests as fit."""
    return info["action_mask"].sum(axis=1) - 1


def play(env: Any, steps: int) -> Callable[[], tuple[int, float]]:
    """Return work that replays the first steps of a busy episode, through the wrappers of ``env``."""
    inner = env.unwrapped
    env.reset(seed=0)
    actions: list[Any] = []
    ended = False
    while not ended and len(actions) < steps:
        actions.append(greedy_action(inner.config, inner.episodes.masks[0]))
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
    env = RoutingEnv(num_requests=1000, caches=False)
    env.reset(seed=0)  # compile

    def work() -> tuple[int, float]:
        started = time.process_time()
        env.reset(seed=0)
        for k in range(steps):
            if env.step(k & 3)[2]:
                env.reset(seed=0)
        return steps, time.process_time() - started

    return work


def scale(episodes: int, *, alone: bool) -> Callable[[], tuple[int, float]]:
    """Return work that plays hours of 18,000 requests on six workers, with 150 requests in a step.

    Args:
        episodes: their number.
        alone: count steps, without resets; else whole episodes.
    """
    arrivals = {"kind": "poisson", "rate": 5.0}
    env = ScalingEnv(
        workload={"lengths": CHATS, "arrivals": arrivals, "ttft_slo": 2.0, "num_requests": 18_000}
    )
    env.reset(seed=0)  # compile

    def work() -> tuple[int, float]:
        steps, spent = 0, 0.0
        for k in range(episodes):
            began = time.process_time()
            env.reset(options={"workload_seed": k})
            started, ended = time.process_time(), False
            change = 6
            while not ended:
                ended = env.step([change])[2]
                change, steps = 4, steps + 1
            spent += time.process_time() - (started if alone else began)
        return (steps if alone else episodes), spent

    return work


def answering(env: Any, act: Callable[[Any], Any], steps: int) -> Callable[[], tuple[int, float]]:
    """Return work that steps one environment or a native vector with the actions of ``act``; ends included."""
    count = getattr(env, "num_envs", 1)
    act(env.reset(seed=0)[0])  # compile, and start threads

    def work() -> tuple[int, float]:
        started = time.process_time()
        observation, _ = env.reset(seed=0)
        for _ in range(steps):
            observation, _, terminated, truncated, _ = env.step(act(observation))
            if count == 1 and (terminated or truncated):
                observation, _ = env.reset()
        return count * steps, time.process_time() - started

    return work


def networks(env: Any) -> dict[str, Callable[[Any], Any]]:
    """Return functions from observations of Priority-v0 to actions: the same for all, and networks of 16 units."""
    config = env.unwrapped.config
    places = np.array(feature_places(config)["asked.prompt"])
    model = as_agent(
        config, Network(1, (16,), np.random.default_rng(0)), places, np.zeros(1), np.ones(1),
        algorithm="reinforce", noise=1.0, metadata={},
    )  # fmt: skip
    found: dict[str, Callable[[Any], Any]] = {
        "one number for all": lambda observation: np.zeros((*observation.shape[:-1], 1), np.float32),
        "NumPy network of 16 units": lambda observation: model.predict(observation)[0],
    }
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)
        layers = torch.nn.Sequential(
            torch.nn.Linear(model.header.observation_size, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )

        def choose(observation: Any) -> Any:
            with torch.no_grad():
                return layers(torch.as_tensor(observation)).clamp(-1.0, 1.0).numpy()

        found["PyTorch network of 16 units"] = choose
    return found


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


def play_vector(
    envs: Any, steps: int, *, restart: bool, choose: Callable[[Any, dict[str, Any]], Any] = busiest
) -> Callable[[], tuple[int, float]]:
    """Return work that steps a vector environment with the actions of ``choose``, which are not timed.

    With ``restart`` every repetition starts new episodes, none of which ends; otherwise it continues from the last
    one, ends and new episodes included.
    """
    info = envs.reset(seed=0)[1]

    def work() -> tuple[int, float]:
        nonlocal info
        if restart:
            info = envs.reset(seed=0)[1]
        seconds = 0.0
        for _ in range(steps):
            actions = choose(envs, info)
            started = time.process_time()
            info = envs.step(actions)[4]
            seconds += time.process_time() - started
        return steps * envs.num_envs, seconds

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
