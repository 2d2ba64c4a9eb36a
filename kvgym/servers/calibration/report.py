"""Report of calibrations as Markdown: errors, comparison with Vidur, times of typical batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kvgym.batch_time.deployments.deployment import CalibratedHardware
from kvgym.batch_time.hardware.overhead import ENGINES, NO_ENGINE
from kvgym.batch_time.models.calibrated import COMPOSITIONS
from kvgym.batch_time.models.roofline import RooflineBatchTime


class Batch(NamedTuple):
    """A batch for the tables of the report.

    Attributes:
        label: description.
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

CHECKED_BATCHES: tuple[Batch, ...] = tuple(
    Batch(f"{n} decodes at {k:,}", n, k) for n in (1, 4, 16, 64) for k in (256, 1024)
) + tuple(Batch(f"prefill of {c:,}", chunks=((c, 0),)) for c in (128, 512, 1024, 2048, 4096))
"""Batches for the comparison with the roofline."""

ROOFLINE_BOUNDS = (0.6, 1.6)
"""Plausible range of the median ratio of a hardware file to the roofline."""

EFFECT = """\
Kernel times of batches of equal decodes over the measured grid that fit into the KV cache, `kvgym` against
`homogeneous`."""

KERNELS = "Milliseconds of GPU kernels by composition, without engine overhead."

VIDUR_HARDWARE = "llama2-70b-a100-tp2"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def error_table(files: Sequence[CalibratedHardware]) -> str:
    """Return the errors on held-out rows by hardware file and operator group."""
    rows = [
        [hardware.name, group, f"{e.median:.1%}", f"{e.p95:.1%}", f"{e.rows:,}"]
        for hardware in files
        for group, e in hardware.fit_error.items()
    ]
    return _table(["hardware", "operator group", "median", "95th percentile", "held-out rows"], rows)


def batch_table(hardware: CalibratedHardware) -> str:
    """Return milliseconds of GPU kernels for the typical batches, in every composition."""
    models = [hardware.batch_time(composition=name, engine=NO_ENGINE) for name in COMPOSITIONS]
    rows = [
        [batch.label, *(f"{1e3 * model(**batch.load()):.2f}" for model in models)]
        for batch in TYPICAL_BATCHES
    ]
    return _table(["batch", *(f"{name}, ms" for name in COMPOSITIONS)], rows)


def vidur_table(hardware: CalibratedHardware) -> str:
    """Return the times of the composition "vidur" and those of the Vidur simulator."""
    model = hardware.batch_time(composition="vidur")
    rows = []
    for batch, expected in VIDUR_EXAMPLES:
        time = 1e3 * model(**batch.load())
        rows.append([batch.label, f"{expected:,.1f}", f"{time:,.1f}", f"{time / expected - 1:+.1%}"])
    return _table(["batch", "Vidur, ms", "composition vidur, ms", "difference"], rows)


def monotone_effect(hardware: CalibratedHardware) -> tuple[float, float]:
    """Return the effect of pooling decodes on the kernels of batches of equal decodes.

    Compares the compositions "kvgym" and "homogeneous" over the measured decode grid, for batches that fit into the
    KV cache.

    Args:
        hardware: the hardware file.

    Returns:
        Median and largest relative difference of the batch time.
    """
    grid = hardware.tables.decode
    number, context = (axis.ravel() for axis in np.meshgrid(grid.rows, grid.columns, indexing="ij"))
    fits = number * (context + 1) <= hardware.kv_capacity
    load = {"num_decodes": number[fits], "decode_context": number[fits] * context[fits]}
    pooled, measured = (
        hardware.batch_time(composition=name, engine=NO_ENGINE)(**load) for name in ("kvgym", "homogeneous")
    )
    difference = np.abs(pooled / measured - 1)
    return float(np.median(difference)), float(difference.max())


def effect_table(files: Sequence[CalibratedHardware]) -> str:
    """Return :func:`monotone_effect` by hardware file."""
    rows = [[hardware.name, *(f"{value:.1%}" for value in monotone_effect(hardware))] for hardware in files]
    return _table(["hardware", "median", "largest"], rows)


def roofline_ratios(hardware: CalibratedHardware) -> dict[str, float]:
    """Return the batch time of the tables over a roofline's: 60 % of the FLOP/s, 80 % of the bandwidth.

    Args:
        hardware: the hardware file.

    Returns:
        Ratio by label for the batches of :data:`CHECKED_BATCHES` that fit into the KV cache; GPU time only.
    """
    model = hardware.batch_time(engine=NO_ENGINE)
    roofline = RooflineBatchTime(
        hardware.gpu,
        hardware.model,
        tensor_parallel=hardware.tensor_parallel,
        small_kernels_ms=ENGINES["vllm-2024"].per_layer_ms,  # of the age of these files
        overhead=0.0,
    )
    return {
        batch.label: float(model(**batch.load()) / roofline(**batch.load()))
        for batch in CHECKED_BATCHES
        if batch.decodes * (batch.context + 1) <= hardware.kv_capacity
    }


def roofline_table(files: Sequence[CalibratedHardware]) -> str:
    """Return the median, least and largest of :func:`roofline_ratios` by hardware file."""
    rows = []
    for hardware in files:
        ratios = roofline_ratios(hardware)
        least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        rows.append(
            [
                hardware.name,
                f"{np.median(list(ratios.values())):.2f}",
                f"{ratios[least]:.2f} ({least})",
                f"{ratios[most]:.2f} ({most})",
            ]
        )
    return _table(["hardware", "median", "least", "largest"], rows)


def capacity_table(files: Sequence[CalibratedHardware]) -> str:
    """Return the tokens of KV cache and their origin by hardware file."""
    rows = [[hardware.name, f"{hardware.kv_capacity:,}", hardware.kv_capacity_origin] for hardware in files]
    return _table(["hardware", "tokens", "origin"], rows)


def range_table(files: Sequence[CalibratedHardware]) -> str:
    """Return the largest measured value of each quantity by hardware file."""
    names = ("tokens", "decodes", "decode_context_each", "decode_context_all", "prefill_chunk")
    heads = (
        "tokens of a batch",
        "decodes",
        "context of each",
        "KV tokens of all",
        "prefill chunk",
        "cached before it",
    )
    rows = [
        [
            hardware.name,
            *(f"{hardware.valid_range[name][1]:,.0f}" for name in (*names, "prefill_cached_each")),
        ]
        for hardware in files
    ]
    return _table(["hardware", *heads], rows)


def report(files: Sequence[CalibratedHardware]) -> str:
    """Return the whole report as Markdown.

    Args:
        files: hardware files, each with its own section of batch times.
    """
    parts = ["## Errors on held-out rows", error_table(files)]
    parts += ["## Measured up to", range_table(files)]
    parts += ["## KV capacity", capacity_table(files)]
    parts += ["## Tables over roofline", roofline_table(files)]
    parts += ["## Effect of pooled decodes on the batch time", EFFECT, effect_table(files)]
    for hardware in files:
        if hardware.name == VIDUR_HARDWARE:
            parts += ["## Composition `vidur` against the Vidur simulator", vidur_table(hardware)]
    parts += ["## Kernel times", KERNELS]
    for hardware in files:
        parts += [f"### {hardware.name}", batch_table(hardware)]
    return "\n\n".join(parts) + "\n"
