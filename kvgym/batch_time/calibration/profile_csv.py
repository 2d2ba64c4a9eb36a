"""Read operator profiles in the CSV layout of the Vidur simulator.

There is one file of linear operators by tokens, one of attention, and one of collectives. Times are in columns
``time_stats.<operator>.median``, milliseconds, or ``<operator>_median_ms`` in a sampled attention file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvgym.batch_time.calibration.profile_table import ProfileTable, by_key
from kvgym.batch_time.calibration.recipes import ProfileFile, Recipe
from kvgym.batch_time.hardware.interpolation import Floats, isotonic
from kvgym.batch_time.models.ideal import IdealTimes
from kvgym.errors import ConfigError, shown

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
"""Token operators of one block, each once; a block also has two residual additions (``add``)."""

RESHAPES = ("attn_input_reshape", "attn_output_reshape")
"""Columns of an attention file that may be missing or 0."""

FASTEST_FACTOR = 4.0
"""How many times faster than its neighbours a minimum all-reduce time may be; it also bounds all smaller sizes."""

DEGREE = "num_tensor_parallel_workers"


@dataclass(frozen=True)
class Profiles:
    """Measurements of one model, milliseconds; keys ascend, and repeated measurements are replaced by their median.

    Attributes:
        tokens: tokens, shape (n,).
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


def read_profiles(folder: Path, recipe: Recipe) -> Profiles:
    """Read the profiles of one recipe.

    Args:
        folder: folder of the recipe's paths.
        recipe: names the files and rows.

    Raises:
        ConfigError: a file or column is missing, no rows fit the recipe, a cell is not a time, times are not
            milliseconds, or a row differs strongly from its neighbours; the message names file, line and column.
    """
    ideal = IdealTimes(recipe.gpu, recipe.model, recipe.tensor_parallel)
    tokens, *times = _linear(folder, recipe, ideal)
    decode, prefill, save = _attention(folder, recipe, ideal)
    return Profiles(
        tokens,
        np.sum(times[:-2], axis=0),
        times[-2],
        times[-1],
        decode,
        prefill,
        save,
        None if recipe.profiles.all_reduce is None else _all_reduce(folder, recipe, ideal),
    )


def _open(folder: Path, file: ProfileFile, needed: list[str]) -> ProfileTable:
    table = ProfileTable(folder / file.file)
    table.require(needed)
    return table.where(file.where)


def _of_model(table: ProfileTable, recipe: Recipe, *, mlp: bool) -> ProfileTable:
    """Return the rows of the recipe's model shape and tensor parallelism."""
    model = recipe.model
    shape = {"n_embd": model.hidden, "n_q_head": model.num_heads, "n_kv_head": model.num_kv_heads}
    table = table.where({**shape, **({"n_expanded_embd": model.ffn} if mlp else {})}, optional=True)
    if not table.has(DEGREE):
        if recipe.profiles.any_tensor_parallel:
            return table
        raise ConfigError(
            f"profile {table.path}: no column {DEGREE} (or tp), so the degree is unknown; if all rows were measured at "
            f"{recipe.tensor_parallel}, set in the recipe: profiles: {{any_tensor_parallel: true}}"
        )
    return table.where({DEGREE: recipe.tensor_parallel})


def _linear(folder: Path, recipe: Recipe, ideal: IdealTimes) -> list[Floats]:
    operators = [*BLOCK_OPERATORS, "add", "emb"]
    table = _of_model(_open(folder, recipe.profiles.linear, ["num_tokens", *operators]), recipe, mlp=True)
    tokens = table.numbers("num_tokens", least=1)
    times = [table.times(name, [tokens], ideal.linear(name, tokens)) for name in operators]
    return by_key([tokens], times)


Columns = tuple[Floats, Floats, Floats]


