"""Errors of rooflines against calibrated tables and a running engine: the tables of docs/hardware.md."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from kvgym.batch_time.deployments.deployment import CalibratedHardware, Hardware, RooflineHardware
from kvgym.batch_time.deployments.described import Kernels, Roofline
from kvgym.batch_time.deployments.load import hardware_names, load_calibrated
from kvgym.batch_time.hardware.overhead import ENGINES, NO_ENGINE
from kvgym.batch_time.hardware.presets import GPUS
from kvgym.batch_time.models.roofline import ASSUMED_SHARES
from kvgym.batch_time.operators.files import operator_gpus
from kvgym.errors import ConfigError
from kvgym.servers.calibration.report import CHECKED_BATCHES
from kvgym.servers.validation.engines import (
    Predictor,
    prompt_times,
    together_error,
    token_errors,
    token_times,
)
from kvgym.servers.validation.published import BATCHES, MODEL, Deployment

Errors = tuple[list[float], list[float]]
"""Errors of batches of decodes and of prompts."""


def _span(errors: Iterable[float]) -> str:
    """Return median and range of errors."""
    percent = 100 * np.fromiter(errors, float)
    return f"{np.median(percent):+.0f} % ({percent.min():+.0f} to {percent.max():+.0f})"


def roofline_of(hardware: CalibratedHardware) -> RooflineHardware:
    """Return the roofline of the same model on the same GPUs, with default settings."""
    gpu = next(gpu for gpu in GPUS.values() if gpu.name == hardware.gpu.name)
    made = Roofline(model=hardware.model, gpu=gpu, tp=hardware.tensor_parallel)
    return made.hardware(hardware.name)


def kernel_errors(hardware: CalibratedHardware) -> Errors:
    """Return roofline / tables - 1 of batches of decodes and of prompts, GPU kernels only.

    Files have the small kernels of their time, so the roofline gets them too.
    """
    return _errors(roofline_of(hardware), hardware, layer_ms=ENGINES["vllm-2024"].per_layer_ms)


def _errors(
    roofline: RooflineHardware, measured: Hardware, *, prompts: bool = True, layer_ms: float = 0.0
) -> Errors:
    """Return roofline / measured - 1 of the batches that fit into the measured hardware's cache.

    Args:
        roofline: the predictions.
        measured: the measured kernels.
        prompts: whether batches of prompts are compared.
        layer_ms: milliseconds per layer of small kernels that the roofline gets.
    """
    errors: Errors = ([], [])
    predicted = roofline.batch_time(engine={"base_ms": 0.0, "per_layer_ms": layer_ms})
    expected = measured.batch_time(engine=NO_ENGINE)
    for batch in CHECKED_BATCHES:
        fits = batch.decodes * (batch.context + 1) <= measured.kv_capacity
        if fits and (batch.decodes or prompts):
            ratio = float(predicted(**batch.load()) / expected(**batch.load()))
            errors[0 if batch.decodes else 1].append(ratio - 1)
    return errors


def kernel_table() -> str:
    """Return the table of rooflines against the calibrated tables of the same models and GPUs."""
    rows = ["| hardware | KV tokens, file | roofline | error | decodes | prompts |", "| --- " * 6 + "|"]
    for name in hardware_names():
        hardware = load_calibrated(name)
        tokens = roofline_of(hardware).kv_capacity
        computed = hardware.kv_capacity_origin.startswith("computed")
        error = "the same formula" if computed else f"{100 * (tokens / hardware.kv_capacity - 1):+.0f} %"
        spans = " | ".join(map(_span, kernel_errors(hardware)))
        rows.append(f"| `{name}` | {hardware.kv_capacity:,} | {tokens:,} | {error} | {spans} |")
    return "\n".join(rows)


GPU_MODELS = (("llama3-8b", 1), ("qwen3-32b", 2), ("llama3-70b", 4))
"""Models and numbers of GPUs of :func:`gpu_table`, where they fit and their kernels were measured."""


def gpu_errors(gpu: str, model: str, tp: int, weights: str | None, *, assumed: bool = False) -> Errors:
    """Return roofline / measured kernels - 1; nothing if the model does not fit or its kernels were not measured.

    Args:
        gpu: a preset with operator tables.
        model: a preset.
        tp: number of GPUs.
        weights: their type; None = 16-bit.
        assumed: use the shares of a GPU that was not measured.
    """
    fields: dict[str, Any] = {"model": model, "gpu": gpu, "tp": tp, "weights": weights}
    shares = dict(zip(("compute_efficiency", "memory_efficiency"), ASSUMED_SHARES, strict=True))
    try:
        measured = Kernels(**fields).hardware("kernels")
        roofline = Roofline(**fields, **(shares if assumed else {})).hardware("roofline")
    except ConfigError:
        return [], []
    if "matrix" in measured.kind or "all-reduce" in measured.kind:
        return [], []
    return _errors(roofline, measured, prompts="attention" not in measured.kind)


def gpu_table() -> str:
    """Return the table of rooflines against the measured kernels of GPUs that have them."""
    rows = [
        "| GPU | weights | decodes | prompts | decodes, 60 and 80 % | prompts, 60 and 80 % |",
        "| --- " * 6 + "|",
    ]
    for gpu in operator_gpus():
        for weights in (None, "fp8"):
            spans = []
            for assumed in (False, True):
                found = [gpu_errors(gpu, *served, weights, assumed=assumed) for served in GPU_MODELS]
                parts = [[error for errors in found for error in errors[part]] for part in (0, 1)]
                spans += [_span(part) if part else "–" for part in parts]
            if spans[0] != "–":
                rows.append(f"| `{gpu}` | {weights or '16-bit'} | {' | '.join(spans)} |")
    return "\n".join(rows)


def engine_predictor(deployment: Deployment) -> Predictor:
    """Return the predictor of a deployment's roofline, with its own KV capacity and its default engine."""
    hardware = Roofline(model=MODEL, gpu=deployment.gpu, tp=deployment.tensor_parallel).hardware(MODEL)
    kernels = hardware.batch_time(engine={"base_ms": 0.0, "per_layer_ms": hardware.overhead().per_layer_ms})
    return Predictor(deployment, kernels, False, hardware.kv_capacity, hardware.all_engines, hardware.engine)


@functools.cache
def engine_table() -> str:
    """Return the table of rooflines against a running engine."""
    rows = ["| deployment | rows | token times | prompts of one request |", "| --- " * 4 + "|"]
    for deployment in BATCHES:
        source = engine_predictor(deployment)
        tokens = token_errors(token_times(source), source.overhead)
        prompts = [t for t in prompt_times(source) if t.measured.requests == 1 and t.measured.output == 128]
        spans = f"{_span(tokens)} | {_span(together_error(t, source.overhead) for t in prompts)}"
        rows.append(f"| {deployment.label} | {len(tokens)} | {spans} |")
    return "\n".join(rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "roofline gpus": gpu_table,
    "roofline kernels": kernel_table,
    "roofline engines": engine_table,
}
"""Tables of the page, by the name in their markers."""
