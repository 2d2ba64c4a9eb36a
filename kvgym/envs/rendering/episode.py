"""Recording of episodes: play them, and write animations and summary pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.envs.recordable import Act
from kvgym.envs.rendering.film import Film, check_files, side_by_side, write_film, write_picture
from kvgym.envs.rendering.performing import Performance, perform
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.scaling.config import ScalingConfig
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.errors import ConfigError
from kvgym.policies.policy import Policy


@dataclass(frozen=True)
class EpisodeRecord:
    """Result of :func:`record_episode`.

    Attributes:
        name: name of the policy.
        steps: environment steps, or decisions of a scheduler.
        frames: frames in the file of the animation; 0 without one.
        total_reward: sum of the rewards; NaN for a scheduler, which gets no rewards.
        completed: whether every request finished.
        metrics: metrics of the episode by name; empty if ``max_steps`` stopped it.
        path: the animation, if requested.
        png: the summary, if requested.
    """

    name: str
    steps: int
    frames: int
    total_reward: float
    completed: bool
    metrics: dict[str, float]
    path: Path | None
    png: Path | None


def record_episode(
    env: gym.Env[Any, Any] | EnvConfig | RoutingConfig | ScalingConfig | dict[str, Any],
    policy: str | Act | Policy | Any = None,
    **options: Any,
) -> EpisodeRecord:
    """Play an episode, and write it as an animation and as a picture.

    Args:
        env: an environment of kvgym, wrapped or not, with any render mode; or its configuration. A dict configures an
            environment that schedules one worker.
        policy: one of the following; None = ``"greedy"``, or the default router.

            - ``"random"``: acts at random inside the mask.
            - A name for an environment that schedules one worker: ``"greedy"`` (admits as much as fits, evicts only if
              it must), a policy (``kvgym list policies``, hyperparameters as in ``"mc_sf:protection=0.1"``) or a
              trained agent. Policies, and agents by name, act on the worker as in :func:`kvgym.simulate`, whatever
              actions the environment has.
            - A name for the environment that routes: a router, learned or not (``kvgym list routers``).
            - A name for the environment that scales: an autoscaler, learned or not (``kvgym list autoscalers``).
            - A :class:`~kvgym.policies.policy.Policy`.
            - A function ``(observation, mask) -> action``; :func:`kvgym.envs.routing.players.router_player` makes one
              from any router.
            - An agent with SB3's ``predict``, which gets the mask if it accepts ``action_masks``.
        **options: as for :func:`record_episodes`.

    Raises:
        ConfigError: the file name ending is unknown, a library is missing, or ``env`` is not an environment of kvgym.
        UnknownNameError: no policy of that name.
    """
    return record_episodes(env, [policy], **options)[0]


def record_episodes(
    env: gym.Env[Any, Any] | EnvConfig | RoutingConfig | ScalingConfig | dict[str, Any],
    policies: Sequence[str | Act | Policy | Any],
    *,
    seed: int = 0,
    workload_seed: int | None = None,
    path: str | Path | None = None,
    png: str | Path | None = None,
    fps: int = 10,
    max_frames: int = 200,
    max_steps: int | None = None,
) -> list[EpisodeRecord]:
    """Play an episode of the same requests with each of several policies, and show them side by side.

    Args:
        env: as for :func:`record_episode`.
        policies: policies, as for :func:`record_episode`.
        seed: seed of the environment and of the policies.
        workload_seed: seed of the requests, as in ``kvgym compare``; None = drawn by the environment.
        path: animation to write, ending in .gif or .mp4; None = none. Folders are created. With several policies
            its frames are evenly spaced in simulated time.
        png: summary of the whole episode to write; None = none.
        fps: frames per second.
        max_frames: upper limit of frames; longer episodes are shown every 2, 4, 8, ... steps.
        max_steps: steps after which to stop; None = play to the end.

    Returns:
        A record for each policy, in order.

    Raises:
        ConfigError: the file name ending is unknown, a library is missing, or ``env`` is not an environment of kvgym.
        UnknownNameError: no policy of that name.
    """
    path, png = (Path(p) if p is not None else None for p in (path, png))
    check_files(path, png)
    for name, value, least in (("fps", fps, 1), ("max_frames", max_frames, 4)):
        if value < least:
            raise ConfigError(f"{name} = {value}: must be at least {least}")
    if not policies:
        raise ConfigError("no policies; give at least one")
    several = len(policies) > 1
    films, summaries, played = [], [], []
    for policy in policies:
        performance = perform(env, policy, seed=seed, workload_seed=workload_seed)
        # Several films are resampled at common moments: twice the scenes keep motion smooth.
        film = Film(max_frames * (2 if several else 1))
        steps = _play(performance, film if path is not None else None, max_steps)
        films.append(film)
        played.append((performance, steps))
        if png is not None:
            summaries.append(_summary(performance, seed if workload_seed is None else workload_seed))
    names = [performance.name for performance, _ in played]
    count = 0 if path is None else write_film(side_by_side(films, max_frames), names, path, fps)
    if png is not None:
        write_picture(np.hstack(summaries), png)
    return [
        EpisodeRecord(p.name, n, count, p.total_reward, p.completed, p.metrics, path, png) for p, n in played
    ]


def _play(performance: Performance, film: Film | None, max_steps: int | None) -> int:
    """Play an episode to its end or for ``max_steps``; return the number of steps."""
    steps, ended, recording = 0, False, performance.recording
    while True:
        recording.take()
        if ended or steps == max_steps:
            break
        if film is not None:
            film.add(steps, recording)
        ended = performance.step()
        steps += 1
    if film is not None:
        film.scenes.append(recording.scene())
    return steps


def _summary(performance: Performance, seed: int) -> NDArray[np.uint8]:
    """Return the picture of an episode, uint8 (height, width, 3)."""
    from kvgym.envs.rendering.picture import draw_summary

    title = f"{performance.name} on {performance.caption}, seed {seed}"
    return draw_summary(performance.recording.scene(whole=True), title)
