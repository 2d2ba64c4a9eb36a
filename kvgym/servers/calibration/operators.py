"""Fit the operator tables of a GPU to measured kernels in the form of AIConfigurator's databases.

A folder holds Parquet files, one row per measured kernel: ``gemm``, ``context_attention``, ``generation_attention``
and, optionally, others; docs/calibration.md has their columns. A later folder completes the ones before it, and
replaces experts of the types that it has. A tenth of the rows of each group is held out. The other rows fill a grid; a
missing time is interpolated between its two neighbours along the axis that predicts the measured times best. Nothing is
smoothed, so steps of tiles and waves stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.interpolation import Floats
from kvgym.batch_time.operators.tables import GROUPS, Grid, OperatorTables
from kvgym.errors import ConfigError
from kvgym.utils.frame import pyarrow

HELD_OUT_SHARE = 0.1
SEED = 0

_TYPES = {"bfloat16": "bf16", "float16": "bf16", "w4a16_mxfp4": "mxfp4"}
_LIBRARIES = {"vLLM": "vllm", "TensorRT-LLM": "tensorrt-llm"}
_LEAST_WIDTH = 256  # narrower matrices are not used by any model, and their times are mostly noise

Columns = dict[str, NDArray[Any]]


def read_rows(folder: Path, name: str, columns: Sequence[str], *, least: float = 1e-9) -> Columns | None:
    """Return the columns of a Parquet file; None if the folder does not have it.

    Args:
        folder: the folder.
        name: name of the file, without its ending.
        columns: its columns.
        least: least valid latency, milliseconds.

    Raises:
        ConfigError: a column is missing, a latency is not such a number, or pyarrow is not installed.
    """
    path = folder / f"{name}.parquet"
    if not path.exists():
        return None
    table = pyarrow().parquet.read_table(path)
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        raise ConfigError(
            f"{path}: lacks column {missing[0]}; expected {', '.join(columns)} (docs/calibration.md)"
        )
    found = {column: table[column].to_numpy(zero_copy_only=False) for column in columns}
    wrong = ~(np.isfinite(found["latency"]) & (found["latency"] >= least))
    if wrong.any():
        row = int(wrong.argmax())
        raise ConfigError(
            f"{path}: row {row}: latency = {found['latency'][row]}; expected milliseconds {'>' if least else '≥'} 0"
        )
    return found


class Errors:
    """Collects relative errors on held-out rows by operator group."""

    def __init__(self) -> None:
        self._found: dict[str, list[Floats]] = {}

    def add(self, group: str, predicted: Floats, measured: Floats) -> None:
        """Add rows of a group; rows without a prediction do not count."""
        errors = np.abs(predicted / measured - 1)
        self._found.setdefault(group, []).append(errors[~np.isnan(errors)])

    def summary(self) -> dict[str, dict[str, float]]:
        """Return median, 95th percentile and number of rows by group."""
        result = {}
        for group, parts in self._found.items():
            errors = np.concatenate(parts)
            if len(errors):
                result[group] = {
                    "median": round(float(np.median(errors)), 4),
                    "p95": round(float(np.quantile(errors, 0.95)), 4),
                    "rows": len(errors),
                }
        return result


def fit_grid(
    coordinates: Sequence[NDArray[Any]],
    ms: Floats,
    rng: np.random.Generator,
    *,
    between: Sequence[int],
    report: Callable[[Floats, Floats], None],
) -> Grid:
    """Fit a grid to rows.

    Args:
        coordinates: of each row, one array (rows,) per axis.
        ms: milliseconds, shape (rows,).
        rng: chooses the held-out rows.
        between: axes along which times can be interpolated.
        report: gets predicted and measured times of the held-out rows.
    """
    axes = [np.unique(values).astype(np.float64) for values in coordinates]
    place = tuple(np.searchsorted(axis, values) for axis, values in zip(axes, coordinates, strict=True))
    out = rng.random(len(ms)) < HELD_OUT_SHARE
    table = np.full([len(axis) for axis in axes], np.nan)
    kept = tuple(index[~out] for index in place)
    table[kept] = ms[~out]
    held = tuple(index[out] for index in place)
    fitted = np.exp(_filled(np.log(table), axes, between))
    report(fitted[held], ms[out])
    return Grid(tuple(axes), fitted)


def _filled(table: Floats, axes: Sequence[Floats], between: Sequence[int]) -> Floats:
    """Fill missing logarithms of times: between neighbours first, then beyond the measured shapes."""
    guesses = [
        (axis, scale, _from_neighbours(table, axes[axis], axis, scale))
        for axis in between
        for scale in (1, 0)
    ]
    errors = [np.abs(guess - table)[~np.isnan(guess - table)] for _, _, guess in guesses]
    order = sorted(range(len(guesses)), key=lambda i: np.median(errors[i]) if len(errors[i]) else np.inf)
    for _ in range(2):  # the second time from neighbours that the first one filled
        for i in order:
            axis, scale, _ = guesses[i]
            table = np.where(np.isnan(table), _from_neighbours(table, axes[axis], axis, scale), table)
    return _extended(table)


def _from_neighbours(table: Floats, x: Floats, axis: int, power: int) -> Floats:
    """Interpolate each inner entry from the two next to it along an axis; NaN where one is missing.

    Args:
        table: logarithms of times.
        x: coordinates of the axis.
        axis: the axis.
        power: 1 = times are linear in the coordinate, 0 = their logarithms are linear in its logarithm.
    """
    rows = np.moveaxis(table, axis, 0)
    x = x if power else np.log1p(x)
    share = ((x[1:-1] - x[:-2]) / (x[2:] - x[:-2])).reshape([-1] + [1] * (rows.ndim - 1))
    low, high = (np.exp(rows[:-2]), np.exp(rows[2:])) if power else (rows[:-2], rows[2:])
    inner = low + (high - low) * share
    guess = np.full_like(rows, np.nan)
    guess[1:-1] = np.log(inner) if power else inner
    return np.moveaxis(guess, 0, axis)


def _extended(table: Floats) -> Floats:
    """Continue a grid to the large shapes that did not fit into the GPU's memory.

    Along its last two axes, a time grows by the factor by which the time one step before grew.
    """
    if table.ndim < 2:
        return table
    for _ in range(sum(table.shape[-2:])):
        guess = table[..., 1:, :-1] + table[..., :-1, 1:] - table[..., :-1, :-1]
        hole = np.isnan(table[..., 1:, 1:])
        if not (hole & ~np.isnan(guess)).any():
            break
        table[..., 1:, 1:] = np.where(hole, guess, table[..., 1:, 1:])
    return table


def complete(axes: Sequence[Floats], ms: Floats) -> Grid:
    """Return a grid without rows and columns of which nothing was measured, and without other gaps."""
    axes = list(axes)
    for axis in range(ms.ndim):
        others = tuple(i for i in range(ms.ndim) if i != axis)
        kept = ~np.isnan(ms).all(axis=others)
        ms, axes[axis] = ms.compress(kept, axis), axes[axis][kept]

    def closed(line: Floats) -> Floats:
        known = ~np.isnan(line)
        return np.exp(np.interp(x, x[known], np.log(line[known]))) if known.any() else line

    for axis in reversed(range(ms.ndim)):
        x = np.log1p(axes[axis])
        ms = np.apply_along_axis(closed, axis, ms)
    return Grid(tuple(axes), ms)


def _grids(
    rows: Columns,
    keys: Sequence[str],
    axes: Sequence[str],
    group: str,
    rng: np.random.Generator,
    errors: Errors,
    *,
    apart: bool = False,
) -> Iterator[tuple[tuple[Any, ...], Grid]]:
    """Yield a grid for each combination of keys.

    Args:
        rows: the measurements.
        keys: columns of the combinations.
        axes: columns of the axes.
        group: operator group of the errors.
        rng: chooses the held-out rows.
        errors: collects the errors.
        apart: whether the first axis only helps to predict: each of its values gets a grid, and ends the key.
    """
    combinations, which = np.unique(
        np.stack([rows[key].astype(str) for key in keys]), axis=1, return_inverse=True
    )
    for number in range(combinations.shape[1]):
        chosen = np.flatnonzero(which.ravel() == number)
        key = tuple(_plain(rows[name][chosen[0]]) for name in keys)
        grid = fit_grid(
            [rows[axis][chosen] for axis in axes],
            rows["latency"][chosen].astype(np.float64),
            rng,
            between=range(len(axes)),
            report=partial(errors.add, group),
        )
        if apart:
            for value, ms in zip(grid.axes[0], grid.ms, strict=True):
                yield (*key, int(value)), complete(grid.axes[1:], ms)
        else:
            yield key, complete(grid.axes, grid.ms)


def _plain(value: Any) -> Any:
    return _TYPES.get(value, value) if isinstance(value, str) else int(value)


def _where(rows: Columns, chosen: NDArray[np.bool_]) -> Columns:
    return {column: values[chosen] for column, values in rows.items()}


def fit_operators(
    folders: Sequence[Path], name: str, *, measured: str, source: str, date: str
) -> OperatorTables:
    """Fit the tables of a GPU.

    Args:
        folders: folders of the Parquet files, later ones complete the earlier.
        name: preset of the GPU.
        measured: what was measured, in a few words.
        source: where the files come from, and their licence.
        date: day of the fit, ISO 8601.

    Raises:
        ConfigError: no matrix products or attention, or a wrong file (see :func:`read_rows`).
    """
    errors = Errors()
    groups: dict[str, dict[Any, Grid]] = {group: {} for group in GROUPS}
    for folder in folders:
        rng = np.random.default_rng(SEED)  # equal tables, whatever other folders there are
        for fit in (_fit_products, _fit_attention, _fit_collectives, _fit_experts, _fit_latent):
            for group, grids in fit(folder, rng, errors).items():
                if group == "experts":
                    types = {key[0] for key in grids}
                    groups[group] = {key: grid for key, grid in groups[group].items() if key[0] not in types}
                groups[group].update(grids)
    for group, file in (
        ("matmul", "gemm"),
        ("prefill", "context_attention"),
        ("decode", "generation_attention"),
    ):
        if not groups[group]:
            raise ConfigError(
                f"{', '.join(map(str, folders))}: no measurements in {file}.parquet (docs/calibration.md has the "
                "columns)"
            )
    return OperatorTables(
        name=name, measured=measured, source=source, date=date, fit_error=errors.summary(), **groups
    )


_Groups = dict[str, dict[Any, Grid]]


def _fit_products(folder: Path, rng: np.random.Generator, errors: Errors) -> _Groups:
    """Fit matrix products, and the quantisation of their inputs."""
    found: _Groups = {"matmul": {}, "quantise": {}}
    if rows := read_rows(folder, "gemm", ("gemm_dtype", "m", "n", "k", "latency")):
        rows = _where(rows, (rows["n"] >= _LEAST_WIDTH) & (rows["k"] >= _LEAST_WIDTH))
        for dtype in np.unique(rows["gemm_dtype"].astype(str)):
            part = _where(rows, rows["gemm_dtype"] == dtype)
            group = f"matmul {_plain(str(dtype))}"
            for (key,), grid in _grids(part, ["gemm_dtype"], ["n", "k", "m"], group, rng, errors):
                found["matmul"][key] = grid
    columns = ("engine", "op_name", "quant_dtype", "m", "k", "latency")
    if rows := read_rows(folder, "quantize", columns, least=0.0):
        rows = _where(rows, _library(rows) == "vllm")  # of the engine that the products were measured with
        for dtype in np.unique(rows["quant_dtype"].astype(str)):
            part = _where(rows, rows["quant_dtype"] == dtype)
            found["quantise"][str(_plain(str(dtype)))] = _sums(part, ["k", "m"])
    return found


def _sums(rows: Columns, axes: Sequence[str]) -> Grid:
    """Return the sums of the operators measured at each shape, at those shapes where all were measured."""
    nodes = [np.unique(rows[axis]).astype(np.float64) for axis in axes]
    place = tuple(np.searchsorted(node, rows[axis]) for node, axis in zip(nodes, axes, strict=True))
    total, count = np.zeros([len(node) for node in nodes]), np.zeros([len(node) for node in nodes])
    np.add.at(total, place, rows["latency"])
    np.add.at(count, place, 1)
    return complete(nodes, np.where(count == count.max(), np.maximum(total, 1e-6), np.nan))


def _fit_attention(folder: Path, rng: np.random.Generator, errors: Errors) -> _Groups:
    found: _Groups = {"decode": {}, "prefill": {}}
    heads = ["kv_cache_dtype", "head_dim", "num_key_value_heads"]
    for group, file, axes in (
        ("decode", "generation_attention", ["num_heads", "batch_size", "step"]),
        ("prefill", "context_attention", ["num_heads", "isl"]),
    ):
        if rows := read_rows(folder, file, (*heads, "num_heads", "batch_size", axes[-1], "latency")):
            if group == "prefill":  # several chunks count as one with as many pairs of query and key
                rows = _where(rows, rows["batch_size"] == 1)
            for (dtype, dim, kv, count), grid in _grids(
                rows, heads, axes, f"{group} attention", rng, errors, apart=True
            ):
                found[group][dtype, dim, count, kv] = grid
    return found


def _fit_latent(folder: Path, rng: np.random.Generator, errors: Errors) -> _Groups:
    """Fit latent attention: modules with the products around it, and attention alone."""
    found: _Groups = {"latent_decode": {}, "latent_prefill": {}}
    for kind, file, axes in (
        ("decode", "mla_generation", ["batch_size", "step"]),
        ("prefill", "mla_context", ["isl"]),
    ):
        columns = ("engine", "kv_cache_dtype", "num_heads", "batch_size", axes[-1], "latency")
        for types, rows in (
            (["gemm_type"], read_rows(folder, f"{file}_module", (*columns, "gemm_type"))),
            ([], read_rows(folder, file, columns)),
        ):
            if not rows:
                continue
            if kind == "prefill":
                rows = _where(rows, rows["batch_size"] == 1)
            rows["library"] = _library(rows)
            keys = ["library", *types, "kv_cache_dtype", "num_heads"]
            rows = _fastest(rows, [*keys, *axes])
            for key, grid in _grids(rows, keys, axes, f"latent {kind}", rng, errors):
                library, *products, cache, heads = key
                found[f"latent_{kind}"][(library, *(products or [""]), cache, heads)] = grid
    return found


def _library(rows: Columns) -> NDArray[np.str_]:
    """Return the library of each row, by the first word of ``engine``."""
    return np.array([_LIBRARIES.get(str(engine).split()[0], str(engine)) for engine in rows["engine"]])


def _fastest(rows: Columns, columns: Sequence[str]) -> Columns:
    """Return the fastest row of each shape, as an engine has several kernels to choose from."""
    order = np.argsort(rows["latency"], kind="stable")
    keys = np.stack([rows[column][order].astype(str) for column in columns])
    _, first = np.unique(keys, axis=1, return_index=True)
    chosen = np.sort(order[first])
    return {column: values[chosen] for column, values in rows.items()}


def _fit_collectives(folder: Path, rng: np.random.Generator, errors: Errors) -> _Groups:
    found: _Groups = {"all_reduce": {}, "all_gather": {}}
    if rows := read_rows(folder, "all_reduce", ("backend", "num_gpus", "message_size", "latency")):
        rows["bytes"] = 2 * rows["message_size"].astype(np.int64)
        graphs = np.array(["graph" in str(backend) for backend in rows["backend"]])
        if graphs.any():  # engines replay a graph of the whole batch
            rows = _where(rows, graphs)
        for (count,), grid in _grids(rows, ["num_gpus"], ["bytes"], "all-reduce", rng, errors):
            found["all_reduce"][count] = grid
    if rows := read_rows(folder, "nccl", ("op_name", "num_gpus", "message_size", "latency")):
        rows["bytes"] = 2 * rows["message_size"].astype(np.int64)
        rows = _where(rows, rows["op_name"] == "all_gather")
        for (count,), grid in _grids(rows, ["num_gpus"], ["bytes"], "all-gather", rng, errors):
            found["all_gather"][count] = grid
    return found


def _fit_experts(folder: Path, rng: np.random.Generator, errors: Errors) -> _Groups:
    shape = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
    keys = ["moe_dtype", "distribution", *shape]
    rows = read_rows(folder, "moe", (*keys, "num_tokens", "latency"))
    return {"experts": dict(_grids(rows, keys, ["num_tokens"], "experts", rng, errors))} if rows else {}
