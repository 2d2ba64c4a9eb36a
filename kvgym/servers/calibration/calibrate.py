"""Calibration: fit operator tables to profiles and write hardware files.

It needs SciPy, which is slow to import, so the core does not import this module.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from kvgym.batch_time.deployments.deployment import CalibratedHardware
from kvgym.batch_time.hardware.held_out import WAITING_BYTES, FitError
from kvgym.batch_time.hardware.interpolation import Floats, isotonic, surface_values
from kvgym.batch_time.models.roofline import RooflineBatchTime
from kvgym.errors import ConfigError, shown
from kvgym.servers.calibration.fitting import (
    DECODE_TERMS,
    PREFILL_TERMS,
    PooledPrefill,
    Surface,
    fit_prefill,
    fit_surface,
    pool_decodes,
)
from kvgym.servers.calibration.grids import CACHED, CHUNKS, CONTEXTS, batches, grid, resolution, thin
from kvgym.servers.calibration.profile_csv import Profiles, read_profiles
from kvgym.servers.calibration.recipes import Recipe
from kvgym.servers.calibration.report import ROOFLINE_BOUNDS, roofline_ratios
from kvgym.utils.files import write_text

HELD_OUT_SHARE = 0.2
HELD_OUT_MOST = 200
LEAST_ROWS = 4
SEED = 0

WARN_BEYOND = {
    "linear": 0.03,
    "attention_decode": 0.06,
    "attention_decode_homogeneous": 0.03,
    "attention_prefill": 0.06,
    "attention_prefill_table": 0.04,
    "all_reduce": 0.03,
}
"""Median held-out error by operator group above which a warning is issued."""

REFUSE_BEYOND = 0.25
"""Median held-out error of any of these groups above which no file is written."""

Rows = tuple[Floats, Floats, Floats]

_REDUCE_STEP = 8  # tokens between the small sizes at which medians of all-reduce are stored


def fit_decode(points: Rows, candidates: tuple[float, ...], kv_capacity: int) -> tuple[Surface, Surface]:
    """Fit decode attention by (decodes, context), and pooled by (decodes, KV tokens).

    Args:
        points: decodes, context, milliseconds, each of shape (d,).
        candidates: numbers of decodes to use as nodes if they were measured.
        kv_capacity: KV tokens that the pooled table should cover.
    """
    rows, columns = grid(candidates, points[0]), grid(CONTEXTS, points[1])
    table = _thinned(fit_surface(rows, columns, points, DECODE_TERMS), points[2])
    most = max(float((points[0] * points[1]).max()), min(float(kv_capacity), rows[-1] * columns[-1]))
    spaced = np.geomspace(max(columns[0], 1.0), most, 36)
    totals = np.concatenate([[0.0], np.unique(np.round(spaced))])
    few: Floats = np.unique(np.round(np.linspace(min(8.0, rows[-1]), rows[-1], 20)))
    few = np.append(rows[(rows < few[0]) & np.isin(rows, (1, 2, 4, 6))], few)
    x, y = (axis.ravel() for axis in np.meshgrid(few, table.columns, indexing="ij"))
    shape = (len(few), len(table.columns))
    sampled = surface_values(table.rows, table.columns, table.ms, x, y).reshape(shape)
    support = surface_values(table.rows, table.columns, np.minimum(table.support, 1.0), x, y).reshape(shape)
    return table, pool_decodes(Surface(few, table.columns, sampled, support, table.change), totals)


def fit_prefills(points: Rows, *, concave: bool = False) -> tuple[Surface, PooledPrefill]:
    """Fit prefill attention by (chunk, cached), and as a sum over requests.

    Args:
        points: chunk, cached tokens, milliseconds, each of shape (p,).
        concave: see :func:`fit_prefill`.
    """
    rows, columns = grid(CHUNKS, points[0]), grid(CACHED, points[1])
    table = fit_surface(rows, columns, points, PREFILL_TERMS)
    return _thinned(table, points[2]), fit_prefill(np.concatenate([[0.0], rows]), points, concave=concave)


def with_cached(points: Rows, pair_ms: float) -> Rows:
    """Return rows of prefill attention; if none has cached tokens, add estimated rows that do.

    Each pair of a new and a cached token then costs an estimated time. The tables interpolate linearly in these pairs,
    so one number of cached tokens is enough.

    Args:
        points: chunk, cached tokens, milliseconds, each of shape (p,).
        pair_ms: milliseconds per pair of query and key.
    """
    chunk, cached, ms = points
    if cached.any():
        return points
    far = np.full(len(chunk), chunk.max())
    estimates = ms + pair_ms * chunk * far
    return np.tile(chunk, 2), np.append(cached, far), np.append(ms, estimates)


def _check_spread(group: str, **columns: Floats) -> None:
    """Check that each quantity has several values, which a table needs.

    Raises:
        ConfigError: one has a single value; the message names both.
    """
    for name, values in columns.items():
        if values.min() == values.max():
            raise ConfigError(
                f"{group}: every measurement has {name} = {values[0]:g}; at least two different values are needed"
            )


def _thinned(table: Surface, measured: Floats) -> Surface:
    """Return the surface without rows and columns that linear interpolation between the others replaces."""
    near = resolution(measured) / 2
    i = thin(table.rows, list(table.ms.T), absolute=near)
    j = thin(table.columns, list(table.ms[i]), absolute=near)
    ms, support = table.ms[np.ix_(i, j)], table.support[np.ix_(i, j)]
    return Surface(table.rows[i], table.columns[j], ms, support, table.change)


def fit_all_reduce(size: Floats, low: Floats, median: Floats, small: Floats) -> tuple[Floats, Floats, Floats]:
    """Return nodes (bytes), the monotone lower envelope, and the medians.

    Below some megabytes the measured kernel waits for the other GPU to start, for a random time up to 0.06 ms; the
    envelope is the transfer alone.

    Args:
        size: bytes, shape (a,).
        low: smallest times, shape (a,).
        median: median times, shape (a,).
        small: sizes with nodes in addition to a geometric sequence.
    """
    envelope = np.minimum.accumulate(low[::-1])[::-1]
    wanted = np.geomspace(size[0], size[-1], min(48, len(size)))
    nodes = np.unique(size[np.searchsorted(size, wanted).clip(0, len(size) - 1)])
    if len(small):
        nodes = np.union1d(nodes[(nodes < small[0]) | (nodes > small[-1])], small)
    return nodes, np.interp(nodes, size, envelope), np.interp(nodes, size, median)


def _kept_tokens(tokens: Floats) -> NDArray[np.int64]:
    """Return the indices of token counts that are never held out.

    These are counts up to 64, which batches of decodes have, and counts on either side of a step of the matrix
    kernels, which have tiles of 64 or 128 tokens. Beyond 4,096 tokens a step is smaller than the other errors.
    """
    tile = np.where(tokens <= 1024, 64, 128)
    last = np.flatnonzero((tokens % tile == 0) & (tokens <= 4096))
    neighbours = np.union1d(last, np.minimum(last + 1, len(tokens) - 1))
    return np.union1d(np.flatnonzero(tokens <= 64), neighbours)


def _small_sizes(size: Floats, bytes_per_token: float) -> Floats:
    """Return the bytes of multiples of 8 tokens at which an all-reduce may have waited for a peer."""
    most = int(WAITING_BYTES // (_REDUCE_STEP * bytes_per_token)) + 1
    sizes = np.arange(1, most + 1, dtype=np.float64) * (_REDUCE_STEP * bytes_per_token)
    inside: Floats = sizes[(sizes >= size[0]) & (sizes <= size[-1])]
    return inside


def _hold_out(
    group: str,
    count: int,
    rng: np.random.Generator,
    keep: NDArray[np.int64] | None = None,
    *,
    apart: bool = True,
) -> NDArray[np.bool_]:
    """Choose rows at random, except the outermost and, if enough others are left, those in ``keep``.

    Args:
        group: name of the group, for the message.
        count: number of its rows, in the order of their quantities.
        rng: chooses them.
        keep: indices of rows that the table needs.
        apart: choose no two neighbours, as the table would have nothing to follow between the rows around them.

    Raises:
        ConfigError: there are fewer than four rows.
    """
    if count < LEAST_ROWS:
        raise ConfigError(f"{group}: {count} different measurements; at least {LEAST_ROWS} are needed")
    number = min(max(int(HELD_OUT_SHARE * count), 1), HELD_OUT_MOST)
    inner = np.arange(1, count - 1)
    free = inner if keep is None else np.setdiff1d(inner, keep)
    chosen = np.zeros(count, bool)
    allowed = free if len(free) >= number else inner
    if not apart:
        chosen[rng.choice(allowed, number, replace=False)] = True
        return chosen
    for row in rng.permutation(allowed):
        if number and not (chosen[row - 1] or chosen[row + 1]):
            chosen[row] = True
            number -= 1
    return chosen


def _split(columns: Rows, out: NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """Return the rows to fit and the held-out rows."""
    a, b, c = columns
    return (a[~out], b[~out], c[~out]), (a[out], b[out], c[out])


def _significant(value: float, digits: int = 5) -> float:
    return float(f"{value:.{digits}g}")


def _resolved(value: float) -> float:
    """Round milliseconds to 0.001, or to three digits if that is finer."""
    return round(value, 3) if value >= 0.1 else _significant(value, 3)


def _list(values: Floats, rounding: Callable[[float], float] = _resolved) -> list[float]:
    return [int(v) if v == int(v) else v for v in (rounding(float(x)) for x in values)]


def _exact(values: Floats) -> list[float]:
    return _list(values, _significant_6)


def _significant_6(value: float) -> float:
    return int(value) if value == int(value) else _significant(value, 6)


def _surface_dict(table: Surface) -> dict[str, Any]:
    return {
        "rows": _exact(table.rows),
        "columns": _exact(table.columns),
        "ms": [_list(row) for row in table.ms],
    }


def _save_at(tokens: Floats, save: tuple[Floats, Floats]) -> Floats:
    count, ms = save
    middle = min(len(ms) // 2, len(ms) - 2)
    slope = (ms[-1] - ms[middle]) / max(count[-1] - count[middle], 1.0)
    result: Floats = np.interp(tokens, count, ms) + slope * np.maximum(tokens - count[-1], 0.0)
    return result


def calibrate(
    folder: Path,
    recipe: Recipe,
    date: str | None = None,
    *,
    max_error: float = REFUSE_BEYOND,
    implausible: bool = False,
) -> dict[str, Any]:
    """Return the content of a hardware file, with the errors of its tables on held-out rows.

    20 % of the rows of each operator group, at most 200, are held out at random and written into the file. The tables
    are fitted to the other rows. ``fit_error`` is the error of the written, rounded tables on the held-out rows.

    Args:
        folder: folder of the profiles' paths.
        recipe: what to calibrate.
        date: ISO 8601 day; None = today.
        max_error: largest median error allowed in the groups of :data:`WARN_BEYOND`.
        implausible: allow times that the hardware makes implausible; the file then states them.

    Raises:
        ConfigError: an invalid ``date`` or profile (see :func:`read_profiles`), implausible times, too few rows or a
            single value of a quantity, or a median error above ``max_error``; the message names the group.
    """
    day = parse_day(date)
    gpu, model, parts = recipe.gpu, recipe.served, recipe.tensor_parallel
    capacity, origin = recipe.capacity()
    profiles = read_profiles(folder, recipe)
    if profiles.doubts and not implausible:
        others = len(profiles.doubts) - 1
        more = f" ({others} more column{'s' * (others > 1)})" if others else ""
        raise ConfigError(f"{profiles.doubts[0]}{more}; --implausible writes the file all the same")
    rng = np.random.default_rng(SEED)
    hold_out = partial(_hold_out, apart=recipe.method > 1)
    per_token = model.hidden * model.dtype_bytes

    out = hold_out("token operators", len(profiles.tokens), rng, _kept_tokens(profiles.tokens))
    total = profiles.block + 2 * profiles.add
    held: dict[str, Any] = {"linear": {"tokens": _exact(profiles.tokens[out]), "ms": _exact(total[out])}}
    tokens, block, add, embedding = (
        column[~out] for column in (profiles.tokens, profiles.block, profiles.add, profiles.embedding)
    )
    decode_rows, (n, k, t) = _split(
        profiles.decode, hold_out("decode attention", len(profiles.decode[0]), rng)
    )
    held["decode"] = {"decodes": _exact(n), "context": _exact(k), "ms": _exact(t)}
    prefill_rows, (c, k, t) = _split(
        profiles.prefill, hold_out("prefill attention", len(profiles.prefill[0]), rng)
    )
    held["prefill"] = {"chunk": _exact(c), "cached": _exact(k), "ms": _exact(t)}

    _check_spread("decode attention", decodes=decode_rows[0], context=decode_rows[1])
    _check_spread("prefill attention", chunk=prefill_rows[0])
    roofline = RooflineBatchTime(gpu, model, tensor_parallel=parts)
    pair = roofline.attention_pair() * 1e3 / model.num_layers
    prefill_rows = with_cached(prefill_rows, pair)
    _check_spread("prefill attention", cached=prefill_rows[1])

    block, add, embedding = (isotonic(v) for v in (block, add, embedding))
    save = _save_at(tokens, profiles.save)
    keep = thin(tokens, [block, add, embedding, save])
    assert gpu.num_sms is not None
    heads, kv_heads = (max(1, count // parts) for count in (model.num_heads, model.num_kv_heads))
    decode, pooled = fit_decode(decode_rows, batches(gpu.num_sms, heads, kv_heads), capacity)
    prefill, summed = fit_prefills(prefill_rows, concave=recipe.method == 1)
    summed = summed.continued(pair * roofline.compute_efficiency, pair)
    weights, row = roofline.lm_head()
    tables: dict[str, Any] = {
        "num_layers": model.num_layers,
        "bytes_per_token": per_token,
        "linear": {
            "tokens": _list(tokens[keep]),
            "block_ms": _list(block[keep]),
            "add_ms": _list(add[keep]),
            "save_ms": _list(save[keep]),
            "embedding_ms": _list(embedding[keep]),
        },
        "decode": _surface_dict(decode),
        "decode_pooled": _surface_dict(pooled),
        "prefill": _surface_dict(prefill),
        "prefill_pooled": {
            "launch_ms": _significant(summed.launch, 3),
            "chunk": _list(summed.chunk),
            "own_ns": _list(summed.own * 1e6, _significant),
            "cached_ns": _list(summed.cached * 1e6, _significant),
        },
        "lm_head": {"weights_ms": _significant(weights * 1e3), "row_ms": _significant(row * 1e3)},
    }
    ranges = _ranges(profiles)
    if profiles.all_reduce is not None:
        size = profiles.all_reduce[0]
        small = _small_sizes(size, per_token)
        right = np.searchsorted(size, small)
        neighbours = np.concatenate([right, np.maximum(right - 1, 0)])
        reduce_rows, (s, _, t) = _split(
            profiles.all_reduce, hold_out("all-reduce", len(size), rng, neighbours)
        )
        held["all_reduce"] = {"size": _exact(s), "ms": _exact(t)}
        size, low, median = reduce_rows
        nodes, envelope, median = fit_all_reduce(size, low, median, small)
        tables["all_reduce"] = {
            "size": [int(v) for v in nodes],
            "kernel_ms": _list(envelope),
            "median_ms": _list(median),
        }
    own = {name: engine.model_dump(exclude_none=True) for name, engine in recipe.engines.items()}
    content: dict[str, Any] = {
        "name": recipe.name,
        "description": recipe.description,
        "source": recipe.source,
        "date": day,
        "gpu": gpu.model_dump(exclude={"attained"}),
        "tensor_parallel": parts,
        "model": model.model_dump(),
        "kv_capacity": capacity,
        "kv_capacity_origin": origin,
        "engine": recipe.engine,
        **({"engines": own} if own else {}),
        "valid_range": ranges,
        "fit_error": {},
        "tables": tables,
        "held_out": held,
        **({"doubts": list(profiles.doubts)} if profiles.doubts else {}),
    }
    errors = CalibratedHardware.model_validate(content).measured_errors()
    _refuse(recipe.name, errors, max_error)
    content["fit_error"] = {name: error.model_dump() for name, error in errors.items()}
    return content


def parse_day(date: str | None) -> str:
    """Return a day in ISO 8601 form; today if none is given."""
    try:
        return (datetime.date.today() if date is None else datetime.date.fromisoformat(date)).isoformat()
    except ValueError:
        raise ConfigError(f"date = {shown(date)}; expected a day such as 2026-01-31") from None


def _ranges(profiles: Profiles) -> dict[str, list[float]]:
    columns = {
        "tokens": profiles.tokens,
        "decodes": profiles.decode[0],
        "decode_context_each": profiles.decode[1],
        "decode_context_all": profiles.decode[0] * profiles.decode[1],
        "prefill_chunk": profiles.prefill[0],
        "prefill_cached_each": profiles.prefill[1],
    }
    if profiles.all_reduce is not None:
        columns["all_reduce_bytes"] = profiles.all_reduce[0]
    return {name: [float(v.min()), float(v.max())] for name, v in columns.items()}


def _refuse(name: str, errors: dict[str, FitError], max_error: float) -> None:
    for group in WARN_BEYOND:
        if group in errors and errors[group].median > max_error:
            raise ConfigError(
                f"recipe {name}: the tables miss held-out rows of {group} by {errors[group].median:.1%} (median of "
                f"{errors[group].rows}); at most {max_error:.1%} is allowed: the profile is too sparse or too noisy"
            )


def warnings(hardware: CalibratedHardware) -> list[str]:
    """Return a line for each doubt, and each operator group with a large median error or with estimated values."""
    found = list(hardware.doubts)
    low, high = ROOFLINE_BOUNDS
    ratio = float(np.median(list(roofline_ratios(hardware).values())))
    if not low <= ratio <= high:
        found.append(
            f"tables: batches take {ratio:.2g} x the roofline's time (plausible: {low:g} to {high:g}); check the unit "
            "and the recipe's model, weights, tensor_parallel and gpu"
        )
    if hardware.valid_range["prefill_cached_each"][1] == 0:
        found.append(
            "attention_prefill: no chunk after cached tokens was measured; their attention is estimated from the data "
            "sheet"
        )
    return found + [
        f"{group}: median error {hardware.fit_error[group].median:.1%} is above {bound:.0%}"
        for group, bound in WARN_BEYOND.items()
        if group in hardware.fit_error and hardware.fit_error[group].median > bound
    ]


def write_hardware(content: dict[str, Any], path: Path) -> None:
    """Write the content of a hardware file as YAML, with lists on few lines.

    Args:
        content: from :func:`calibrate`.
        path: file to write.
    """
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    head = "# Written by kvgym server calibrate, see docs/calibration.md. Tables: milliseconds per layer.\n"
    write_text(path, head + text)