def _attention(
    folder: Path, recipe: Recipe, ideal: IdealTimes
) -> tuple[Columns, Columns, tuple[Floats, Floats]]:
    keys = ["batch_size", "prefill_chunk_size", "kv_cache_size", "is_prefill"]
    table = _open(folder, recipe.profiles.attention, [*keys, "attn_prefill", "attn_decode"])
    table = _of_model(table, recipe, mlp=False)
    table.one_value(("attention_backend", "block_size", "profile_method"))
    kinds = np.array([text.lower() for text in table.texts("is_prefill")])
    wrong = ~np.isin(kinds, ("true", "false"))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ConfigError(
            f"profile {table.path}: line {table.line(row)}, column is_prefill: must be True or False, "
            f"got {shown(table.texts('is_prefill')[row])}"
        )
    whole_batch = recipe.profiles.kv_cache_size == "batch"

    decode = table.filter(kinds == "false")
    decodes, context = decode.numbers("batch_size", least=1), decode.numbers("kv_cache_size")
    if whole_batch:
        context = np.floor(context / decodes) - 1
        decode = decode.filter(context >= 0)
        decodes, context = decodes[context >= 0], context[context >= 0]
    prefill = table.filter(kinds == "true")
    prefill = prefill.filter(prefill.numbers("batch_size", least=1) == 1)
    chunk, cached = prefill.numbers("prefill_chunk_size", least=1), prefill.numbers("kv_cache_size")
    if whole_batch:
        cached = cached - chunk
        prefill = prefill.filter(cached >= 0)
        chunk, cached = chunk[cached >= 0], cached[cached >= 0]
    for name, rows in (("decodes", decode), ("prefills of one request", prefill)):
        if len(rows) < 2:
            raise ConfigError(f"profile {table.path}: {len(rows)} rows of {name}; at least 2 are needed")

    d = by_key(
        [decodes, context], [decode.times("attn_decode", [decodes, context], ideal.decode(decodes, context))]
    )
    p = by_key(
        [chunk, cached], [prefill.times("attn_prefill", [chunk, cached], ideal.prefill(chunk, cached))]
    )
    save = _save(decode, decodes, prefill, chunk, recipe, ideal)
    return (d[0], d[1], d[2]), (p[0], p[1], p[2]), save


def _save(
    decode: ProfileTable,
    decodes: Floats,
    prefill: ProfileTable,
    chunk: Floats,
    recipe: Recipe,
    ideal: IdealTimes,
) -> tuple[Floats, Floats]:
    """Return tokens and milliseconds of reshapes plus separately measured KV writes.

    KV writes come from decode rows, as those of prefill rows are implausible; beyond the decodes they are extrapolated
    at the memory bandwidth.
    """

    def total(table: ProfileTable, names: tuple[str, ...], tokens: Floats, ideal_ms: Floats) -> Floats:
        found = [table.small_times(name, tokens, ideal_ms) for name in names if table.has(name)]
        result: Floats = np.sum([np.zeros(len(table)), *found], axis=0)
        return result

    shape = total(decode, RESHAPES, decodes, ideal.reshape(decodes))
    write = total(decode, ("attn_kv_cache_save",), decodes, ideal.kv_write(decodes))
    small, shape, kv = by_key([decodes], [shape, write])
    large, shape_large = by_key([chunk], [total(prefill, RESHAPES, chunk, ideal.reshape(chunk))])
    beyond = large > small[-1]
    large, shape_large = large[beyond], shape_large[beyond]
    kv_large = np.zeros(len(large))
    if kv.any():
        per_token = recipe.model.kv_bytes_per_token / recipe.model.num_layers / recipe.tensor_parallel
        kv_large = kv[-1] + 2e3 * per_token / recipe.gpu.memory_bandwidth * (large - small[-1])
    return np.append(small, large), isotonic(np.append(shape + kv, shape_large + kv_large))


def _all_reduce(folder: Path, recipe: Recipe, ideal: IdealTimes) -> Columns:
    file = recipe.profiles.all_reduce
    assert file is not None
    table = _open(folder, file, ["size", "num_workers", "all_reduce", "all_reduce.min"])
    table = table.where({"num_workers": recipe.tensor_parallel})
    node = recipe.profiles.devices_per_node or recipe.tensor_parallel
    table = table.where({"collective": "all_reduce", "devices_per_node": node}, optional=True)
    table.one_value(("max_devices_per_node",))
    size = table.numbers("size", least=1)
    low = table.times("all_reduce.min", [size], ideal.all_reduce(size), faster=FASTEST_FACTOR)
    times = [low, table.times("all_reduce", [size], ideal.all_reduce(size))]
    size, low, median = by_key([size], times)
    return size, low, median
