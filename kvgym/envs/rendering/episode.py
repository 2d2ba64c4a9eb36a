"""Playing an episode and writing it as an animation and as a summary picture."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.envs.recordable import Act, Recordable, Recording
from kvgym.envs.rendering.scene import require_matplotlib
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError

FORMATS = (".gif", ".mp4")
LAST_FRAME = 2.0
"""Seconds for which an animation shows the end."""


@dataclass(frozen=True)
class EpisodeRecord:
    """What :func:`record_episode` did.

    Attributes:
        steps: environment steps.
        frames: frames of the animation; 0 without one.
        total_reward: sum of the rewards.
        completed: whether every request finished.
        metrics: metrics of the episode by name; empty if it was stopped by ``max_steps``.
        path: the animation, if one was asked for.
        png: the summary, if one was asked for.
    """

    steps: int
    frames: int
    total_reward: float
    completed: bool
    metrics: dict[str, float]
    path: Path | None
    png: Path | None


class Film:
    """Scenes of an episode of unknown length, evenly spread over its steps, in bounded memory.

    Attributes:
        limit: most scenes.
        stride: steps from one scene to the next; doubles when the limit is reached.
        scenes: in order.
    """

    def __init__(self, limit: int, recording: Recording) -> None:
        """Start without scenes."""
        self.limit, self.stride, self._recording = limit, 1, recording
        self.scenes: list[Any] = []

    def pass_by(self, step: int) -> None:
        """Film the moment after ``step`` steps, if it is its turn."""
        if step % self.stride:
            return
        self.scenes.append(self._recording.scene())
        if len(self.scenes) >= self.limit:  # one place stays free for the end
            del self.scenes[1::2]
            self.stride *= 2

    def pictures(self) -> Iterator[NDArray[np.uint8]]:
        """Draw the scenes, uint8 (600, 800, 3) each."""
        return map(self._recording.draw, self.scenes)

    def picture(self, k: int) -> NDArray[np.uint8]:
        """Draw one scene."""
        return self._recording.draw(self.scenes[k])


def record_episode(
    env: gym.Env[Any, Any] | EnvConfig | RoutingConfig | dict[str, Any],
    policy: str | Act | Any = None,
    *,
    seed: int = 0,
    path: str | Path | None = None,
    png: str | Path | None = None,
    fps: int = 10,
    max_frames: int = 200,
    max_steps: int | None = None,
) -> EpisodeRecord:
    """Play an episode, and write it as an animation and as a picture.

    Args:
        env: an environment of kvgym, wrapped or not, whose render mode does not matter; or its configuration, where
            a dict is that of an environment that schedules one worker.
        policy: a name: ``"random"`` (inside the mask), where one worker is scheduled ``"greedy"`` (admits as much as
            fits, evicts only where it must), where requests are routed that of a router (``kvgym list routers``); a
            function ``(observation, mask) -> action``, such as :func:`kvgym.envs.routing.players.router_player`
            returns for any router; or an agent with SB3's ``predict``, which is given the mask if it takes
            ``action_masks``. None = ``"greedy"``, or the default router.
        seed: of the environment and of the random policy.
        path: animation to write, ending in .gif or .mp4; None = none. Folders are created.
        png: summary of the whole episode to write; None = none.
        fps: frames per second.
        max_frames: most frames; a longer episode is shown in even steps of 2, 4, 8, ... of its own.
        max_steps: steps after which to stop; None = play to the end.

    Raises:
        ConfigError: another file name ending, a library is missing, or no environment of kvgym.
        UnknownNameError: no policy of that name.
    """
    path, png = (Path(p) if p is not None else None for p in (path, png))
    _check_files(path, png)
    for name, value, least in (("fps", fps, 1), ("max_frames", max_frames, 4)):
        if value < least:
            raise ConfigError(f"{name} = {value}: must be at least {least}")
    env, served = _environment(env)
    policy = served.players()[0] if policy is None else policy
    act = _player(policy, served, seed)
    observation, info = env.reset(seed=seed)
    recording = served.recording()
    film = Film(max_frames, recording)
    steps, total, ended = 0, 0.0, False
    while True:
        recording.take()
        if ended or steps == max_steps:
            break
        if path is not None:
            film.pass_by(steps)
        observation, reward, terminated, truncated, info = env.step(act(observation, served.action_masks()))
        ended = terminated or truncated
        steps, total = steps + 1, total + float(reward)
    if path is not None:
        film.scenes.append(recording.scene())
        path.parent.mkdir(parents=True, exist_ok=True)
        (_write_gif if path.suffix.lower() == ".gif" else _write_mp4)(film, path, fps)
    if png is not None:
        png.parent.mkdir(parents=True, exist_ok=True)
        recording.write_summary(_title(policy, served, seed), png)
    figures = info.get("metrics")
    return EpisodeRecord(
        steps=steps,
        frames=len(film.scenes),
        total_reward=total,
        completed=bool(info.get("completed", False)),
        metrics={} if figures is None else dict(zip(served.metric_names, map(float, figures), strict=True)),
        path=path,
        png=png,
    )


def _check_files(path: Path | None, png: Path | None) -> None:
    """Check what is to be written before an episode is played for it.

    Raises:
        ConfigError: another file name ending, or a library is missing.
    """
    if path is not None and path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path}: animations end in {' or '.join(FORMATS)}")
    if png is not None and png.suffix.lower() != ".png":
        raise ConfigError(f"{png}: summary pictures end in .png")
    if path is not None or png is not None:
        require_matplotlib()
    if path is not None and path.suffix.lower() == ".mp4" and find_spec("imageio_ffmpeg") is None:
        raise ConfigError(
            f"{path}: MP4 needs imageio-ffmpeg; install with: pip install imageio-ffmpeg, or write a .gif"
        )


def _environment(env: Any) -> tuple[gym.Env[Any, Any], Recordable]:
    """Return what to step, and the environment of kvgym inside.

    Raises:
        ConfigError: there is none inside.
    """
    if isinstance(env, EnvConfig):
        env = ServingEnv(**env.model_dump())
    elif isinstance(env, RoutingConfig):
        env = RoutingEnv(**env.model_dump())
    elif isinstance(env, dict):
        env = ServingEnv(**env)
    served = getattr(env, "unwrapped", None)
    if not isinstance(served, Recordable):
        raise ConfigError(f"record_episode takes an environment of kvgym or its configuration, got {env!r}")
    return env, served


def _title(policy: Any, served: Recordable, seed: int) -> str:
    """Return the first line of a summary."""
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)
    return f"{name} on {served.caption}, seed {seed}"


# ---------------------------------------------------------------- who plays


def _player(policy: Any, served: Recordable, seed: int) -> Act:
    """Return what chooses the actions.

    Raises:
        ConfigError: nothing that can.
        UnknownNameError: no policy of that name.
    """
    if isinstance(policy, str):
        return served.player(policy, seed)
    if hasattr(policy, "predict"):
        masked = "action_masks" in inspect.signature(policy.predict).parameters

        def predict(observation: Any, mask: NDArray[np.bool_]) -> Any:
            more = {"action_masks": mask} if masked else {}
            return policy.predict(observation, deterministic=True, **more)[0]

        return predict
    if callable(policy):
        return policy
    raise ConfigError(
        f"policy {policy!r}: give a name ({', '.join(served.players())}), a function (observation, mask) -> "
        "action, or an agent with predict"
    )


# ---------------------------------------------------------------- files


def _write_gif(film: Film, path: Path, fps: int) -> None:
    """Write an animation with one palette for all frames, taken from some of them."""
    from PIL import Image as Images

    count = len(film.scenes)
    some = [film.picture(k) for k in sorted({0, count // 3, 2 * count // 3, count - 1})]
    palette = Images.fromarray(np.concatenate(some)).quantize(128, dither=Images.Dither.NONE)
    colors = np.array(palette.getpalette(), np.uint8).reshape(-1, 3)
    colors[(colors >= 244).all(axis=1)] = 255  # the paper stays white
    palette.putpalette(colors.tobytes())
    frames = (
        Images.fromarray(f).quantize(palette=palette, dither=Images.Dither.NONE) for f in film.pictures()
    )
    next_frame = max(round(1000 / fps), 20)  # viewers slow shorter ones down
    durations = [next_frame] * (count - 1) + [max(next_frame, round(1000 * LAST_FRAME))]
    first = next(frames)
    first.save(
        path, format="GIF", save_all=True, append_images=frames, duration=durations, loop=0, optimize=False
    )


def _write_mp4(film: Film, path: Path, fps: int) -> None:
    """Write an H.264 video that browsers play."""
    pictures = film.pictures()
    picture = next(pictures)
    height, width, _ = picture.shape
    writer = importlib.import_module("imageio_ffmpeg").write_frames(
        str(path), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="error"
    )
    writer.send(None)
    writer.send(picture)
    for picture in pictures:
        writer.send(picture)
    for _ in range(round(fps * LAST_FRAME)):
        writer.send(picture)
    writer.close()
