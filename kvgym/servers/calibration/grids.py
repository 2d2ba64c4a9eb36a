"""Choose the nodes of operator tables from the measured values, and drop redundant ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.interpolation import Floats

Candidates = tuple[float, ...]

_BATCHES: Candidates = (
    *range(1, 15), 16, 18, 20, 21, 22, 24, 28, *range(32, 65, 4), 72, 80, 88, 96, 104, 108, 112, 120, 128,
    144, 160, 176, 192, 208, 224, 256, 288, 320, 384, 448, 512,
)  # fmt: skip
CONTEXTS: Candidates = (
    32, 64, 96, *(x for tile in range(128, 1025, 128) for x in (tile - 1, tile)), 224, 288, 352, 416, 480, 544, 608,
    672, 1088, 1216, 1280, 1536, 1600, 1792, 1984, 2048, 2112, 2304, 2560, 2624, 2816, 3072, 3136, 3328, 3584, 3968,
    4032, 4096, 5120, 6144, 8192, 10240, 12288, 14336, 16128, 20480, 24576, 32768, 49152, 65536, 98304, 131072,
)  # fmt: skip
"""Contexts on either side of multiples of 128, where attention kernels need one more tile."""

CHUNKS: Candidates = (
    32, 64, 80, 96, 128, 160, 192, 224, 256, 288, 352, 384, 416, 448, 512, 544, 608, 640, 768, 800, 992,
    1024, 1152, 1280, 1536, 1792, 2048, 2304, 2560, 3072, 3584, 4096, 5120, 6144, 8192, 10240, 12288, 14336,
    16384, 24576, 32768, 65536,
)  # fmt: skip
"""Chunk lengths."""

CACHED: Candidates = (
    0, 32, 64, 128, 256, 384, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 3584, 4032, 4096, 5120, 6144,
    8192, 10240, 12288, 14336, 16256, 32768, 65536, 131072,
)  # fmt: skip
"""Tokens cached before a chunk."""

_NEAR, _GAP = (
    0.03,
    1.6,
)  # largest distance of a measured value from a candidate; largest ratio of neighbouring nodes


def batches(num_sms: int, heads: int, kv_heads: int) -> Candidates:
    """Return candidate numbers of decodes, including those on either side of each wave of blocks over the SMs.

    A kernel without a split along the context starts one block per decode and KV head, or per query head if it does
    not pack these. Below 0.8 blocks per SM it may split, which is another step.

    Args:
        num_sms: SMs of the GPU.
        heads: query heads per GPU.
        kv_heads: KV heads per GPU.
    """
    edges = [0.8 * num_sms / kv_heads]
    edges += [num_sms * wave / blocks for blocks in {heads, kv_heads} for wave in range(1, 9)]
    return tuple(sorted({*_BATCHES, *(int(e) for e in edges), *(int(e) + 1 for e in edges)} - {0}))


def grid(candidates: Candidates, measured: Floats) -> Floats:
    """Return the measured values to use as nodes.

    These are the values nearest to the candidates (within 3 %), the outermost ones, and others wherever neighbouring
    nodes would be more than a factor of 1.6 apart.

    Args:
        candidates: wanted values.
        measured: shape (k,).
    """
    values = np.unique(measured)
    wanted = np.array(candidates)
    nearest = values[np.abs(values[None, :] - wanted[:, None]).argmin(axis=1)]
    chosen = {float(v) for v in nearest[np.abs(nearest - wanted) <= _NEAR * wanted]}
    chosen |= {float(values[0]), float(values[-1])}
    last = float(values[0])
    for here, after in zip(values, np.append(values[1:], values[-1]), strict=True):
        ahead = min((c for c in chosen if c > last), default=last)
        if float(here) in chosen:
            last = float(here)
        elif ahead > _GAP * max(last, 1.0) and after > _GAP * max(last, 1.0):
            last = float(here)
            chosen.add(last)
    return np.array(sorted(chosen))


def resolution(values: Floats) -> float:
    """Return the step to which values were rounded: 0.001, as in most profiles, or 0.

    Args:
        values: milliseconds, any shape.
    """
    return 1e-3 if np.allclose(values, np.round(values, 3), rtol=0, atol=1e-9) else 0.0


def thin(
    x: Floats, columns: list[Floats], tolerance: float = 0.004, absolute: float = 5e-4
) -> NDArray[np.int64]:
    """Return the indices of nodes to keep so that linear interpolation stays close to the dropped ones.

    Args:
        x: abscissae, shape (n,).
        columns: ordinates, each of shape (n,); allowed errors are ``tolerance`` of the value plus ``absolute``.
        tolerance: relative.
        absolute: in the unit of the ordinates.
    """
    y = np.array(columns)
    near = tolerance * y + absolute
    kept = [0]
    while kept[-1] < len(x) - 1:
        first, last = kept[-1], kept[-1] + 1
        for end in range(first + 2, len(x)):
            share = (x[first + 1 : end] - x[first]) / (x[end] - x[first])
            line = y[:, [first]] + (y[:, [end]] - y[:, [first]]) * share
            if np.any(np.abs(line - y[:, first + 1 : end]) > near[:, first + 1 : end]):
                break
            last = end
        kept.append(last)
    return np.array(kept)
