"""Errors of rooflines against calibrated tables and a running engine: the tables of docs/hardware.md."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from kvgym.batch_time.calibration.report import CHECKED_BATCHES, roofline_ratios
from kvgym.batch_time.deployments.deployment import CalibratedHardware, RooflineHardware
from kvgym.batch_time.deployments.described import Roofline
from kvgym.batch_time.deployments.load import hardware_names, load_calibrated
from kvgym.batch_time.hardware.overhead import NO_ENGINE
from kvgym.validation.engines import Predictor, prompt_times, together_error, token_errors, token_times
from kvgym.validation.published import BATCHES, MODEL, Deployment


def _span(errors: Iterable[float]) -> str:
    """Return median and range of errors."""
    percent = 100 * np.fromiter(errors, float)
    return f"{np.median(percent):+.0f} % ({percent.min():+.0f} to {percent.max():+.0f})"


def roofline_of(hardware: CalibratedHardware) -> RooflineHardware:
    """Return the roofline of the same model on the same GPUs, with default settings."""
    made = Roofline(model=hardware.model, gpu=hardware.gpu, tp=hardware.tensor_parallel)
    return made.hardware(hardware.name)


def kernel_errors(hardware: CalibratedHardware) -> tuple[list[float], list[float]]:
    """Return roofline / tables - 1 of batches of decodes and of prompts, GPU kernels only."""
    ratios = roofline_ratios(hardware)
    errors: tuple[list[float], list[float]] = ([], [])
    for batch in CHECKED_BATCHES:
        if batch.label in ratios:
            errors[0 if batch.decodes else 1].append(1 / ratios[batch.label] - 1)
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


def engine_predictor(deployment: Deployment) -> Predictor:
    """Return the predictor of a deployment's roofline, with its own KV capacity and assumed overhead."""
    hardware = Roofline(model=MODEL, gpu=deployment.gpu, tp=deployment.tensor_parallel).hardware(MODEL)
    kernels = hardware.batch_time(engine=NO_ENGINE)
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


TABLES: Mapping[str, Callable[[], str]] = {"roofline kernels": kernel_table, "roofline engines": engine_table}
"""Tables of the page, by the name in their markers."""
