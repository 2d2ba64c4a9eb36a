"""Films of episodes, alone or side by side, and their files."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.recordable import require_library
from kvgym.envs.rendering.recorder import Recorder
from kvgym.envs.rendering.scene import Scene
from kvgym.errors import ConfigError
from kvgym.utils.files import whole_file

LAST_FRAME = 2.0
"""Seconds for which an animation shows the last frame."""

STRIP = 28
"""Height of the line above a film with the name of the policy, pixels."""


Moment = tuple[Scene, ...]
"""What is shown at a moment: a scene of each policy."""


class Film:
    """Scenes of an episode of unknown length, evenly spaced over its steps, in bounded memory.

    Attributes:
        limit: upper limit of scenes.
        stride: steps from one scene to the next; doubles when the limit is reached.
        scenes: the scenes, in order.
    """

    def __init__(self, limit: int) -> None:
        """Create a film without scenes."""
        self.limit, self.stride = limit, 1
        self.scenes: list[Scene] = []

    def add(self, step: int, recording: Recorder) -> None:
        """Add the scene after ``step`` steps, if ``step`` is a multiple of the stride."""
        if step % self.stride:
            return
        self.scenes.append(recording.scene())
        if len(self.scenes) >= self.limit:  # one place stays free for the last scene
            del self.scenes[1::2]
            self.stride *= 2


def side_by_side(films: Sequence[Film], limit: int) -> list[Moment]:
    """Return films of the same requests at the same moments of simulated time: at each, the latest scene of each film.

    Args:
        films: a film for each policy; a single one is returned as it is.
        limit: upper limit of moments.
    """
    if len(films) == 1:
        return [(scene,) for scene in films[0].scenes]
    clocks = [np.array([scene.clock for scene in film.scenes]) for film in films]
    first, last = min(c[0] for c in clocks), max(c[-1] for c in clocks)
    times = np.linspace(first, last, min(limit, max(map(len, clocks))))
    places = [np.maximum(np.searchsorted(c, times, side="right") - 1, 0) for c in clocks]
    return [
        tuple(film.scenes[k] for film, k in zip(films, row, strict=True))
        for row in zip(*(place.tolist() for place in places), strict=True)
    ]


def picture_of(moment: Moment, names: Sequence[str]) -> NDArray[np.uint8]:
    """Draw the scenes of a moment side by side, uint8 (height, width, 3); several have their names above them."""
    from kvgym.envs.rendering.canvas import LARGE, Canvas
    from kvgym.envs.rendering.picture import draw

    if len(moment) == 1:
        return draw(moment[0])
    columns = []
    for scene, name in zip(moment, names, strict=True):
        picture = draw(scene)
        strip = Canvas(picture.shape[1], STRIP)
        strip.text(16, STRIP // 2 + 2, name, size=LARGE)
        columns.append(np.vstack((strip.pixels(), picture)))
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
    if path is not None or png is not None:
        require_library("PIL", "pictures")
    if path is not None and path.suffix.lower() == ".mp4":
        require_library("imageio_ffmpeg", "video")


def write_picture(pixels: NDArray[np.uint8], path: Path) -> None:
    """Write a picture as a PNG file."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as place:
        Image.fromarray(pixels).save(place, format="PNG", optimize=True)


def write_film(moments: Sequence[Moment], names: Sequence[str], path: Path, fps: int) -> int:
    """Write an animation in the format of its file name ending, see :func:`check_files`; return its frames.

    A GIF has one for successive pictures that are equal; a video repeats its last one for some time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as place:
        return WRITERS[path.suffix.lower()](moments, names, place, fps)


def _write_gif(moments: Sequence[Moment], names: Sequence[str], path: Path, fps: int) -> int:
    """Write an animation with one palette for all frames, taken from four of them; return the number of frames."""
    from PIL import Image as Images

    count = len(moments)
    some = [picture_of(moments[k], names) for k in sorted({0, count // 3, 2 * count // 3, count - 1})]
    pixels = np.concatenate([picture.reshape(-1, 3) for picture in some])
    codes, counts = np.unique(pixels @ np.array([65536, 256, 1]), return_counts=True)
    codes = codes[np.argsort(-counts, kind="stable")[:256]]  # rarer ones are edges of letters
    colors = np.stack((codes >> 16, codes >> 8 & 255, codes & 255), axis=1).astype(np.uint8)
    palette = Images.new("P", (1, 1))
    palette.putpalette(colors.tobytes())
    shown = (
        Images.fromarray(picture_of(moment, names)).quantize(palette=palette, dither=Images.Dither.NONE)
        for moment in moments
    )
    next_frame = max(round(1000 / fps), 20)  # viewers slow shorter ones down
    durations = [next_frame] * (count - 1) + [max(next_frame, round(1000 * LAST_FRAME))]
    first = next(shown)
    first.save(
        path, format="GIF", save_all=True, append_images=shown, duration=durations, loop=0, optimize=False
    )
    with Images.open(path) as written:
        return int(getattr(written, "n_frames", 1))


def _write_mp4(moments: Sequence[Moment], names: Sequence[str], path: Path, fps: int) -> int:
    """Write an H.264 video that browsers play; return the number of frames."""
    picture = picture_of(moments[0], names)
    height, width, _ = picture.shape
    writer = importlib.import_module("imageio_ffmpeg").write_frames(
        str(path), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="error"
    )
    writer.send(None)
    for moment in moments:
        picture = picture_of(moment, names)
        writer.send(picture)
    repeats = round(fps * LAST_FRAME)
    for _ in range(repeats):
        writer.send(picture)
    writer.close()
    return len(moments) + repeats


WRITERS = {".gif": _write_gif, ".mp4": _write_mp4}
"""Writers of animations by file name ending."""
