"""Playing an episode and writing it as an animation and as a summary picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from kvgym.envs.recordable import Act
from kvgym.envs.rendering.film import Film, Frames, SideBySide, check_files, write_film
from kvgym.envs.rendering.performing import Performance, perform
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.errors import ConfigError
from kvgym.policy import Policy
from kvgym.utils.files import whole_file


@dataclass(frozen=True)
class EpisodeRecord:
    """What :func:`record_episode` did.

    Attributes:
        name: who played.
        steps: environment steps; decisions of a scheduler.
        frames: frames of the animation; 0 without one.
        total_reward: sum of the rewards; NaN of a scheduler, which is not rewarded.
        completed: whether every request finished.
        metrics: metrics of the episode by name; empty if it was stopped by ``max_steps``.
        path: the animation, if one was asked for.
        png: the summary, if one was asked for.
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
    env: gym.Env[Any, Any] | EnvConfig | RoutingConfig | dict[str, Any],
    policy: str | Act | Policy | Any = None,
    **options: Any,
) -> EpisodeRecord:
    """Play an episode, and write it as an animation and as a picture.

    Args:
        env: an environment of kvgym, wrapped or not, whose render mode does not matter; or its configuration, where
            a dict is that of an environment that schedules one worker.
        policy: a name: ``"random"`` (inside the mask), where one worker is scheduled ``"greedy"`` (admits as much as
            fits, evicts only where it must), a policy (``kvgym list policies``, hyperparameters as in
            ``"mc_sf:protection=0.1"``) or a trained agent, where requests are routed that of a router, learned or
            not (``kvgym list routers``); a :class:`~kvgym.policy.Policy`; a function
            ``(observation, mask) -> action``, such as :func:`kvgym.envs.routing.players.router_player`
            returns for any router; or an agent with SB3's ``predict``, which is given the mask if it takes
            ``action_masks``. None = ``"greedy"``, or the default router. Policies, and agents by name, see the
            worker as in :func:`kvgym.simulate`, whatever actions the environment has.
        **options: as for :func:`record_episodes`.

    Raises:
        ConfigError: another file name ending, a library is missing, or no environment of kvgym.
        UnknownNameError: no policy of that name.
    """
    return record_episodes(env, [policy], **options)[0]


def record_episodes(
    env: gym.Env[Any, Any] | EnvConfig | RoutingConfig | dict[str, Any],
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
    """Play an episode of the same requests under each of several policies, and show them side by side.

    Args:
        env: as for :func:`record_episode`.
        policies: who plays, likewise.
        seed: of the environment, and of whoever plays.
        workload_seed: seed of the requests, as in ``kvgym compare``; None = drawn by the environment.
        path: animation to write, ending in .gif or .mp4; None = none. Folders are created. With several policies
            its frames are evenly spread over simulated time.
        png: summary of the whole episode to write; None = none.
        fps: frames per second.
        max_frames: most frames; a longer episode is shown in even steps of 2, 4, 8, ... of its own.
        max_steps: steps after which to stop; None = play to the end.

    Returns:
        What each did, in order.

    Raises:
        ConfigError: another file name ending, a library is missing, or no environment of kvgym.
        UnknownNameError: no policy of that name.
    """
    path, png = (Path(p) if p is not None else None for p in (path, png))
    check_files(path, png)
    for name, value, least in (("fps", fps, 1), ("max_frames", max_frames, 4)):
        if value < least:
            raise ConfigError(f"{name} = {value}: must be at least {least}")
    if not policies:
        raise ConfigError("nobody plays; give at least one policy")
    several = len(policies) > 1
    films, summaries, played = [], [], []
    for policy in policies:
        performance = perform(env, policy, seed=seed, workload_seed=workload_seed)
        # Several films are cut to common moments: twice the scenes leave no visible steps.
        film = Film(max_frames * (2 if several else 1), performance.recording)
        steps = _play(performance, film if path is not None else None, max_steps)
        films.append(film)
        played.append((performance, steps))
        if png is not None:
            summaries.append(_summary(performance, seed if workload_seed is None else workload_seed))
    names = [performance.name for performance, _ in played]
    frames: Frames = SideBySide(films, names, max_frames) if several and path is not None else films[0]
    if path is not None:
        write_film(frames, path, fps)
    if png is not None:
        _write_summaries(summaries, png)
    return [
        EpisodeRecord(p.name, n, len(frames), p.total_reward, p.completed, p.metrics, path, png)
        for p, n in played
    ]


def _play(performance: Performance, film: Film | None, max_steps: int | None) -> int:
    """Play an episode to its end, or for some steps; returns the number of steps."""
    steps, ended, recording = 0, False, performance.recording
    while True:
        recording.take()
        if ended or steps == max_steps:
            break
        if film is not None:
            film.pass_by(steps)
        ended = performance.step()
        steps += 1
    if film is not None:
        film.end()
    return steps


def _summary(performance: Performance, seed: int) -> bytes:
    """Return the summary of an episode, a PNG file."""
    content = io.BytesIO()
    title = f"{performance.name} on {performance.caption}, seed {seed}"
    performance.recording.write_summary(title, content)
    return content.getvalue()


def _write_summaries(summaries: Sequence[bytes], path: Path) -> None:
    """Write PNG files side by side into one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if len(summaries) == 1:
        with whole_file(path) as place:
            place.write_bytes(summaries[0])
        return
    from PIL import Image as Images

    pictures = [Images.open(io.BytesIO(summary)) for summary in summaries]
    whole = Images.new("RGB", (sum(p.width for p in pictures), max(p.height for p in pictures)), "white")
    left = 0
    for picture in pictures:
        whole.paste(picture, (left, 0))
        left += picture.width
    with whole_file(path) as place:
        whole.save(place)
