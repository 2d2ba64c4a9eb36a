"""Segments of random play; a seed and a number determine the configuration and every action of a segment."""

from __future__ import annotations

import pickle
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.routing.vector_environment import RoutingVectorEnv
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.tables import REWARD_TERMS
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from playing.checks import check_records, check_returns, check_state, equal, time_inside
from playing.configurations import routing_arguments, serving_arguments

KINDS = ("worker", "worker", "worker", "vector", "vector", "cluster", "clusters")
"""Environments of consecutive segments: single ones, vectors of them, clusters, vectors of clusters."""

ALONE = {"worker": ServingEnv, "cluster": RoutingEnv}
VECTORS = {"vector": (ServingVectorEnv, ServingEnv), "clusters": (RoutingVectorEnv, RoutingEnv)}
FOLLOWED = 12
"""Steps for which a copy is compared with its original."""


@dataclass
class Segment:
    """Result of a segment.

    Attributes:
        number: its number.
        kind: one of :data:`KINDS`.
        action: kind of action, ``route`` for clusters.
        steps: steps of all environments.
        episodes: episodes that ended.
        copies: copies made in the middle of an episode and compared with it.
        fault: the check that failed, "" if none.
        arguments: arguments of the environments, if there is a fault.
    """

    number: int
    kind: str
    action: str = "route"
    steps: int = 0
    episodes: int = 0
    copies: int = 0
    fault: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


def play_segment(seed: int, number: int, steps: int = 400) -> dict[str, Any]:
    """Play a segment.

    Args:
        seed: seed of the whole play.
        number: number of the segment.
        steps: minimal number of steps of all its environments.

    Returns:
        A :class:`Segment` as a dict; faults are reported in it, not raised.
    """
    rng = np.random.default_rng([seed, number])
    segment = Segment(number, KINDS[number % len(KINDS)])
    arguments: dict[str, Any] = {}
    try:
        serving = segment.kind in ("worker", "vector")
        arguments = serving_arguments(rng) if serving else routing_arguments(rng)
        arguments["reward_scale"] = [None, 1.0, 30.0][int(rng.integers(3))]
        segment.action = arguments.get("action", "route")
        play = play_alone if segment.kind in ALONE else play_vector
        play(segment, arguments, rng, steps)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        segment.fault = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"[:500]
        segment.arguments = arguments
    return asdict(segment)


def scale_of(config: Any, arguments: dict[str, Any]) -> float:
    """Return the divisor of the rewards of a configuration."""
    return float(config.reward_scale or arguments["num_requests"])


def play_alone(segment: Segment, arguments: dict[str, Any], rng: np.random.Generator, limit: int) -> None:
    """Play episodes of one environment, with copies of it in the middle."""
    make = ALONE[segment.kind]
    env, twin = make(**arguments), make(**arguments)
    env.action_space.seed(int(rng.integers(2**31)))
    masked_share = rng.choice([0.0, 0.5, 1.0])
    while segment.steps < limit:
        observation, info = env.reset(seed=int(rng.integers(2**31)))
        terms, copy_at, followed, ended = 0.0, segment.steps + int(rng.integers(60)), 0, False
        while not ended and segment.steps < limit:
            assert observation in env.observation_space, "the observation is not in its space"
            if isinstance(env, ServingEnv):
                check_state(env.episodes)
            if segment.steps == copy_at:
                restored = twin.set_state(pickle.loads(pickle.dumps(env.get_state())))
                assert equal(restored[0], observation), "a copy has another observation"
                followed, segment.copies = FOLLOWED, segment.copies + 1
            masked = rng.random() < masked_share
            action = env.action_space.sample(env.sample_mask() if masked else None)
            before, step = info["time"], env.step(action)
            if followed > 0:
                followed -= 1
                assert equal(step, twin.step(action)), "a copy took another step"
            observation, reward, terminated, truncated, info = step
            segment.steps += 1
            terms, ended = terms + info["reward_terms"], terminated or truncated
            assert np.isfinite(reward), "a reward is not finite"
            assert info["time"] >= before, "time went back"
            # A mask of flags or tokens holds for each of them alone.
            assert not masked or segment.action in ("flags", "tokens") or info["ignored"] == 0, (
                "ignored inside the mask"
            )
        if ended:
            segment.episodes += 1
            assert observation in env.observation_space, "the last observation is not in its space"
            check_end(env, terms, info, terminated, scale_of(env.config, arguments))


