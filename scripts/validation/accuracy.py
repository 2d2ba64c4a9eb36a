"""The table of accuracy of docs/validation.md: errors by model, GPU and release, and what other simulators publish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from validation.closed_loops import Row, errors, fit, groups
from validation.tables import markdown

from kvgym.batch_time.hardware.overhead import ENGINES, EngineOverhead


class Release(NamedTuple):
    """An engine of measured rows, fitted by :func:`fit_table`.

    Attributes:
        rows: beginnings of the rows' engine, release and GPU.
        engine: the engine.
        fitted: model and GPU of the rows that it was fitted to.
    """

    rows: tuple[str, str, str]
    engine: EngineOverhead
    fitted: tuple[str, str]


RELEASES = (
    Release(("vllm", "", "h100"), ENGINES["vllm-2025"], ("llama3-70b", "h100-80gb")),
    Release(("vllm", "", ""), ENGINES["vllm-2025-h200"], ("llama3-70b", "h200")),
    Release(("trtllm", "1.0.0rc3", ""), ENGINES["tensorrt-llm-1.0"], ("llama3-8b", "h100-80gb")),
    Release(("trtllm", "", ""), ENGINES["tensorrt-llm-2025"], ("llama3-70b", "h200")),
    Release(("sglang", "0.5.9", ""), ENGINES["sglang-2026"], ("deepseek-v3", "b200")),
    Release(("sglang", "", ""), ENGINES["sglang-2025"], ("qwen3-235b-a22b", "h200")),
)
"""Engines of rows; the first that applies."""

PEERS: Mapping[str, tuple[float, float, float]] = {
    "Vidur, on the one model that it has profiles of": (2.5, 14, 4),
    "LLMServingSim 2": (19, 73, 22),
    "BLIS, trained on such servers": (20, 18, 20),
    "AIConfigurator": (14, 650, 21),
}
"""Median absolute error of mean E2E, TTFT and time between tokens, per cent, on vLLM servers of 2026 on H100.

By the comparison of one of them.
"""

STAGE_PEERS = "mean E2E: " + ", ".join(
    f"{name.partition(',')[0]} {own[0]:g} %" for name, own in PEERS.items()
)
"""What others publish for such load stages, in a line."""
LOG_PEERS = "mean E2E: LLMServingSim 2, on GPUs that it profiled, 0.5 to 2.2 %"
"""What others publish for such logs by request, in a line."""

SUMMARY: Mapping[str, Callable[[Row], bool]] = {
    **{
        f"dense on H100, TP {tp}": lambda row, tp=tp: _dense(row) and row.gpu == "h100-80gb" and row.tp == tp
        for tp in (1, 2, 4, 8)
    },
    "dense fp8 on H200": lambda row: _dense(row) and row.gpu == "h200",
    "dense fp8 on B200": lambda row: _dense(row) and row.gpu == "b200" and row.dtype == "fp8",
    "dense fp4 on B200": lambda row: _dense(row) and row.gpu == "b200" and row.dtype == "fp4",
    "mixtures": lambda row: not _dense(row),
}
"""Rows of all releases but one, by what they have in common."""

APART = ("sglang", "0.5.1")
"""Engine and release that the summary leaves out: its own kernels differ from all tables."""


def _dense(row: Row) -> bool:
    return not row.model.startswith(("deepseek", "qwen3-235b", "mixtral"))


def spread(values: Iterable[float]) -> str:
    """Return median and 90th percentile of absolute errors, and the signed median, per cent."""
    percent = 100 * np.fromiter(values, float)
    absolute = np.abs(percent)
    return f"{np.median(absolute):.1f}, {np.quantile(absolute, 0.9):.1f}, {np.median(percent):+.1f}"


def _cells(found: NDArray[np.float64]) -> list[str]:
    return [f"{len(found)}", *(spread(column) for column in found.T)]


GROUP = ("model", "GPU", "weights", "engine", "release", "ms per layer + per request")
HEADS = ("settings", "time per output token", "request latency", "TTFT")


def release_of(row: Row) -> Release:
    """Return the engine of a row, with what it was fitted to."""
    of = (row.engine, row.release, row.gpu)
    return next(
        release
        for release in RELEASES
        if all(text.startswith(part) for text, part in zip(of, release.rows, strict=True))
    )


def engine_of(row: Row) -> EngineOverhead:
    """Return the engine that a row is compared with."""
    return release_of(row).engine


def times_of(engine: EngineOverhead, *, fitted: bool) -> str:
    """Return milliseconds per layer and per request, and a mark if they were fitted to the rows of the line."""
    return f"{engine.per_layer_ms:g} + {engine.per_request_ms:g}" + (", fitted" if fitted else "")


def loop_lines(rows: Sequence[Row]) -> list[list[str]]:
    """Return a line of the table per model, GPU, type of weights and release."""
    lines = []
    for group, own in groups(rows):
        release = release_of(own[0])
        times = times_of(release.engine, fitted=release.fitted == group[:2])
        lines.append([*group, times, *_cells(errors(own, engine_of))])
    return lines


def summary_table(rows: Sequence[Row]) -> str:
    """Return errors of rows that have GPU and kind of model in common."""
    used = [row for row in rows if row.used and (row.engine, row.release) != APART]
    lines = []
    for name, chosen in SUMMARY.items():
        if own := [row for row in used if chosen(row)]:
            lines.append([name, *_cells(errors(own, engine_of))])
    return markdown(["what", *HEADS], lines)


def fit_table(rows: Sequence[Row]) -> str:
    """Return the times per layer and request that fit best, by group."""
    lines = []
    for group, own in groups(rows):
        found = fit(own, engine_of(own[0]))
        times = f"{found.engine.per_layer_ms:g} + {found.engine.per_request_ms:g}"
        lines.append([*group, times, *_cells(found.errors)])
    return markdown(
        ["model", "GPU", "weights", "engine", "release", "ms per layer + per request", *HEADS], lines
    )


def peers_table(own: Sequence[str]) -> str:
    """Return what other simulators reach on vLLM servers of 2026, and kvgym on the load stages.

    Args:
        own: kvgym's median errors of E2E, TTFT and time per token.
    """
    lines = [[name, *(f"{error:g} %" for error in found)] for name, found in PEERS.items()]
    lines.append(["LLMServingSim 2 by its own account, on GPUs that it profiled", "0.5 to 2.2 %", "", ""])
    lines.append(
        ["kvgym by its own account, on the fifteen stages below, which it chose from public logs", *own]
    )
    return markdown(["simulator", "E2E", "TTFT", "time between tokens"], lines)
