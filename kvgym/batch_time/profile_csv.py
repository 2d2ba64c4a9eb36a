"""Reads operator profiles in the CSV layout of the Vidur simulator.

One file of linear operators by tokens, one of attention, one of collectives; columns
``time_stats.<operator>.median`` in milliseconds, or in a sampled attention file ``<operator>_median_ms``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from kvgym.batch_time.fitting import isotonic
from kvgym.batch_time.interpolation import Floats
from kvgym.batch_time.recipes import Recipe
from kvgym.batch_time.shapes import GPUS, MODELS
from kvgym.errors import ConfigError

BLOCK_OPERATORS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
)
"""Token operators of one block, once each; two residual additions (``add``) come on top."""


@dataclass(frozen=True)
class Profiles:
    """Measurements of one model, milliseconds.

    Attributes:
        tokens: tokens, ascending, shape (n,).
        block: sum of :data:`BLOCK_OPERATORS`, shape (n,).
        add: one residual addition, shape (n,).
        embedding: input embedding, shape (n,).
        decode: decodes, context of each, time; each of shape (d,).
        prefill: chunk, cached tokens, time; each of shape (p,).
        save: tokens and time of output reshape plus separate KV writes; each of shape (s,).
        all_reduce: bytes, smallest and median time, each of shape (a,), or None.
    """

    tokens: Floats
    block: Floats
    add: Floats
    embedding: Floats
    decode: tuple[Floats, Floats, Floats]
    prefill: tuple[Floats, Floats, Floats]
    save: tuple[Floats, Floats]
    all_reduce: tuple[Floats, Floats, Floats] | None


def _read(path: Path, needed: list[str]) -> pl.DataFrame:
    """Read a CSV with plain column names; all medians as float.

    Raises:
        ConfigError: the file is missing or lacks a column.
    """
    if not path.is_file():
        raise ConfigError(f"profile {path}: no such file")
    table = pl.read_csv(path, infer_schema=False)
    names: dict[str, str] = {}
    for column in table.columns:
        plain = column.removeprefix("time_stats.").removesuffix(".median").removesuffix("_median_ms")
        if plain not in names.values():
            names[column] = plain
    table = table.select(list(names)).rename(names)
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise ConfigError(
            f"profile {path}: missing columns {', '.join(missing)}; has {', '.join(table.columns)}"
        )
    return table


def _columns(table: pl.DataFrame, keys: list[str], values: list[str]) -> list[Floats]:
    """Return keys and the medians of values over rows of equal keys, ascending by key."""
    numeric = table.select(pl.col([*keys, *values]).cast(pl.Float64, strict=False))
    grouped = numeric.group_by(keys).agg(pl.col(values).median()).sort(keys)
    return [grouped[name].fill_null(0.0).to_numpy() for name in [*keys, *values]]


def read_profiles(folder: Path, recipe: Recipe) -> Profiles:
    """Read the profiles of one recipe.

    Args:
        folder: holds the CSV files that the recipe names.
        recipe: what to read.

    Raises:
        ConfigError: a file or column is missing, or there are no rows of that tensor parallelism.
    """
    path = folder / recipe.linear
    operators = [*BLOCK_OPERATORS, "add", "emb"]
    table = _read(path, ["num_tokens", "num_tensor_parallel_workers", *operators])
    table = table.filter(pl.col("num_tensor_parallel_workers").cast(pl.Int64) == recipe.tensor_parallel)
    if table.is_empty():
        raise ConfigError(
            f"profile {path}: no rows with num_tensor_parallel_workers = {recipe.tensor_parallel}"
        )
    tokens, *times = _columns(table, ["num_tokens"], operators)

    path = folder / recipe.attention
    reshape = ["attn_output_reshape", "attn_input_reshape"]
    keys = ["batch_size", "prefill_chunk_size", "kv_cache_size"]
    table = _read(path, [*keys, "is_prefill", "attn_prefill", "attn_decode", *reshape])
    is_prefill = pl.col("is_prefill").str.to_lowercase() == "true"
    prefill, decode = table.filter(is_prefill), table.filter(~is_prefill)
    p = _columns(prefill, ["prefill_chunk_size", "kv_cache_size"], ["attn_prefill"])
    d = _columns(decode, ["batch_size", "kv_cache_size"], ["attn_decode"])
    # KV writes measured on their own come from decode rows; those of prefill rows are not credible.
    extra = ["attn_kv_cache_save"] if "attn_kv_cache_save" in table.columns else []
    small = _columns(decode, ["batch_size"], [*reshape, *extra])
    large = _columns(prefill, ["prefill_chunk_size"], reshape)
    count = np.append(small[0], large[0][large[0] > small[0][-1]])
    write = np.append(np.sum(small[1:], axis=0), np.sum(large[1:], axis=0)[large[0] > small[0][-1]])
    if extra and small[3].any():
        last = small[3][-1]
        per_token = MODELS[recipe.model].kv_bytes_per_token / MODELS[recipe.model].num_layers
        slope = 2e3 * per_token / recipe.tensor_parallel / GPUS[recipe.gpu].memory_bandwidth
        write[len(small[0]) :] += last + slope * (count[len(small[0]) :] - small[0][-1])

    reduce = None
    if recipe.tensor_parallel > 1:
        if recipe.all_reduce is None:
            raise ConfigError(f"recipe {recipe.name}: all_reduce must name a file with tensor_parallel > 1")
        path = folder / recipe.all_reduce
        table = _read(path, ["size", "num_workers", "all_reduce", "all_reduce.min"])
        table = table.filter(pl.col("num_workers").cast(pl.Int64) == recipe.tensor_parallel)
        if table.is_empty():
            raise ConfigError(f"profile {path}: no rows with num_workers = {recipe.tensor_parallel}")
        size, low, median = _columns(table, ["size"], ["all_reduce.min", "all_reduce"])
        reduce = (size, low, median)
    return Profiles(
        tokens,
        np.sum(times[:-2], axis=0),
        times[-2],
        times[-1],
        (d[0], d[1], d[2]),
        (p[0], p[1], p[2]),
        (count, isotonic(write)),
        reduce,
    )
