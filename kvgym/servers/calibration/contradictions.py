"""Times of fitted operator tables that contradict their neighbours and the tables of other GPUs.

An operator with more work takes no less time, and with twice the work at most twice as long (attention of a chunk four
times). Measured kernels come within a factor of 4 of that, but for some slow kernels that other GPUs have as well. So a
time is doubtful if it contradicts a neighbour and the tables of all other GPUs that have its shape, and a whole series
if it is far from all of them. Times of other GPUs are scaled by the data sheets.

Single rows of published measurements are wrong by up to 80 times, so a few doubtful times are no error: see
:attr:`Doubt.is_grave`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.interpolation import Floats
from kvgym.batch_time.hardware.presets import GPUS
from kvgym.batch_time.hardware.shapes import GPU
from kvgym.batch_time.operators.files import load_operators, operator_gpus
from kvgym.batch_time.operators.tables import GROUPS, Grid, OperatorTables

CELL = 4.0
"""Factor from which single times contradict a neighbour, or another GPU."""

SERIES = 8.0
"""Factor from which the median of a series contradicts another GPU: all-reduces over PCIe come near it."""

SERIES_SHARE, GROUP_SHARE = 0.25, 0.05
"""Shares of doubtful times in a series, and in all series of a group, from which they are grave.

Tables that come with kvgym have up to 0.1 and 0.02.
"""

_ATTENTION = ("decode", "prefill")
_HEADS = 2  # place of the query heads in keys of attention
_AXES = {
    "matmul": ("n", "k", "m"),
    "decode": ("batch_size", "step"),
    "prefill": ("isl",),
    "all_reduce": ("bytes",),
    "all_gather": ("bytes",),
}

Cells = NDArray[np.bool_]


class Doubt(NamedTuple):
    """What is doubtful about a series of times, the table of one operator of one shape.

    Attributes:
        text: one line.
        is_grave: whether the series as a whole is doubtful, or many times of its group: no few wrong rows.
    """

    text: str
    is_grave: bool


def contradictions(tables: OperatorTables) -> list[Doubt]:
    """Return what is doubtful about fitted tables, the grave first.

    Args:
        tables: the tables; if their name is no preset of a GPU, other GPUs are not compared.
    """
    gpu = GPUS.get(tables.name)
    others = {name: load_operators(name) for name in operator_gpus() if name != tables.name} if gpu else {}
    found: list[Doubt] = []
    for group in GROUPS:
        grids: Mapping[Any, Grid] = getattr(tables, group)
        cells: list[tuple[str, float]] = []
        doubtful = total = 0
        for key, grid in grids.items():
            compared = dict(_elsewhere(group, key, grid, gpu, others))
            total += grid.ms.size
            if text := _series(group, key, grid, compared):
                found.append(Doubt(text, is_grave=True))
            elif (single := _cells(group, key, grids, compared)) is not None:
                text, count = single
                doubtful += count
                cells.append((text, count / grid.ms.size))
        many = doubtful > GROUP_SHARE * total
        found += [Doubt(text, is_grave=many or share > SERIES_SHARE) for text, share in cells]
    return sorted(found, key=lambda doubt: not doubt.is_grave)


def _elsewhere(
    group: str, key: Any, grid: Grid, gpu: GPU | None, others: Mapping[str, OperatorTables]
) -> Iterator[tuple[str, tuple[Floats, Floats]]]:
    """Yield least and most times of each other GPU by its name, NaN where it has no time of that shape."""
    for name, tables in others.items():
        there: Mapping[Any, Grid] = getattr(tables, group)
        if gpu is None or key not in there:
            continue
        ratios = [GPUS[name].link_bandwidth / gpu.link_bandwidth, 1.0]
        if not group.startswith("all_"):
            ratios = [
                GPUS[name].peak_flops / gpu.peak_flops,
                GPUS[name].memory_bandwidth / gpu.memory_bandwidth,
                1.0,  # launches
            ]
        ms = _at_same_places(grid, there[key])
        yield name, (ms * min(ratios), ms * max(ratios))


def _at_same_places(grid: Grid, other: Grid) -> Floats:
    """Return the times of another grid at the coordinates of a grid, NaN where it has none."""
    if len(grid.axes) != len(other.axes):
        return np.full(grid.ms.shape, np.nan)
    ms = np.full(grid.ms.shape, np.nan)
    found = [
        np.intersect1d(a, b, return_indices=True)[1:] for a, b in zip(grid.axes, other.axes, strict=True)
    ]
    ms[np.ix_(*(own for own, _ in found))] = other.ms[np.ix_(*(there for _, there in found))]
    return ms


def _series(group: str, key: Any, grid: Grid, compared: Mapping[str, tuple[Floats, Floats]]) -> str:
    """Return a line if a whole series is far from that of every other GPU, else ""."""
    factors = {}
    for name, (least, most) in compared.items():
        known = np.isfinite(most)
        if known.any():
            slow, fast = (float(np.median(grid.ms[known] / ms[known])) for ms in (most, least))
            factors[name] = slow if slow > SERIES else fast if fast < 1 / SERIES else 1.0
    if not factors or min(factors.values()) <= 1.0 <= max(factors.values()):
        return ""
    name = min(factors, key=lambda name: abs(np.log(factors[name])))
    return (
        f"{_title(group, key)}: its {grid.ms.size:,} times are {factors[name]:.2g} x those of {name}, scaled by data "
        f"sheets (median; plausible: {1 / SERIES:.2g} to {SERIES:g})"
    )


def _cells(
    group: str, key: Any, grids: Mapping[Any, Grid], compared: Mapping[str, tuple[Floats, Floats]]
) -> tuple[str, int] | None:
    """Return a line and the number of times that contradict a neighbour and every other GPU; None if none do."""
    grid = grids[key]
    worst, against = np.ones(grid.ms.shape), np.full(grid.ms.shape, "", object)
    for text, factor in _neighbours(group, key, grids):
        more = np.abs(np.log(factor)) > np.abs(np.log(worst))
        worst, against = np.where(more, factor, worst), np.where(more, text, against)
    slow, fast = worst > CELL, worst < 1 / CELL
    for least, most in compared.values():
        known = np.isfinite(most)
        with np.errstate(invalid="ignore"):
            slow &= ~known | (grid.ms > CELL * most)
            fast &= ~known | (grid.ms < least / CELL)
    doubtful = slow | fast
    if not doubtful.any():
        return None
    place = max(map(tuple, np.argwhere(doubtful)), key=lambda place: abs(np.log(worst[place])))
    nearest = {
        name: float(grid.ms[place] / (most if slow[place] else least)[place])
        for name, (least, most) in compared.items()
        if np.isfinite(most[place])
    }
    names = _AXES.get(group, ("tokens", "context"))
    where = ", ".join(f"{name} {axis[i]:g}" for name, axis, i in zip(names, grid.axes, place, strict=False))
    name = min(nearest, key=lambda name: abs(np.log(nearest[name])), default="")
    elsewhere = f" and {nearest[name]:.2g} x that of {name}" if name else ""
    count = int(doubtful.sum())
    return (
        f"{_title(group, key)}: {count:,} of {grid.ms.size:,} times doubtful; at {where} {grid.ms[place]:.3g} ms, "
        f"{worst[place]:.2g} x what {against[place]} allows{elsewhere} (plausible: {1 / CELL:.2g} to {CELL:g})"
    ), count


def _neighbours(group: str, key: Any, grids: Mapping[Any, Grid]) -> Iterator[tuple[str, Floats]]:
    """Yield names of neighbours, and how far the times of a grid are above (> 1) or below what these allow."""
    grid = grids[key]
    names = _AXES.get(group, ("tokens", "context"))
    for axis, (x, name) in enumerate(zip(grid.axes, names, strict=False)):
        power = 2 if "prefill" in group else 1
        for step in (1, -1):
            there = np.full(grid.ms.shape, np.nan)
            own, other = (slice(None, -1), slice(1, None))[::step]
            index = (slice(None),) * axis
            there[(*index, own)] = grid.ms[(*index, other)]
            shape = [-1 if i == axis else 1 for i in range(grid.ms.ndim)]
            growth = np.ones(len(x))
            growth[own] = np.maximum(x[other], 1) / np.maximum(x[own], 1)
            yield f"the next {name}", _beyond(grid.ms, there, growth.reshape(shape) ** power)
    if group in _ATTENTION:
        for other in grids:
            growth = other[_HEADS] / key[_HEADS]
            same = all(other[i] == key[i] for i in range(len(key)) if i != _HEADS)
            if same and growth != 1 and 0.5 <= growth <= 2:
                there = _at_same_places(grid, grids[other])
                yield f"{other[_HEADS]} query heads", _beyond(grid.ms, there, np.array(growth))


def _beyond(ms: Floats, there: Floats, growth: Floats) -> Floats:
    """Return by which factor times are above or below the range that neighbours allow, 1 inside.

    Args:
        ms: times.
        there: times of neighbours, NaN for none.
        growth: work of a neighbour, of that here; above 1 its time is 1 to ``growth`` times as long, below 1 likewise.
    """
    low, high = there / np.maximum(growth, 1), there / np.minimum(growth, 1)
    with np.errstate(invalid="ignore"):
        return np.where(ms > high, ms / high, np.where(ms < low, ms / low, 1.0))


def _title(group: str, key: Any) -> str:
    """Return a series in words."""
    parts = key if isinstance(key, tuple) else (key,)
    if group in _ATTENTION:
        dtype, dim, heads, kv = parts
        return f"{group} attention, {dtype} cache, head_dim {dim}, {heads} query heads, {kv} KV heads"
    return f"{group.replace('_', ' ')} {', '.join(map(str, parts))}"
