"""Calibration: fits operator tables to profiles and writes hardware files.

It needs more than the core does (polars, SciPy) and is not imported by it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from kvgym.batch_time.fitting import (
    PooledPrefill,
    bilinear,
    fit_prefill,
    fit_surface,
    isotonic,
    pool_decodes,
)
from kvgym.batch_time.interpolation import Floats
from kvgym.batch_time.memory import kv_capacity
from kvgym.batch_time.profile_csv import Profiles, read_profiles
from kvgym.batch_time.recipes import Recipe
from kvgym.batch_time.roofline import RooflineBatchTime
from kvgym.batch_time.shapes import GPU, GPUS, MODELS, ModelShape

NUM_SMS = 108  # of an A100
HELD_OUT_SHARE = 0.2
SEED = 0

_BATCHES = (
    *range(1, 15), 16, 18, 20, 21, 22, 24, 28, *range(32, 65, 4), 72, 80, 88, 96, 104, 108, 112, 120, 128,
    144, 160, 176, 192, 208, 224, 256, 288, 320, 384, 448, 512,
)  # fmt: skip
_CONTEXTS = (
    32, 64, 96, 128, 224, 256, 288, 352, 384, 416, 480, 512, 544, 608, 640, 672, 768, 896, 1024, 1088, 1216,
    1280, 1536, 1600, 1792, 1984, 2048, 2112, 2304, 2560, 2624, 2816, 3072, 3136, 3328, 3584, 3968, 4032,
    4096, 5120, 6144, 8192, 10240, 12288, 14336, 16128,
)  # fmt: skip
_CHUNKS = (
    32, 64, 80, 96, 128, 160, 192, 224, 256, 288, 352, 384, 416, 448, 512, 544, 608, 640, 768, 800, 992,
    1024, 1152, 1280, 1536, 1792, 2048, 2304, 2560, 3072, 3584, 4096, 5120, 6144, 8192, 10240, 12288, 14336,
    16384,
)  # fmt: skip
_CACHED = (
    0, 32, 64, 128, 256, 384, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 3584, 4032, 4096, 5120, 6144,
    8192, 10240, 12288, 14336, 16256,
)  # fmt: skip
# Grid candidates. Contexts stand on either side of multiples of 128, where attention kernels take one more
# tile; batches on either side of the waves of SMs are added for each model.


def _grid(candidates: tuple[float, ...], measured: Floats) -> Floats:
    """Return the measured values nearest to the candidates (within 3 %), and the outermost ones."""
    values = np.unique(measured)
    chosen = {float(values[0]), float(values[-1])}
    for candidate in candidates:
        nearest = float(values[np.argmin(np.abs(values - candidate))])
        if abs(nearest - candidate) <= 0.03 * candidate:
            chosen.add(nearest)
    return np.array(sorted(chosen))


def _batch_candidates(heads: int) -> tuple[float, ...]:
    """Return batch nodes, with those on either side of each wave of blocks over the SMs.

    A kernel without a split along the context starts one block per decode and KV head; below 0.8 blocks per
    SM it splits, another step.
    """
    edges = [0.8 * NUM_SMS / heads, *(NUM_SMS * wave / heads for wave in range(1, 9))]
    return tuple(sorted({*_BATCHES, *(int(e) for e in edges), *(int(e) + 1 for e in edges)} - {0}))


@dataclass(frozen=True)
class _Surface:
    rows: Floats
    columns: Floats
    ms: Floats
    changed: float  # median relative change by the projections to monotone tables
    changed_most: float

    def predict(self, x: Floats, y: Floats) -> Floats:
        return bilinear(self.rows, self.columns, self.ms, x, y)


def fit_decode(points: tuple[Floats, Floats, Floats], heads: int) -> tuple[_Surface, _Surface]:
    """Fit decode attention by (decodes, context), and pooled by (decodes, KV tokens).

    Args:
        points: decodes, context, milliseconds, each of shape (d,).
        heads: KV heads per GPU.
    """
    rows, columns = _grid(_batch_candidates(heads), points[0]), _grid(_CONTEXTS, points[1])
    table, change = fit_surface(rows, columns, points, 2)
    spaced = np.geomspace(columns[0], rows[-1] * columns[-1], 36)
    totals = np.concatenate([[0.0], np.unique(np.round(spaced))])
    few: Floats = np.unique(np.round(np.linspace(min(8.0, rows[-1]), rows[-1], 20)))
    few = np.append(rows[(rows < few[0]) & np.isin(rows, (1, 2, 4, 6))], few)
    x, y = (axis.ravel() for axis in np.meshgrid(few, columns, indexing="ij"))
    sampled = bilinear(rows, columns, table, x, y).reshape(len(few), len(columns))
    pooled, effect = pool_decodes(few, columns, sampled, totals)
    return _Surface(rows, columns, table, *change), _Surface(few, totals, pooled, *effect)


def fit_prefills(points: tuple[Floats, Floats, Floats]) -> tuple[_Surface, PooledPrefill]:
    """Fit prefill attention by (chunk, cached), and as a sum over requests.

    Args:
        points: chunk, cached tokens, milliseconds, each of shape (p,).
    """
    rows, columns = _grid(_CHUNKS, points[0]), _grid(_CACHED, points[1])
    table, change = fit_surface(rows, columns, points, 4)
    return _Surface(rows, columns, table, *change), fit_prefill(np.concatenate([[0.0], rows]), points)


def fit_all_reduce(size: Floats, low: Floats, median: Floats) -> tuple[Floats, Floats, Floats]:
    """Return nodes (bytes), the monotone lower envelope, and the monotone medians.

    Below some megabytes the measured kernel waits for the other GPU to start, at random and up to 0.06 ms:
    the envelope is the transfer alone.

    Args:
        size: bytes, shape (a,).
        low: smallest times, shape (a,).
        median: median times, shape (a,).
    """
    envelope = np.minimum.accumulate(low[::-1])[::-1]
    smooth = isotonic(median)
    wanted = np.geomspace(size[0], size[-1], min(48, len(size)))
    nodes = np.unique(size[np.searchsorted(size, wanted).clip(0, len(size) - 1)])
    return nodes, np.interp(nodes, size, envelope), np.interp(nodes, size, smooth)


def _held_out(count: int, rng: np.random.Generator) -> np.ndarray:
    chosen = rng.random(count) < HELD_OUT_SHARE
    chosen[[0, -1]] = False
    return chosen


def _error(predicted: Floats, measured: Floats) -> dict[str, float]:
    if not len(measured):
        return {"median": 0.0, "p95": 0.0, "rows": 0}
    error = np.abs(predicted / measured - 1)
    return {
        "median": round(float(np.median(error)), 4),
        "p95": round(float(np.percentile(error, 95)), 4),
        "rows": len(measured),
    }


def held_out_errors(profiles: Profiles, heads: int) -> dict[str, dict[str, float]]:
    """Fit on a random 80 % of the measured points and test on the rest, per operator group.

    Args:
        profiles: all measurements.
        heads: KV heads per GPU.

    Returns:
        By group: median and 95th percentile of |predicted / measured - 1|, and number of held-out rows.
    """
    rng = np.random.default_rng(SEED)
    errors = {}
    out = _held_out(len(profiles.tokens), rng)
    total = profiles.block + 2 * profiles.add
    fitted = isotonic(total[~out])
    errors["linear"] = _error(np.interp(profiles.tokens[out], profiles.tokens[~out], fitted), total[out])
    n, k, t = profiles.decode
    out = _held_out(len(n), rng)
    table, pooled = fit_decode((n[~out], k[~out], t[~out]), heads)
    errors["attention_decode"] = _error(pooled.predict(n[out], n[out] * k[out]), t[out])
    errors["attention_decode_homogeneous"] = _error(table.predict(n[out], k[out]), t[out])
    c, k, t = profiles.prefill
    out = _held_out(len(c), rng)
    table, summed = fit_prefills((c[~out], k[~out], t[~out]))
    errors["attention_prefill"] = _error(summed.predict(c[out], k[out]), t[out])
    errors["attention_prefill_table"] = _error(table.predict(c[out], k[out]), t[out])
    if profiles.all_reduce is not None:
        size, low, median = profiles.all_reduce
        out = _held_out(len(size), rng)
        nodes, envelope, smooth = fit_all_reduce(size[~out], low[~out], median[~out])
        big = out & (size >= 7e6)
        errors["all_reduce"] = _error(np.interp(size[big], nodes, envelope), median[big])
        errors["all_reduce_small"] = _error(np.interp(size[out & ~big], nodes, envelope), median[out & ~big])
        errors["all_reduce_small_median"] = _error(
            np.interp(size[out & ~big], nodes, smooth), median[out & ~big]
        )
    return errors


def _significant(value: float, digits: int = 5) -> float:
    return float(f"{value:.{digits}g}")


def _resolved(value: float) -> float:
    """Round milliseconds to what their resolution of 0.001 justifies, with a digit more where small."""
    return round(value, 4 if value < 0.05 else 3)


def thin(x: Floats, columns: list[Floats], tolerance: float = 0.004) -> np.ndarray:
    """Return the indices of nodes to keep so that straight lines between them stay near all the others.

    Args:
        x: abscissae, shape (n,).
        columns: ordinates of shape (n,), each kept within ``tolerance`` of its value or 0.0005 ms.
        tolerance: relative.
    """
    kept = [0]
    while kept[-1] < len(x) - 1:
        first, last = kept[-1], kept[-1] + 1
        for end in range(first + 2, len(x)):
            inner = slice(first + 1, end)
            ends = [first, end]
            near = all(
                np.all(
                    np.abs(np.interp(x[inner], x[ends], c[ends]) - c[inner]) <= tolerance * c[inner] + 5e-4
                )
                for c in columns
            )
            if not near:
                break
            last = end
        kept.append(last)
    return np.array(kept)


def _list(values: Floats, rounding: Callable[[float], float] = _resolved) -> list[float]:
    return [int(v) if v == int(v) else v for v in (rounding(float(x)) for x in values)]


def _surface_dict(table: _Surface) -> dict[str, Any]:
    return {
        "rows": _list(table.rows),
        "columns": _list(table.columns),
        "ms": [_list(row) for row in table.ms],
    }


def calibrate(folder: Path, recipe: Recipe, date: str | None = None) -> dict[str, Any]:
    """Return the content of a hardware file, fitted on all rows, with errors of a fit on 80 % of them.

    Args:
        folder: holds the CSV files.
        recipe: what to calibrate.
        date: ISO 8601 day; None = today.

    Raises:
        ConfigError: a file or column is missing.
    """
    gpu, model = GPUS[recipe.gpu], MODELS[recipe.model]
    heads = max(1, model.num_kv_heads // recipe.tensor_parallel)
    profiles = read_profiles(folder, recipe)
    decode, pooled = fit_decode(profiles.decode, heads)
    prefill, summed = fit_prefills(profiles.prefill)
    roofline = RooflineBatchTime(gpu, model, tensor_parallel=recipe.tensor_parallel)
    head_weights, head_row = roofline.lm_head()
    tokens = profiles.tokens
    save_count, save = profiles.save
    slope = (save[-1] - save[len(save) // 2]) / max(save_count[-1] - save_count[len(save) // 2], 1.0)
    save_ms = np.interp(tokens, save_count, save) + slope * np.maximum(tokens - save_count[-1], 0.0)
    block, add, embedding = (isotonic(v) for v in (profiles.block, profiles.add, profiles.embedding))
    keep = thin(tokens, [block, add, embedding, save_ms])
    ranges = {
        "tokens": tokens,
        "decodes": profiles.decode[0],
        "decode_context_each": profiles.decode[1],
        "prefill_chunk": profiles.prefill[0],
        "prefill_cached_each": profiles.prefill[1],
    }
    tables: dict[str, Any] = {
        "num_layers": model.num_layers,
        "bytes_per_token": model.hidden * model.dtype_bytes,
        "linear": {
            "tokens": _list(tokens[keep]),
            "block_ms": _list(block[keep]),
            "add_ms": _list(add[keep]),
            "save_ms": _list(save_ms[keep]),
            "embedding_ms": _list(embedding[keep]),
        },
        "decode": _surface_dict(decode),
        "decode_pooled": _surface_dict(pooled),
        "prefill": _surface_dict(prefill),
        "prefill_pooled": {
            "launch_ms": round(summed.launch, 4),
            "chunk": _list(summed.chunk),
            "own_ns": _list(summed.own * 1e6, _significant),
            "cached_ns": _list(summed.cached * 1e6, _significant),
        },
        "lm_head": {
            "weights_ms": round(head_weights * 1e3, 4),
            "row_ms": _significant(head_row * 1e3),
        },
    }
    if profiles.all_reduce is not None:
        nodes, envelope, median = fit_all_reduce(*profiles.all_reduce)
        tables["all_reduce"] = {
            "size": _list(nodes),
            "kernel_ms": _list(envelope),
            "median_ms": _list(median),
        }
        ranges["all_reduce_bytes"] = profiles.all_reduce[0]
    capacity, origin = _capacity(recipe, gpu, model)
    return {
        "name": recipe.name,
        "description": recipe.description,
        "source": recipe.source,
        "date": date or datetime.date.today().isoformat(),
        "held_out": f"random {HELD_OUT_SHARE:.0%} of the measured points, seed {SEED}; tables fitted on all",
        "gpu": gpu.model_dump(),
        "tensor_parallel": recipe.tensor_parallel,
        "model": model.model_dump(),
        "kv_capacity": capacity,
        "kv_capacity_origin": origin,
        "engine": recipe.engine,
        "engines": {name: overhead.model_dump() for name, overhead in recipe.engines.items()},
        "valid_range": {name: [float(v.min()), float(v.max())] for name, v in ranges.items()},
        "fit_error": held_out_errors(profiles, heads),
        "tables": tables,
    }


def _capacity(recipe: Recipe, gpu: GPU, model: ModelShape) -> tuple[int, str]:
    if recipe.kv_capacity is not None:
        return recipe.kv_capacity, recipe.kv_capacity_origin
    tokens = kv_capacity(gpu, model, tensor_parallel=recipe.tensor_parallel)
    return tokens, (
        f"kvgym.batch_time.kv_capacity({recipe.gpu!r}, {recipe.model!r}, tensor_parallel="
        f"{recipe.tensor_parallel}, memory_fraction=0.9, activation_reserve=2 GiB, block_size=16)"
    )


def write_hardware(content: dict[str, Any], path: Path) -> None:
    """Write the content of a hardware file as YAML, lists on as few lines as fit.

    Args:
        content: from :func:`calibrate`.
        path: file to write.
    """
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110)
    head = "# Written by scripts/calibrate.py, see docs/calibration.md. Tables: milliseconds per layer.\n"
    path.write_text(head + text, "utf-8")
