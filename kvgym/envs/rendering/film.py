"""Films of episodes, alone or side by side, and their files."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.recordable import Recording
from kvgym.envs.rendering.canvas import LARGE, Canvas
from kvgym.envs.rendering.scene import require_libraries
from kvgym.errors import ConfigError
from kvgym.utils.files import whole_file

LAST_FRAME = 2.0
"""Seconds for which an animation shows the last frame."""

STRIP = 28
"""Height of the line above a film with the name of the policy, pixels."""


class Frames(Protocol):
    """A sequence of pictures."""

    def __len__(self) -> int:
        """Return the number of pictures."""
        ...

    def picture(self, k: int) -> NDArray[np.uint8]:
        """Draw picture ``k``, uint8 (height, width, 3)."""
        ...


class Film:
    """Scenes of an episode of unknown length, evenly spaced over its steps, in bounded memory.

    Attributes:
        limit: upper limit of scenes.
        stride: steps from one scene to the next; doubles when the limit is reached.
        scenes: the scenes, in order.
    """

    def __init__(self, limit: int, recording: Recording) -> None:
        """Create a film without scenes."""
        self.limit, self.stride, self._recording = limit, 1, recording
        self.scenes: list[Any] = []

    def add(self, step: int) -> None:
        """Add the scene after ``step`` steps, if ``step`` is a multiple of the stride."""
        if step % self.stride:
            return
        self.scenes.append(self._recording.scene())
        if len(self.scenes) >= self.limit:  # one place stays free for the last scene
            del self.scenes[1::2]
            self.stride *= 2

    def end(self) -> None:
        """Add the last scene."""
        self.scenes.append(self._recording.scene())

    def __len__(self) -> int:
        """Return the number of scenes."""
        return len(self.scenes)

    def picture(self, k: int) -> NDArray[np.uint8]:
        """Draw a scene, uint8 (600, 800, 3)."""
        return self._recording.draw(self.scenes[k])


class SideBySide:
    """Films of the same requests at the same moments of simulated time, each below its name.

    Args:
        films: a film for each policy.
        names: the names of the policies.
        limit: upper limit of pictures.
    """

    def __init__(self, films: Sequence[Film], names: Sequence[str], limit: int) -> None:
        self._films, self._names = films, names
        self._clocks = [np.array([scene.clock for scene in film.scenes]) for film in films]
        first, last = (f(f(clocks) for clocks in self._clocks) for f in (min, max))
        self._times = np.linspace(first, last, min(limit, max(map(len, films))))

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self._times)

    def picture(self, k: int) -> NDArray[np.uint8]:
        """Draw the latest scene of each film at moment ``k``, or its last one if it has ended."""
        columns = []
        for film, name, clocks in zip(self._films, self._names, self._clocks, strict=True):
            scene = int(np.searchsorted(clocks, self._times[k], side="right")) - 1
            strip = Canvas(height=STRIP)
            strip.text(16, 10, name, size=LARGE)
            columns.append(np.vstack((strip.pixels, film.picture(max(scene, 0)))))
        return np.hstack(columns)


# ---------------------------------------------------------------- files


def check_files(path: Path | None, png: Path | None) -> None:
    """Check that the files can be written, before an episode is played.

    Raises:
        ConfigError: a file name ending is unknown.
        MissingLibraryError: a library is missing.
    """
    if path is not None and path.suffix.lower() not in WRITERS:
        raise ConfigError(f"{path}: animations end in {' or '.join(WRITERS)}")
    if png is not None and png.suffix.lower() != ".png":
        raise ConfigError(f"{png}: summary pictures end in .png")
    if path is not None:
        require_libraries("PIL" if path.suffix.lower() == ".gif" else "imageio_ffmpeg")
    if png is not None:
        require_libraries("matplotlib", "PIL")


def write_film(frames: Frames, path: Path, fps: int) -> int:
    """Write an animation in the format of its file name ending, see :func:`check_files`; return its frames.

    A GIF has one for successive pictures that are equal; a video repeats its last one for some time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as place:
        return WRITERS[path.suffix.lower()](frames, place, fps)


def _pictures(frames: Frames) -> Iterator[NDArray[np.uint8]]:
    return map(frames.picture, range(len(frames)))


def _write_gif(frames: Frames, path: Path, fps: int) -> int:
    """Write an animation with one palette for all frames, taken from four of them; return the number of frames."""
    from PIL import Image as Images

    count = len(frames)
    some = [frames.picture(k) for k in sorted({0, count // 3, 2 * count // 3, count - 1})]
    pixels = np.concatenate([picture.reshape(-1, 3) for picture in some])
    codes = np.unique(pixels @ np.array([65536, 256, 1]))  # far faster than unique rows, in the same order
    colors = np.stack((codes >> 16, codes >> 8 & 255, codes & 255), axis=1).astype(np.uint8)
    palette = Images.new("P", (1, 1))
    palette.putpalette(colors.tobytes())
    shown = (
        Images.fromarray(f).quantize(palette=palette, dither=Images.Dither.NONE) for f in _pictures(frames)
    )
    next_frame = max(round(1000 / fps), 20)  # viewers slow shorter ones down
    durations = [next_frame] * (count - 1) + [max(next_frame, round(1000 * LAST_FRAME))]
    first = next(shown)
    first.save(
        path, format="GIF", save_all=True, append_images=shown, duration=durations, loop=0, optimize=False
    )
    with Images.open(path) as written:
        return int(getattr(written, "n_frames", 1))


def _write_mp4(frames: Frames, path: Path, fps: int) -> int:
    """Write an H.264 video that browsers play; return the number of frames."""
    pictures = _pictures(frames)
    picture = next(pictures)
    height, width, _ = picture.shape
    writer = importlib.import_module("imageio_ffmpeg").write_frames(
        str(path), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="error"
    )
    writer.send(None)
    writer.send(picture)
    for picture in pictures:
        writer.send(picture)
    repeats = round(fps * LAST_FRAME)
    for _ in range(repeats):
        writer.send(picture)
    writer.close()
    return len(frames) + repeats


WRITERS = {".gif": _write_gif, ".mp4": _write_mp4}
"""Writers of animations by file name ending."""
