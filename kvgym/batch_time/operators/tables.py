"""Operator tables of one GPU: milliseconds of kernels by shape and type, as one packed file.

A file is an ``.npz`` archive. Times are stored as 16-bit codes of their logarithm (resolution 0.02 %), so that the
tables of a GPU take up to 200 kB. Matrix products are stored over (n, k, tokens), attention by pairs of (query heads,
KV heads) per GPU, all-reduces by number of GPUs, fused experts by shape.
"""

from __future__ import annotations

import functools
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.interpolation import Floats
from kvgym.batch_time.hardware.shapes import BYTES, GPU
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.utils.reading import read_arrays

MATMUL_TYPES: Mapping[str | None, str] = {None: "bf16", "bf16": "bf16", "fp16": "bf16", "fp8": "fp8"}
"""Type of a table by the type of weights or cache; other types have no table."""

_LOW, _STEP = -9.0, 18.0 / 65534  # natural logarithm of milliseconds: 1.2e-4 ms … 8,100 ms


class MissingOperatorError(LookupError):
    """A GPU's tables lack an operator; the message says which one."""


@dataclass(frozen=True)
class Grid:
    """Times of one operator over one or more axes.

    Attributes:
        axes: ascending coordinates of each axis, float64.
        ms: milliseconds, one dimension per axis.
    """

    axes: tuple[Floats, ...]
    ms: Floats

    def at(self, x: Floats) -> Floats:
        """Return the milliseconds of a grid with one axis, which continues with its last slope.

        Args:
            x: coordinates, any shape.
        """
        nodes, ms = self.axes[0], self.ms
        slope = max(float((ms[-1] - ms[-2]) / (nodes[-1] - nodes[-2])), 0.0)
        result: Floats = np.interp(x, nodes, ms) + slope * np.maximum(x - nodes[-1], 0.0)
        return result


