"""Calibrated operator tables in the form of a hardware file; times in milliseconds per layer."""

from __future__ import annotations

from itertools import pairwise

from pydantic import ConfigDict, Field, model_validator

from kvgym.utils.reading import Description


class _Table(Description):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _ascending(name: str, values: tuple[float, ...]) -> None:
    if len(values) < 2 or not all(a < b for a, b in pairwise(values)):
        raise ValueError(f"{name} must hold at least two strictly ascending values")


def _lengths(expected: int, **columns: tuple[float, ...]) -> None:
    for name, column in columns.items():
        if len(column) != expected:
            raise ValueError(f"{name} has {len(column)} values where {expected} are needed")
        if any(not 0 <= v < float("inf") for v in column):
            raise ValueError(f"{name} must be finite and >= 0")


class LinearTable(_Table):
    """Operators with times that depend only on the tokens of the batch.

    Attributes:
        tokens: tokens in the batch, ascending, shape (n,).
        block_ms: projections, MLP, norms, rotary embedding and activation of one layer, shape (n,).
        add_ms: one residual addition, shape (n,); a block of the Llama family has two.
        save_ms: reshape of the attention output of one layer and, unless included in the attention times, the writes of
            new KV entries, shape (n,).
        embedding_ms: the input embedding, once per batch, shape (n,).
    """

    tokens: tuple[float, ...]
    block_ms: tuple[float, ...]
    add_ms: tuple[float, ...]
    save_ms: tuple[float, ...]
    embedding_ms: tuple[float, ...]

    @model_validator(mode="after")
    def _check(self) -> LinearTable:
        _ascending("tokens", self.tokens)
        _lengths(
            len(self.tokens),
            block_ms=self.block_ms,
            add_ms=self.add_ms,
            save_ms=self.save_ms,
            embedding_ms=self.embedding_ms,
        )
        return self


class SurfaceTable(_Table):
    """Attention of one layer on a grid of two quantities.

    Attributes:
        rows: first quantity (decodes in the batch, or prefill chunk), ascending, shape (n,).
        columns: second quantity (context per decode, KV tokens of all decodes, or cached tokens), shape (m,).
        ms: shape (n, m), non-decreasing along both axes.
    """

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    ms: tuple[tuple[float, ...], ...]

    @model_validator(mode="after")
    def _check(self) -> SurfaceTable:
        _ascending("rows", self.rows)
        _ascending("columns", self.columns)
        if len(self.ms) != len(self.rows):
            raise ValueError(f"ms has {len(self.ms)} rows where {len(self.rows)} are needed")
        for i, row in enumerate(self.ms):
            _lengths(len(self.columns), **{f"ms[{i}]": row})
            if any(b < a for a, b in pairwise(row)):
                raise ValueError(f"ms[{i}] must not fall along the columns")
            if i and any(b < a for a, b in zip(self.ms[i - 1], row, strict=True)):
                raise ValueError(f"ms[{i}] must not lie below ms[{i - 1}]")
        return self


class PrefillTable(_Table):
    """Prefill attention of one layer as a sum over requests.

    A chunk of c tokens after k cached ones costs ``c * own(c) + k * cached(c)``; ``launch_ms`` is added once per
    batch. ``own`` and ``cached`` are piecewise linear between chunk lengths, concave and non-decreasing, and continue
    along their last segment.

    Attributes:
        launch_ms: milliseconds per layer in a batch with a prefill.
        chunk: chunk lengths, ascending from 0, shape (n,).
        own_ns: nanoseconds per token of the chunk, shape (n,).
        cached_ns: nanoseconds per cached token, shape (n,).
    """

    launch_ms: float = Field(ge=0)
    chunk: tuple[float, ...]
    own_ns: tuple[float, ...]
    cached_ns: tuple[float, ...]

    @model_validator(mode="after")
    def _check(self) -> PrefillTable:
        _ascending("chunk", self.chunk)
        if self.chunk[0] != 0:
            raise ValueError("chunk must begin with 0")
        _lengths(len(self.chunk), own_ns=self.own_ns, cached_ns=self.cached_ns)
        for name, values in (("own_ns", self.own_ns), ("cached_ns", self.cached_ns)):
            for (x0, y0), (x1, y1) in pairwise(zip(self.chunk, values, strict=True)):
                if y1 < y0 or y0 * x1 - y1 * x0 < -1e-3 * y1 * x1:
                    raise ValueError(f"{name} must not fall, nor rise faster than the chunk, at chunk {x1:g}")
        return self


class AllReduceTable(_Table):
    """All-reduce over the tensor-parallel GPUs; a layer has two.

    Attributes:
        size: bytes, ascending, shape (n,).
        kernel_ms: lower envelope of the measurements: the transfer without waiting for another GPU, shape (n,).
        median_ms: the measured medians, with waiting; not always increasing, shape (n,).
    """

    size: tuple[float, ...]
    kernel_ms: tuple[float, ...]
    median_ms: tuple[float, ...]

    @model_validator(mode="after")
    def _check(self) -> AllReduceTable:
        _ascending("size", self.size)
        _lengths(len(self.size), kernel_ms=self.kernel_ms, median_ms=self.median_ms)
        return self


class HeadEstimate(_Table):
    """Estimate of the LM head, which is not measured: the maximum of reading its weights and computing its rows.

    Attributes:
        weights_ms: milliseconds to read the weights.
        row_ms: milliseconds of computation per row of logits (one row per request).
    """

    weights_ms: float = Field(ge=0)
    row_ms: float = Field(ge=0)


class ProfileTables(_Table):
    """All tables of the profile model.

    Attributes:
        num_layers: transformer blocks.
        bytes_per_token: bytes that one token adds to an all-reduce: hidden width times bytes per entry.
        linear: operators by tokens.
        decode: decode attention by (decodes, context of each), homogeneous batches.
        decode_pooled: decode attention by (decodes, KV tokens of all decodes).
        prefill: prefill attention by (chunk, cached tokens), one request.
        prefill_pooled: prefill attention as a sum over requests.
        all_reduce: None without tensor parallelism.
        lm_head: estimate of the LM head.
    """

    num_layers: int = Field(gt=0)
    bytes_per_token: float = Field(gt=0)
    linear: LinearTable
    decode: SurfaceTable
    decode_pooled: SurfaceTable
    prefill: SurfaceTable
    prefill_pooled: PrefillTable
    all_reduce: AllReduceTable | None = None
    lm_head: HeadEstimate