def check_end(env: Any, terms: Any, info: dict[str, Any], terminated: bool, scale: float) -> None:
    """Check records, metrics and return of an episode that has ended."""
    result = env.result()
    metrics = dict(zip(env.metric_names, info["metrics"].tolist(), strict=True))
    assert info["completed"] == terminated
    assert metrics["finished"] == (result.requests["status"] == 3).sum(), "finished requests are miscounted"
    names = getattr(env, "reward_terms", None) or REWARD_TERMS
    if terminated:
        assert metrics["finished"] == len(result.table), "completed, but not all have finished"
        check_records(result)
        check_returns(names, terms, scale, metrics)
    elif isinstance(env, ServingEnv):
        check_state(env.episodes)
        inside = time_inside(result, info["time"]) / scale
        latency = float(terms[names.index("latency")])
        assert np.isclose(latency, -inside, rtol=1e-9), (
            f"the latency rewards are {latency!r}, not {-inside!r}"
        )


def play_vector(segment: Segment, arguments: dict[str, Any], rng: np.random.Generator, limit: int) -> None:
    """Play a vector environment, and compare copies of its environments with them, one after another."""
    vector, single = VECTORS[segment.kind]
    count, mode = int(rng.integers(2, 5)), list(AutoresetMode)[int(rng.integers(3))]
    env, twin = vector(count, autoreset_mode=mode, **arguments), single(**arguments)
    env.action_space.seed(int(rng.integers(2**31)))
    env.single_action_space.seed(int(rng.integers(2**31)))
    names, scale = getattr(env, "reward_terms", None) or REWARD_TERMS, scale_of(env.config, arguments)
    masked_share = rng.choice([0.0, 0.5, 1.0])
    observation, info = env.reset(seed=int(rng.integers(2**31)))
    terms = np.zeros((count, len(names)))
    restarted, followed, k = np.zeros(count, bool), 0, 0
    while segment.steps < limit:
        assert observation in env.observation_space, "the observation is not in its space"
        for i in range(count if segment.kind == "vector" else 0):
            check_state(env.episodes, i)
        if followed == 0 and rng.random() < 0.05:
            k = int(rng.integers(count))
            if not restarted[k]:
                twin.set_state(pickle.loads(pickle.dumps(env.get_state()[k])))
                followed, segment.copies = FOLLOWED, segment.copies + 1
        masks = info["action_mask"] if rng.random() < masked_share else [None] * count
        actions = np.stack([env.single_action_space.sample(mask) for mask in masks])
        observation, rewards, terminated, truncated, info = env.step(actions)
        segment.steps += count
        ended = terminated | truncated
        last = info.get("final_info", info)
        assert np.isfinite(rewards).all(), "a reward is not finite"
        if followed > 0:
            followed = 0 if ended[k] else followed - 1
            alone = twin.step(actions[k])
            there = (float(rewards[k]), bool(terminated[k]), bool(truncated[k]))
            assert equal(alone[1:4], there), "a single environment took another step"
            if not ended[k]:
                assert equal(alone[0], row(observation, k)), "a single environment has another observation"
        for i in range(count):
            terms[i] += 0.0 if restarted[i] else (last if ended[i] else info)["reward_terms"][i]
            if terminated[i]:
                figures = dict(zip(env.metric_names, last["metrics"][i].tolist(), strict=True))
                check_returns(names, terms[i], scale, figures)
            if ended[i]:
                segment.episodes, terms[i] = segment.episodes + 1, 0.0
        restarted = ended if mode == AutoresetMode.NEXT_STEP else np.zeros(count, bool)
        if mode == AutoresetMode.DISABLED and ended.any():
            observation, info = env.reset(options={"reset_mask": ended})
            if not info["_action_mask"].all():
                info = {"action_mask": env._info()["action_mask"]}


def row(observation: Any, k: int) -> Any:
    """Return the observation of one environment of a vector."""
    return (
        {name: value[k] for name, value in observation.items()}
        if isinstance(observation, dict)
        else observation[k]
    )


def faults_of(segments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the segments with a fault."""
    return [segment for segment in segments if segment["fault"]]


def counted(segments: list[dict[str, Any]], by: str) -> dict[str, Counter[str]]:
    """Return steps, episodes and copies by kind of segment or by action."""
    found: dict[str, Counter[str]] = {}
    for segment in segments:
        row = found.setdefault(segment[by], Counter())
        row.update(segments=1, **{name: segment[name] for name in ("steps", "episodes", "copies")})
        row["faults"] += bool(segment["fault"])
    return dict(sorted(found.items()))