@dataclass(frozen=True)
class OperatorTables:
    """Measured kernels of one GPU.

    Attributes:
        name: the GPU's preset.
        measured: what was measured, in a few words: ``"vLLM 0.19.0"``.
        source: where the measurements come from, and their licence.
        date: day of the fit, ISO 8601.
        fit_error: errors on held-out rows by operator group: ``median``, ``p95``, ``rows``.
        matmul: matrix products by type; axes n, k, tokens.
        products: single matrix products by (type, n, k); axis tokens.
        decode: decode attention by (type of the cache, head size, query heads, KV heads); axes decodes, context.
        prefill: attention of one chunk without cached tokens; keys as for ``decode``, axis tokens.
        all_reduce: by number of GPUs; axis bytes.
        experts: fused experts by (type, balance, hidden, width, experts per token, experts, tensor parallel, expert
            parallel); axis tokens.
        elementwise: milliseconds per layer of norms, rotary embedding and activation by hidden width, where measured;
            axis tokens.
    """

    name: str
    measured: str
    source: str
    date: str
    fit_error: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    matmul: Mapping[str, Grid] = field(default_factory=dict)
    products: Mapping[tuple[Any, ...], Grid] = field(default_factory=dict)
    decode: Mapping[tuple[Any, ...], Grid] = field(default_factory=dict)
    prefill: Mapping[tuple[Any, ...], Grid] = field(default_factory=dict)
    all_reduce: Mapping[int, Grid] = field(default_factory=dict)
    experts: Mapping[tuple[Any, ...], Grid] = field(default_factory=dict)
    elementwise: Mapping[int, Grid] = field(default_factory=dict)

    def matmul_ms(self, dtype: str | None, n: float, k: float) -> tuple[Floats, Floats]:
        """Return tokens and milliseconds of the product of (tokens, k) and (k, n).

        Between measured n and k times are interpolated; beyond them they grow with n and k.

        Args:
            dtype: type of the weights.
            n: columns of the weights.
            k: rows of the weights.

        Raises:
            MissingOperatorError: no product of this type was measured.
        """
        name = MATMUL_TYPES.get(dtype, dtype)
        if (name, n, k) in self.products:
            product = self.products[name, n, k]
            return product.axes[0], product.ms
        if name is None or name not in self.matmul:
            return self._scaled(name, n, k)
        table = self.matmul[name]
        ns, ks, tokens = table.axes
        (i0, i1, u, grow_n), (j0, j1, v, grow_k) = _between(ns, n), _between(ks, k)
        low = table.ms[i0, j0] * (1 - v) + table.ms[i0, j1] * v
        high = table.ms[i1, j0] * (1 - v) + table.ms[i1, j1] * v
        return tokens, (low * (1 - u) + high * u) * grow_n * grow_k

    def _scaled(self, dtype: str | None, n: float, k: float) -> tuple[Floats, Floats]:
        """Return the nearest single product, scaled by its number of weights."""
        single = [key for key in self.products if key[0] == dtype]
        if not single:
            raise MissingOperatorError(f"matrix products with {dtype} weights")
        key = min(single, key=lambda key: abs(math.log(key[1] / n)) + abs(math.log(key[2] / k)))
        grid = self.products[key]
        return grid.axes[0], grid.ms * (n * k / (key[1] * key[2]))

    def attained(self, gpu: GPU) -> dict[str, tuple[float, float]]:
        """Return the shares of a GPU's peak FLOP/s and of its memory bandwidth that matrix products attain, by type.

        Medians over the measured products with 4,096 to 32,768 rows and columns: of FLOP/s at 1,024 to 4,096 tokens,
        and of bytes/s of the weights at up to 16 tokens.

        Args:
            gpu: its data sheet.
        """
        single = [(*key, grid.axes[0], grid.ms) for key, grid in self.products.items()]
        single += [
            (dtype, n, k, grid.axes[2], grid.ms[i, j])
            for dtype, grid in self.matmul.items()
            for i, n in enumerate(grid.axes[0])
            for j, k in enumerate(grid.axes[1])
        ]
        found: dict[str, tuple[list[Floats], list[Floats]]] = {}
        for dtype, n, k, tokens, ms in single:
            if all(4096 <= width <= 32768 for width in (n, k)):
                compute, memory = found.setdefault(dtype, ([], []))
                many, few = (tokens >= 1024) & (tokens <= 4096), tokens <= 16
                compute.append(2e3 * n * k * tokens[many] / ms[many] / gpu.flops(dtype))
                memory.append(1e3 * n * k * BYTES[dtype] / ms[few] / gpu.memory_bandwidth)
        return {
            dtype: (float(np.median(np.concatenate(compute))), float(np.median(np.concatenate(memory))))
            for dtype, (compute, memory) in found.items()
        }

    def tokens(self) -> Floats:
        """Return the numbers of tokens of the measured matrix products, ascending."""
        axes = [grid.axes[-1] for grid in (*self.matmul.values(), *self.products.values())]
        result: Floats = np.unique(np.concatenate(axes))
        return result

    def balances(self) -> list[str]:
        """Return the measured distributions of tokens over experts, sorted."""
        return sorted({key[1] for key in self.experts})

    def experts_of(self, dtype: str | None, balance: str, shape: tuple[int, ...]) -> Grid:
        """Return milliseconds of fused experts by tokens.

        Args:
            dtype: type of the weights.
            balance: distribution of the tokens over experts, as measured.
            shape: hidden width, width of an expert, experts per token, experts, tensor and expert parallel.

        Raises:
            MissingOperatorError: this shape, type or balance was not measured.
        """
        key = (MATMUL_TYPES.get(dtype, dtype), balance, *shape)
        if key not in self.experts:
            hidden, width, chosen, count, parts, placed = shape
            raise MissingOperatorError(
                f"{chosen} of {count} experts of {width} x {hidden}, {dtype or '16-bit'}, {balance}, split over "
                f"{parts if placed == 1 else placed} GPUs"
            )
        return self.experts[key]

    def attention(self, kind: str, dtype: str | None, head_dim: int, heads: int, kv_heads: int) -> Grid:
        """Return a table of attention for the heads of one GPU.

        A pair that was not measured is found by two equalities of the work: ``c`` requests with a ``c``-th of the
        query and KV heads are one request with all of them; and times between measured numbers of query heads of one
        number of KV heads are interpolated.

        Args:
            kind: ``"decode"`` or ``"prefill"``.
            dtype: type of the cache.
            head_dim: width of a head.
            heads: query heads per GPU.
            kv_heads: KV heads per GPU.

        Raises:
            MissingOperatorError: the tables have neither.
        """
        tables: Mapping[tuple[Any, ...], Grid] = getattr(self, kind)
        name = MATMUL_TYPES.get(dtype, dtype)
        share = 1
        while heads % share == 0 and kv_heads % share == 0:
            found = _of_heads(tables, (name, head_dim), heads // share, kv_heads // share)
            if found is not None:
                return found if share == 1 else _of_more_requests(found, share)
            share *= 2
        raise MissingOperatorError(
            f"attention of {heads} heads, {kv_heads} KV heads of {head_dim}, {dtype or '16-bit'} cache"
        )

    def all_reduce_ms(self, degree: int, size: Floats) -> Floats:
        """Return milliseconds of an all-reduce.

        Args:
            degree: number of GPUs.
            size: bytes, any shape.

        Raises:
            MissingOperatorError: this number of GPUs was not measured.
        """
        if degree not in self.all_reduce:
            raise MissingOperatorError(f"all-reduce over {degree} GPUs")
        return self.all_reduce[degree].at(size)


def _between(axis: Floats, x: float) -> tuple[int, int, float, float]:
    """Return the nodes around x, the share of the upper one, and the factor beyond the last node."""
    grow = max(x / axis[-1], 1.0)
    x = min(max(x, axis[0]), axis[-1])
    low = min(int(np.searchsorted(axis, x, side="right")) - 1, len(axis) - 2)
    return low, low + 1, float((x - axis[low]) / (axis[low + 1] - axis[low])), float(grow)


def _of_heads(
    tables: Mapping[tuple[Any, ...], Grid], kind: tuple[Any, ...], heads: int, kv_heads: int
) -> Grid | None:
    measured = sorted(key[2] for key in tables if key[:2] == kind and key[3] == kv_heads)
    if heads in measured:
        return tables[(*kind, heads, kv_heads)]
    below = [h for h in measured if kv_heads < h < heads]
    above = [h for h in measured if h > heads]
    if not below or not above:
        return None
    low, high = _on_common_axes(tables[(*kind, below[-1], kv_heads)], tables[(*kind, above[0], kv_heads)])
    share = (heads - below[-1]) / (above[0] - below[-1])
    return Grid(low.axes, low.ms * (1 - share) + high.ms * share)


def _on_common_axes(one: Grid, other: Grid) -> tuple[Grid, Grid]:
    """Return two grids at the coordinates that both have; fewer were measured with many heads, which take memory."""
    axes = tuple(np.intersect1d(a, b) for a, b in zip(one.axes, other.axes, strict=True))

    def kept(grid: Grid) -> Grid:
        places = (np.searchsorted(axis, common) for axis, common in zip(grid.axes, axes, strict=True))
        return Grid(axes, grid.ms[np.ix_(*places)])

    return kept(one), kept(other)


def _of_more_requests(grid: Grid, share: int) -> Grid:
    """Return a table for ``share`` times the heads from one where each request counts as ``share`` of them.

    A chunk fills the GPU better with more heads, which one dimension cannot express; its time grows in proportion.
    """
    if len(grid.axes) == 1:
        return Grid(grid.axes, grid.ms * share)
    requests = grid.axes[0]
    kept = requests >= share
    return Grid((requests[kept] / share, *grid.axes[1:]), grid.ms[kept])


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


_GROUPS = ("matmul", "products", "decode", "prefill", "all_reduce", "experts", "elementwise")


def pack(tables: OperatorTables) -> bytes:
    """Return the content of a file; equal tables give equal bytes."""
    axes: list[Floats] = []
    keys: dict[str, list[tuple[Any, list[int]]]] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for group in _GROUPS:
        grids = sorted(getattr(tables, group).items(), key=lambda item: str(item[0]))
        keys[group] = []
        for key, grid in grids:
            numbers = []
            for axis in grid.axes:
                same = [i for i, known in enumerate(axes) if np.array_equal(known, axis)]
                numbers.append(same[0] if same else len(axes))
                axes += [] if same else [axis]
            keys[group].append((key, numbers))
        arrays[group] = np.concatenate([_codes(grid.ms) for _, grid in grids] or [np.zeros(0, np.uint16)])
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
            group: _Stored(header["keys"][group], axes, arrays[group]) for group in _GROUPS
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
