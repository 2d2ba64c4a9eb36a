"""Operator tables of one GPU: milliseconds of kernels by shape and type.

Matrix products are over (n, k, tokens), attention by pairs of (query heads, KV heads) per GPU, all-reduces by number of
GPUs, fused experts by shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvgym.batch_time.hardware.interpolation import Floats
from kvgym.batch_time.hardware.shapes import BYTES, GPU

MEASURED_TYPES: Mapping[str | None, tuple[str, ...]] = {
    None: ("bf16",),
    "bf16": ("bf16",),
    "fp16": ("bf16",),
    "fp8": ("fp8", "fp8_block"),
    "fp8_block": ("fp8_block", "fp8"),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("mxfp4",),
}
"""Types of a table that serve a type of weights or cache, the best first; other types have no table.

Weights of 8 bits take as many bytes and operations with one scale as with a scale per block.
"""

LEAST_SHARE = 0.3
"""Least share of a measured product that remains when the quantisation of its input is taken out.

Both were measured apart, with noise.
"""

GROUPS = (
    "matmul", "products", "quantise", "decode", "prefill", "latent_decode", "latent_prefill", "all_reduce",
    "all_gather", "experts", "elementwise",
)  # fmt: skip
"""Groups of operators, fields of :class:`OperatorTables`."""


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
        quantise: the dynamic quantisation of a product's input that ``matmul`` contains, by type; axes k, tokens.
        decode: decode attention by (type of the cache, head size, query heads, KV heads); axes decodes, context.
        prefill: attention of one chunk without cached tokens; keys as for ``decode``, axis tokens.
        latent_decode: latent attention of decodes, by (library, type of its products, type of the cache, heads per
            GPU), with the products around it in the widths of DeepSeek-V3, or alone if their type is ``""``; axes
            decodes, context.
        latent_prefill: the same of one chunk without cached tokens; axis tokens.
        all_reduce: by number of GPUs; axis bytes.
        all_gather: by number of GPUs; axis bytes of the result. A reduce-scatter takes as long.
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
    quantise: Mapping[str, Grid] = field(default_factory=dict)
    decode: Mapping[tuple[Any, ...], Grid] = field(default_factory=dict)
    prefill: Mapping[tuple[Any, ...], Grid] = field(default_factory=dict)
    latent_decode: Mapping[tuple[Any, ...], Grid] = field(default_factory=dict)
    latent_prefill: Mapping[tuple[Any, ...], Grid] = field(default_factory=dict)
    all_reduce: Mapping[int, Grid] = field(default_factory=dict)
    all_gather: Mapping[int, Grid] = field(default_factory=dict)
    experts: Mapping[tuple[Any, ...], Grid] = field(default_factory=dict)
    elementwise: Mapping[int, Grid] = field(default_factory=dict)

    def matmul_type(self, dtype: str | None) -> str:
        """Return the type of the measured products that serve a type of weights.

        Raises:
            MissingOperatorError: no product of such a type was measured.
        """
        measured = {*self.matmul, *(key[0] for key in self.products)}
        for name in MEASURED_TYPES.get(dtype, ()):
            if name in measured:
                return name
        raise MissingOperatorError(f"matrix products with {dtype} weights")

    def matmul_ms(
        self, dtype: str | None, n: float, k: float, *, fused_quantisation: bool = False
    ) -> tuple[Floats, Floats]:
        """Return tokens and milliseconds of the product of (tokens, k) and (k, n).

        Between measured n and k times are interpolated; beyond them they grow with n and k.

        Args:
            dtype: type of the weights.
            n: columns of the weights.
            k: rows of the weights.
            fused_quantisation: take out the quantisation of the input, which the engine fuses into the operator before.

        Raises:
            MissingOperatorError: no product of this type was measured.
        """
        name = self.matmul_type(dtype)
        if (name, n, k) in self.products:
            product = self.products[name, n, k]
            return product.axes[0], product.ms
        if name not in self.matmul:
            return self._scaled(name, n, k)
        table = self.matmul[name]
        ns, ks, tokens = table.axes
        (i0, i1, u, grow_n), (j0, j1, v, grow_k) = _between(ns, n), _between(ks, k)
        low = table.ms[i0, j0] * (1 - v) + table.ms[i0, j1] * v
        high = table.ms[i1, j0] * (1 - v) + table.ms[i1, j1] * v
        ms = (low * (1 - u) + high * u) * grow_n * grow_k
        if fused_quantisation and name in self.quantise:
            ms = np.maximum(ms - self._quantisation(name, k, tokens), LEAST_SHARE * ms)
        return tokens, ms

    def _quantisation(self, dtype: str, k: float, tokens: Floats) -> Floats:
        """Return milliseconds of the quantisation of (tokens, k)."""
        grid = self.quantise[dtype]
        low, high, share, grow = _between(grid.axes[0], k)
        ms = (grid.ms[low] * (1 - share) + grid.ms[high] * share) * grow
        return Grid(grid.axes[1:], ms).at(tokens)

    def _scaled(self, dtype: str, n: float, k: float) -> tuple[Floats, Floats]:
        """Return the nearest single product, scaled by its number of weights."""
        single = [key for key in self.products if key[0] == dtype]
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

    def experts_of(self, dtype: str | None, balance: str, shape: tuple[int, ...]) -> tuple[str, Grid]:
        """Return the measured type of weights, and milliseconds of fused experts by tokens.

        Args:
            dtype: type of the weights.
            balance: distribution of the tokens over experts, as measured.
            shape: hidden width, width of an expert, experts per token, experts, tensor and expert parallel.

        Raises:
            MissingOperatorError: this shape, type or balance was not measured.
        """
        for name in MEASURED_TYPES.get(dtype, ()):
            key = (name, balance, *shape)
            if key in self.experts:
                return name, self.experts[key]
        hidden, width, chosen, count, parts, placed = shape
        raise MissingOperatorError(
            f"{chosen} of {count} experts of {width} x {hidden}, {dtype or '16-bit'}, {balance}, split over "
            f"{parts if placed == 1 else placed} GPUs"
        )

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
        name = MEASURED_TYPES.get(dtype, ("",))[0]
        share = 1
        while heads % share == 0 and kv_heads % share == 0:
            found = _of_heads(tables, (name, head_dim), heads // share, kv_heads // share)
            if found is not None:
                return found if share == 1 else _of_more_requests(found, share)
            share *= 2
        raise MissingOperatorError(
            f"attention of {heads} heads, {kv_heads} KV heads of {head_dim}, {dtype or '16-bit'} cache"
        )

    def latent_attention(
        self, kind: str, library: str, dtype: str | None, kv_dtype: str | None, heads: int
    ) -> tuple[str, Grid]:
        """Return a table of latent attention and the type of the products in it, ``""`` = none.

        The attention is the same with any type of products, so another type serves where this one was not measured.

        Args:
            kind: ``"decode"`` or ``"prefill"``.
            library: library of the kernels; another one's serve where it was not measured.
            dtype: type of the weights.
            kv_dtype: type of the cache.
            heads: query heads per GPU.

        Raises:
            MissingOperatorError: this number of heads or type of cache was not measured.
        """
        tables: Mapping[tuple[Any, ...], Grid] = getattr(self, f"latent_{kind}")
        libraries = sorted({key[0] for key in tables}, key=lambda name: (name != library, name))
        cache = MEASURED_TYPES.get(kv_dtype, ("",))[0]
        for name in dict.fromkeys((*MEASURED_TYPES.get(dtype, ()), "fp8_block", "bf16", "")):
            for found in libraries:
                if (found, name, cache, heads) in tables:
                    return name, tables[found, name, cache, heads]
        raise MissingOperatorError(f"latent attention of {heads} heads, {kv_dtype or '16-bit'} cache")

    def collective_ms(self, kind: str, degree: int, size: Floats) -> Floats:
        """Return milliseconds of a collective of several GPUs.

        Over more GPUs than were measured, a ring sends ``2 (p - 1) / p`` times the data instead of that share of the
        largest measured number.

        Args:
            kind: ``"all_reduce"`` or ``"all_gather"``.
            degree: number of GPUs.
            size: bytes of the result, any shape.

        Raises:
            MissingOperatorError: neither this number of GPUs was measured nor a smaller one.
        """
        tables: Mapping[int, Grid] = getattr(self, kind)
        if degree in tables:
            return tables[degree].at(size)
        largest = max(tables, default=0)
        if not 2 <= largest < degree:
            raise MissingOperatorError(f"{kind.replace('_', '-')} over {degree} GPUs")
        share = (1 - 1 / degree) / (1 - 1 / largest)
        return tables[largest].at(size) * share


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
