"""Files of operator tables: packed, read and found by the name of a GPU.

A file is an ``.npz`` archive. Times are stored as 16-bit codes of their logarithm (resolution 0.02 %), and a table is
decoded when it is used.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.interpolation import Floats
from kvgym.batch_time.operators.tables import GROUPS, Grid, OperatorTables
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.utils.reading import read_arrays

_LOW, _STEP = -9.0, 18.0 / 65534  # natural logarithm of milliseconds: 1.2e-4 ms … 8,100 ms


class _Stored(Mapping[Any, Grid]):
    """Grids of a file by key; one is decoded when it is used.

    Args:
        keys: key and numbers of the axes of each grid, in the order of the codes.
        axes: axes of all grids.
        codes: codes of all grids, one after another, as differences.
    """

    def __init__(
        self, keys: list[tuple[Any, list[int]]], axes: list[Floats], codes: NDArray[np.uint16]
    ) -> None:
        self._places: dict[Any, tuple[tuple[Floats, ...], int, int]] = {}
        self._codes = codes
        end = 0
        for key, numbers in keys:
            found = tuple(axes[number] for number in numbers)
            start, end = end, end + int(np.prod([len(axis) for axis in found]))
            self._places[tuple(key) if isinstance(key, list) else key] = found, start, end

    def __iter__(self) -> Iterator[Any]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, key: Any) -> Grid:
        axes, start, end = self._places[key]
        codes = np.cumsum(self._codes[start:end], dtype=np.uint16)
        ms = np.exp(_LOW + _STEP * (codes.astype(np.float64) - 1))
        return Grid(axes, np.where(codes == 0, np.nan, ms).reshape([len(axis) for axis in axes]))


def _codes(ms: Floats) -> NDArray[np.uint16]:
    """Return codes of times as differences, which compress well; NaN is 0 before the differences."""
    with np.errstate(invalid="ignore", divide="ignore"):
        codes = np.clip(np.round((np.log(ms) - _LOW) / _STEP), 0, 65534) + 1
    plain = np.where(np.isnan(ms), 0, codes).astype(np.uint16).ravel()
    return np.diff(plain, prepend=np.uint16(0))


def pack(tables: OperatorTables) -> bytes:
    """Return the content of a file; equal tables give equal bytes."""
    axes: list[Floats] = []
    keys: dict[str, list[tuple[Any, list[int]]]] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for group in GROUPS:
        grids = sorted(getattr(tables, group).items(), key=lambda item: str(item[0]))
        if not grids:
            continue
        keys[group] = []
        for key, grid in grids:
            numbers = []
            for axis in grid.axes:
                same = [i for i, known in enumerate(axes) if np.array_equal(known, axis)]
                numbers.append(same[0] if same else len(axes))
                axes += [] if same else [axis]
            keys[group].append((key, numbers))
        arrays[group] = np.concatenate([_codes(grid.ms) for _, grid in grids])
    header = {name: getattr(tables, name) for name in ("name", "measured", "source", "date", "fit_error")}
    header |= {"axes": [axis.tolist() for axis in axes], "keys": keys}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def read_operators(path: Path) -> OperatorTables:
    """Read a file of operator tables.

    Raises:
        ConfigError: it cannot be read or is damaged.
    """
    arrays = read_arrays(path, "operator tables")
    try:
        header = json.loads(arrays["header"].tobytes())
        axes = [np.array(axis, np.float64) for axis in header["axes"]]
        grids: dict[str, Any] = {
            group: _Stored(header["keys"][group], axes, arrays[group])
            for group in GROUPS
            if group in header["keys"]
        }
        described: dict[str, Any] = {
            name: header[name] for name in ("name", "measured", "source", "date", "fit_error")
        }
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"operator tables {path}: damaged, or of another version: {error}") from None
    return OperatorTables(**described, **grids)


@functools.lru_cache
def operator_gpus() -> tuple[str, ...]:
    """Return the presets of GPUs that come with operator tables, sorted."""
    found = resources.files("kvgym.configs").joinpath("operators")
    return tuple(sorted(file.name[:-4] for file in found.iterdir() if file.name.endswith(".npz")))


def load_operators(gpu: str) -> OperatorTables:
    """Load the operator tables of a GPU; a file is read each time, as it may have changed.

    Args:
        gpu: one of :func:`operator_gpus`, or the path of an ``.npz`` file.

    Raises:
        UnknownNameError: there are no tables of this GPU.
        ConfigError: the file cannot be read or is damaged.
    """
    return read_operators(Path(gpu)) if gpu.endswith(".npz") else _load_shipped(gpu)


@functools.lru_cache(maxsize=8)
def _load_shipped(gpu: str) -> OperatorTables:
    if gpu not in operator_gpus():
        raise UnknownNameError("GPU with operator tables", gpu, operator_gpus(), "an .npz file")
    place = resources.files("kvgym.configs").joinpath("operators", f"{gpu}.npz")
    with resources.as_file(place) as path:
        return read_operators(path)
