"""Read operator profiles in the CSV layout of the Vidur simulator.

There is one file of linear operators by tokens, one of attention, and one of collectives. Times are in columns
``time_stats.<operator>.median``, milliseconds, or ``<operator>_median_ms`` in a sampled attention file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvgym.batch_time.hardware.interpolation import Floats, isotonic
from kvgym.batch_time.models.ideal import IdealTimes
from kvgym.errors import ConfigError, shown
from kvgym.servers.calibration.plausibility import doubts
from kvgym.servers.calibration.profile_table import ProfileTable, by_key
from kvgym.servers.calibration.recipes import ProfileFile, Recipe

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
"""Token operators of one block, each once; a block also has two residual additions, ``add``, if norms lack them."""

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
        add: one residual addition, shape (n,); 0 = fused into the norms.
        embedding: input embedding, shape (n,).
        decode: decodes, context of each, time; each of shape (d,).
        prefill: chunk, cached tokens, time; each of shape (p,).
        save: tokens and time of output reshape plus separate KV writes; each of shape (s,).
        all_reduce: bytes, smallest and median time, each of shape (a,), or None.
        doubts: columns with implausible times, a line each.
    """

    tokens: Floats
    block: Floats
    add: Floats
    embedding: Floats
    decode: tuple[Floats, Floats, Floats]
    prefill: tuple[Floats, Floats, Floats]
    save: tuple[Floats, Floats]
    all_reduce: tuple[Floats, Floats, Floats] | None
    doubts: tuple[str, ...]


def read_profiles(folder: Path, recipe: Recipe) -> Profiles:
    """Read the profiles of one recipe.

    Args:
        folder: folder of the recipe's paths.
        recipe: names the files and rows.

    Raises:
        ConfigError: a file or column is missing, no rows fit the recipe, a cell is not a time, times are not
            milliseconds, or a row differs strongly from its neighbours; the message names file, line and column.
    """
    ideal = IdealTimes(recipe.gpu, recipe.served, recipe.tensor_parallel)
    found: list[str] = []
    tokens, *times = _linear(folder, recipe, ideal, found)
    decode, prefill, save = _attention(folder, recipe, ideal, found)
    reduce = None if recipe.profiles.all_reduce is None else _all_reduce(folder, recipe, ideal, found)
    return Profiles(
        tokens,
        np.sum(times[:-2], axis=0),
        times[-2],
        times[-1],
        decode,
        prefill,
        save,
        reduce,
        tuple(found),
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


def _linear(folder: Path, recipe: Recipe, ideal: IdealTimes, found: list[str]) -> list[Floats]:
    """Return tokens, and times of the operators, an addition and the embedding; add doubts to ``found``."""
    needed = ["num_tokens", *BLOCK_OPERATORS, "emb"]
    table = _of_model(_open(folder, recipe.profiles.linear, needed), recipe, mlp=True)
    tokens = table.numbers("num_tokens", least=1)
    fused = not table.has("add") or not table.numbers("add").any()
    times = []
    for name in (*BLOCK_OPERATORS, "add", "emb"):
        if name == "add" and fused:
            times.append(np.zeros(len(table)))
            continue
        ideal_ms = ideal.linear(name, tokens)
        times.append(table.times(name, [tokens], ideal_ms))
        found += doubts(table.path, name, times[-1], ideal_ms)
    return by_key([tokens], times)


Columns = tuple[Floats, Floats, Floats]


def _attention(
    folder: Path, recipe: Recipe, ideal: IdealTimes, found: list[str]
) -> tuple[Columns, Columns, tuple[Floats, Floats]]:
    """Return decode and prefill attention and what each token adds to them; add doubts to ``found``."""
    keys = ["batch_size", "prefill_chunk_size", "kv_cache_size", "is_prefill"]
    table = _open(folder, recipe.profiles.attention, [*keys, "attn_prefill", "attn_decode"])
    table = _of_model(table, recipe, mlp=False)
    table.one_value(("attention_backend", "block_size", "profile_method"))
    kinds = np.array([text.lower() for text in table.texts("is_prefill")])
    wrong = ~np.isin(kinds, ("true", "false"))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ConfigError(
            f"profile {table.path}: {table.place(row)}, column is_prefill: must be True or False, "
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

    ideal_ms = ideal.decode(decodes, context)
    ms = decode.times("attn_decode", [decodes, context], ideal_ms)
    found += doubts(table.path, "attn_decode", ms, ideal_ms, whole_batch=whole_batch)
    d = by_key([decodes, context], [ms])
    ideal_ms = ideal.prefill(chunk, cached)
    ms = prefill.times("attn_prefill", [chunk, cached], ideal_ms)
    found += doubts(table.path, "attn_prefill", ms, ideal_ms)
    p = by_key([chunk, cached], [ms])
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
        per_token = recipe.served.kv_bytes_per_token / recipe.model.num_layers / recipe.tensor_parallel
        kv_large = kv[-1] + 2e3 * per_token / recipe.gpu.memory_bandwidth * (large - small[-1])
    return np.append(small, large), isotonic(np.append(shape + kv, shape_large + kv_large))


def _all_reduce(folder: Path, recipe: Recipe, ideal: IdealTimes, found: list[str]) -> Columns:
    file = recipe.profiles.all_reduce
    assert file is not None
    table = _open(folder, file, ["size", "num_workers", "all_reduce", "all_reduce.min"])
    table = table.where({"num_workers": recipe.tensor_parallel})
    node = recipe.profiles.devices_per_node or recipe.tensor_parallel
    table = table.where({"collective": "all_reduce", "devices_per_node": node}, optional=True)
    table.one_value(("max_devices_per_node",))
    size = table.numbers("size", least=1)
    ideal_ms = ideal.all_reduce(size)
    low = table.times("all_reduce.min", [size], ideal_ms, faster=FASTEST_FACTOR)
    median = table.times("all_reduce", [size], ideal_ms)
    for name, ms in (("all_reduce.min", low), ("all_reduce", median)):
        found += doubts(table.path, name, ms, ideal_ms)
    size, low, median = by_key([size], [low, median])
    return size, low, median
