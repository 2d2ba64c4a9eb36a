"""What a calibration amounts to, as Markdown: errors, comparison with Vidur, times of typical batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kvgym.batch_time.hardware import Hardware
from kvgym.batch_time.profile import COMPOSITIONS


class Batch(NamedTuple):
    """A batch for the tables of the report.

    Attributes:
        label: what it is.
        decodes: number of decodes.
        context: tokens cached before each decode.
        chunks: (chunk length, tokens cached before it) of each prefill.
    """

    label: str
    decodes: int = 0
    context: int = 0
    chunks: tuple[tuple[int, int], ...] = ()

    def load(self) -> dict[str, int]:
        """Return the fields of the load."""
        return {
            "num_prefills": len(self.chunks),
            "prefill_tokens": sum(c for c, _ in self.chunks),
            "prefill_context": sum(k for _, k in self.chunks),
            "prefill_squares": sum(c * c for c, _ in self.chunks),
            "prefill_products": sum(c * k for c, k in self.chunks),
            "num_decodes": self.decodes,
            "decode_context": self.decodes * self.context,
        }


TYPICAL_BATCHES: tuple[Batch, ...] = (
    Batch("1 decode at 32", 1, 32),
    Batch("1 decode at 2,048", 1, 2048),
    Batch("8 decodes at 512", 8, 512),
    Batch("32 decodes at 1,024", 32, 1024),
    Batch("64 decodes at 256", 64, 256),
    Batch("128 decodes at 512", 128, 512),
    Batch("prefill of 512", chunks=((512, 0),)),
    Batch("prefill of 4,096", chunks=((4096, 0),)),
    Batch("4 prefills of 256", chunks=((256, 0),) * 4),
    Batch("32 decodes at 1,024 and a chunk of 480 after 1,024", 32, 1024, ((480, 1024),)),
)
"""Batches of the report's table."""

VIDUR_EXAMPLES: tuple[tuple[Batch, float], ...] = (
    (TYPICAL_BATCHES[0], 57.1),
    (TYPICAL_BATCHES[3], 66.2),
    (TYPICAL_BATCHES[6], 195.6),
    (TYPICAL_BATCHES[7], 1497.7),
)
"""Milliseconds that the Vidur simulator predicts for Llama-2-70B on two A100."""

VIDUR_HARDWARE = "llama2-70b-a100-tp2"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def error_table(files: Sequence[Hardware]) -> str:
    """Return the errors on held-out rows by hardware file and operator group."""
    rows = [
        [hardware.name, group, f"{e.median:.1%}", f"{e.p95:.1%}", f"{e.rows:,}"]
        for hardware in files
        for group, e in hardware.fit_error.items()
    ]
    return _table(["hardware", "operator group", "median", "95th percentile", "held-out rows"], rows)


def batch_table(hardware: Hardware) -> str:
    """Return milliseconds of the typical batches in every composition."""
    models = [hardware.batch_time(composition=name) for name in COMPOSITIONS]
    rows = [
        [batch.label, *(f"{1e3 * model(**batch.load()):.2f}" for model in models)]
        for batch in TYPICAL_BATCHES
    ]
    return _table(["batch", *(f"{name}, ms" for name in COMPOSITIONS)], rows)


def vidur_table(hardware: Hardware) -> str:
    """Return the composition "vidur" beside what the Vidur simulator predicts."""
    model = hardware.batch_time(composition="vidur")
    rows = []
    for batch, expected in VIDUR_EXAMPLES:
        time = 1e3 * model(**batch.load())
        rows.append([batch.label, f"{expected:,.1f}", f"{time:,.1f}", f"{time / expected - 1:+.1%}"])
    return _table(["batch", "Vidur, ms", "composition vidur, ms", "difference"], rows)


def monotone_effect(hardware: Hardware) -> tuple[float, float]:
    """Return what pooling the decodes does to whole batches of equal decodes.

    Compares the compositions "kvgym" and "homogeneous" over the measured decode grid, as far as the KV cache
    holds the batch.

    Args:
        hardware: the hardware file.

    Returns:
        Median and largest relative difference of the batch time.
    """
    grid = hardware.tables.decode
    number, context = (axis.ravel() for axis in np.meshgrid(grid.rows, grid.columns, indexing="ij"))
    fits = number * (context + 1) <= hardware.kv_capacity
    load = {"num_decodes": number[fits], "decode_context": number[fits] * context[fits]}
    pooled, measured = (hardware.batch_time(composition=name)(**load) for name in ("kvgym", "homogeneous"))
    difference = np.abs(pooled / measured - 1)
    return float(np.median(difference)), float(difference.max())


def effect_table(files: Sequence[Hardware]) -> str:
    """Return :func:`monotone_effect` by hardware file."""
    rows = [[hardware.name, *(f"{value:.1%}" for value in monotone_effect(hardware))] for hardware in files]
    return _table(["hardware", "median", "largest"], rows)


def report(files: Sequence[Hardware]) -> str:
    """Return the whole report as Markdown.

    Args:
        files: hardware files, each with its own section of batch times.
    """
    parts = ["## Errors on held-out rows", error_table(files)]
    parts += ["## Effect of pooled decodes on the batch time", effect_table(files)]
    for hardware in files:
        if hardware.name == VIDUR_HARDWARE:
            parts += ["## Composition `vidur` against the Vidur simulator", vidur_table(hardware)]
    for hardware in files:
        parts += [f"## Batch times of {hardware.name}", batch_table(hardware)]
    return "\n\n".join(parts) + "\n"
