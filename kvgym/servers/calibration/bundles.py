"""Fit operator tables to the profile bundle of one model on one GPU, in the form of LLMServingSim's profiles.

A bundle is a folder of three CSV files with times in microseconds: ``*.dense.csv`` (layer, tokens), ``*.attention.csv``
(prefill_chunk, kv_prefill, n_decode, kv_decode) and ``*.per_sequence.csv`` (layer, sequences); docs/calibration.md has
the layers. Its matrix products are single shapes; other models get the nearest shape, scaled by its weights.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.shapes import ModelShape
from kvgym.batch_time.operators.tables import Grid, OperatorTables
from kvgym.errors import ConfigError
from kvgym.servers.calibration.operators import SEED, Errors, complete, fit_grid
from kvgym.servers.calibration.profile_table import ProfileTable

PRODUCTS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
"""Matrix products of a layer."""

ELEMENTWISE = {"act_fn": 1, "layernorm": 2, "rotary_emb": 1}
"""Element-wise kernels and how often a layer runs each; norms include the residual addition."""

PER_BATCH = ("embedding", "final_layernorm")
"""Kernels that run once per batch."""

PER_SEQUENCE = ("lm_head", "sampler")
"""Kernels that depend on the number of requests; the sampler may be missing."""


def _rows(folder: Path, name: str, columns: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return the columns of the bundle's file of a name; all but ``layer`` are numbers.

    Raises:
        ConfigError: no or several such files, a column is missing, or a value is not a number or not positive.
    """
    found = sorted(folder.glob(f"*{name}.csv"))
    if len(found) != 1:
        raise ConfigError(f"{folder}: {len(found)} files *{name}.csv; a profile bundle has one")
    table = ProfileTable(found[0])
    table.require(columns)
    return {
        name: np.array(table.texts(name))
        if name == "layer"
        else table.numbers(name, least=0.0 if name == "time_us" else None, above=True)
        for name in columns
    }


def fit_bundle(
    folder: Path, model: ModelShape, name: str, *, measured: str, source: str, date: str
) -> OperatorTables:
    """Fit the tables of a GPU to one model.

    Args:
        folder: folder of the bundle.
        model: shape of the profiled model, on one GPU.
        name: preset of the GPU.
        measured: what was measured, in a few words.
        source: where the files come from, and their licence.
        date: day of the fit, ISO 8601.

    Raises:
        ConfigError: a wrong or missing file (see the module), or a missing layer.
    """
    rng, errors = np.random.default_rng(SEED), Errors()
    dense = _rows(folder, "dense", ("layer", "tokens", "time_us"))
    head = _rows(folder, "per_sequence", ("layer", "sequences", "time_us"))
    width, kv_width = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    shapes = {
        "qkv_proj": (width + 2 * kv_width, model.hidden),
        "o_proj": (model.hidden, width),
        "gate_up_proj": (2 * model.ffn, model.hidden),
        "down_proj": (model.hidden, model.ffn),
    }
    products: dict[tuple[Any, ...], Grid] = {}
    for layer in PRODUCTS:
        products[("bf16", *shapes[layer])] = _curve(
            dense, layer, "tokens", folder, rng, errors, "matmul bf16"
        )
    rows = [_curve(head, layer, "sequences", folder) for layer in PER_SEQUENCE if layer in head["layer"]]
    if not rows:
        raise ConfigError(f"{folder}: *per_sequence.csv has no layer lm_head")
    products["bf16", model.vocab, model.hidden] = _sum(rows, [1.0] * len(rows))
    parts = [_curve(dense, layer, "tokens", folder) for layer in (*ELEMENTWISE, *PER_BATCH)]
    shares = [*map(float, ELEMENTWISE.values()), *[1 / model.num_layers] * len(PER_BATCH)]
    key = ("bf16", model.head_dim, model.num_heads, model.num_kv_heads)
    decode, prefill = _attention(folder, rng, errors)
    return OperatorTables(
        name=name,
        measured=measured,
        source=source,
        date=date,
        fit_error=errors.summary(),
        products=products,
        decode={key: decode},
        prefill={key: prefill},
        elementwise={model.hidden: _sum(parts, shares)},
    )


def _curve(
    rows: dict[str, NDArray[Any]],
    layer: str,
    column: str,
    folder: Path,
    rng: np.random.Generator | None = None,
    errors: Errors | None = None,
    group: str = "",
) -> Grid:
    chosen = rows["layer"] == layer
    if not chosen.any():
        raise ConfigError(f"{folder}: no measurements of layer {layer}")
    x, ms = rows[column][chosen], rows["time_us"][chosen] * 1e-3
    if rng is None or errors is None:
        order = np.argsort(x)
        return Grid((x[order].astype(np.float64),), ms[order])
    grid = fit_grid([x], ms, rng, between=(0,), report=partial(errors.add, group))
    return complete(grid.axes, grid.ms)


def _sum(grids: list[Grid], shares: list[float]) -> Grid:
    """Return a weighted sum of curves on the union of their nodes."""
    nodes = np.unique(np.concatenate([grid.axes[0] for grid in grids]))
    total = sum(
        share * np.interp(nodes, grid.axes[0], grid.ms) for grid, share in zip(grids, shares, strict=True)
    )
    return Grid((nodes,), np.asarray(total, np.float64))


def _attention(folder: Path, rng: np.random.Generator, errors: Errors) -> tuple[Grid, Grid]:
    """Return decode attention and prefill attention."""
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    chunk, cached, decodes, context, ms = _rows(folder, "attention", names).values()
    ms = ms * 1e-3
    alone = chunk == 0
    decode = fit_grid(
        [decodes[alone], context[alone]],
        ms[alone],
        rng,
        between=(0, 1),
        report=partial(errors.add, "decode attention"),
    )
    fresh = (decodes == 0) & (cached == 0)
    single = fit_grid(
        [chunk[fresh]],
        ms[fresh],
        rng,
        between=(0,),
        report=partial(errors.add, "prefill attention"),
    )
    return complete(decode.axes, decode.ms), complete(single.axes, single.ms)
