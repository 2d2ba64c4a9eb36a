"""Predictions of batch times for the published measurements, and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time import Hardware, RooflineBatchTime, load_hardware
from kvgym.batch_time.hardware.overhead import NO_ENGINE, EngineOverhead
from kvgym.servers.validation.published import BATCHES, MODEL, REFERENCE, Deployment, MeasuredBatch
from kvgym.simulator.batch_time import BatchTimeModel

CONSTANTS: Mapping[str, EngineOverhead] = {
    "constant 3 ms": EngineOverhead(base_ms=3.0),
    "constant 10 ms": EngineOverhead(base_ms=10.0),
}
"""Constant overheads of no engine, shown for comparison."""

COMPARED = ("vllm-2023", "early-2024", "vllm-2024", "vllm-2026", NO_ENGINE)
"""Engines that these measurements of 2023 and 2024 are compared with; the others are of GPUs that came later."""


def _compared(hardware: Hardware) -> dict[str, EngineOverhead]:
    """Return the engines of :data:`COMPARED`, and the hardware's own."""
    return {
        name: engine
        for name, engine in hardware.all_engines.items()
        if name in (*COMPARED, *hardware.engines)
    }


@dataclass(frozen=True)
class Predictor:
    """Predictor of a deployment's batches.

    Attributes:
        deployment: the GPUs.
        kernels: batch time without any overhead.
        calibrated: whether ``kernels`` comes from measured operators; else it is a roofline.
        kv_capacity: tokens of KV cache; None = not known.
        engines: overheads by name, those of a hardware file and ``"none"``.
        engine: the default engine.
    """

    deployment: Deployment
    kernels: BatchTimeModel
    calibrated: bool
    kv_capacity: int | None
    engines: Mapping[str, EngineOverhead]
    engine: str

    @property
    def overhead(self) -> EngineOverhead:
        """The overhead of :attr:`engine`."""
        return self.engines[self.engine]


class TokenTime(NamedTuple):
    """A measured token time and the predicted time of its GPU kernels.

    Attributes:
        measured: the row.
        requests: size of the batch as it ran.
        kernels_ms: mean over its decode iterations, milliseconds.
    """

    measured: MeasuredBatch
    requests: int
    kernels_ms: float


class PromptTime(NamedTuple):
    """A measured prompt time and the predicted time of its GPU kernels.

    Attributes:
        measured: the row.
        together_ms: milliseconds of all prompts in one batch.
        alone_ms: milliseconds of one of them in a batch of its own.
    """

    measured: MeasuredBatch
    together_ms: float
    alone_ms: float


def predictor(deployment: Deployment) -> Predictor:
    """Return the predictor of a deployment: its hardware file, or a roofline if it has none.

    A deployment without a file, or with a file without an engine, borrows the engines of :data:`REFERENCE`.
    """
    reference = load_hardware(REFERENCE.hardware)
    if not deployment.hardware:
        roofline = RooflineBatchTime(
            deployment.gpu, MODEL, tensor_parallel=deployment.tensor_parallel, overhead=0.0
        )
        return Predictor(deployment, roofline, False, None, _compared(reference), reference.engine)
    hardware = load_hardware(deployment.hardware)
    source = hardware if hardware.engine != NO_ENGINE else reference
    kernels = hardware.batch_time(engine=NO_ENGINE)
    return Predictor(deployment, kernels, True, hardware.kv_capacity, _compared(source), source.engine)


def decode_ms(model: BatchTimeModel, requests: int, contexts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return milliseconds of decode iterations of equal requests.

    Args:
        model: the batch time.
        requests: size of the batch.
        contexts: int64 (n,), tokens cached before each iteration.
    """
    return 1e3 * np.asarray(model(num_decodes=requests, decode_context=requests * contexts), np.float64)


def prompt_ms(model: BatchTimeModel, requests: int, prompt: int) -> float:
    """Return milliseconds of one batch of equal prompts of ``prompt`` tokens."""
    tokens = requests * prompt
    return 1e3 * float(model(num_prefills=requests, prefill_tokens=tokens, prefill_squares=tokens * prompt))


def held(row: MeasuredBatch, kv_capacity: int | None) -> int | None:
    """Return how many of a row's requests decode together; None = not known.

    All, if they ran as one batch; else as many as fit into the memory to the end of their outputs.
    """
    if row.whole:
        return row.requests
    return None if kv_capacity is None else min(row.requests, kv_capacity // (row.prompt + row.output))


def token_times(source: Predictor) -> list[TokenTime]:
    """Return the measured token times of a deployment; rows of unknown batch size are left out.

    The context grows from the prompt on, through as many decodes as the end-to-end time allows: long outputs ended
    early.
    """
    found = []
    for row in BATCHES[source.deployment]:
        requests = held(row, source.kv_capacity)
        if requests is None:
            continue
        decodes = min(row.output - 1, round(row.decodes))
        times = decode_ms(source.kernels, requests, row.prompt + np.arange(decodes))
        found.append(TokenTime(row, requests, float(times.mean())))
    return found


def prompt_times(source: Predictor) -> list[PromptTime]:
    """Return the measured prompt times of a deployment; rows with prompts that did not fit are left out."""
    found = []
    for row in BATCHES[source.deployment]:
        fits = source.kv_capacity is not None and row.requests * row.prompt <= source.kv_capacity
        if row.whole or fits:
            together = prompt_ms(source.kernels, row.requests, row.prompt)
            found.append(PromptTime(row, together, prompt_ms(source.kernels, 1, row.prompt)))
    return found


def token_errors(times: Sequence[TokenTime], overhead: EngineOverhead) -> NDArray[np.float64]:
    """Return predicted / measured - 1 of each token time, shape (n,)."""
    return np.array(
        [(t.kernels_ms + overhead.milliseconds(t.requests)) / t.measured.token_ms - 1 for t in times]
    )


def together_error(time: PromptTime, overhead: EngineOverhead) -> float:
    """Return predicted / measured - 1 where the prompts are one batch."""
    predicted = time.together_ms + overhead.milliseconds(time.measured.requests)
    return predicted / time.measured.prompt_ms - 1


def in_turn_error(time: PromptTime, overhead: EngineOverhead) -> float:
    """Return predicted / measured - 1 where the prompts are processed one after another."""
    predicted = time.measured.requests * (time.alone_ms + overhead.milliseconds(1))
    return predicted / time.measured.prompt_ms - 1


def fit_to_tokens(times: Sequence[TokenTime]) -> EngineOverhead:
    """Return the overhead ≥ 0 with the least sum of squared relative errors of the token times."""
    from scipy.optimize import nnls

    measured = np.array([t.measured.token_ms for t in times])
    columns = np.column_stack([np.ones(len(times)), [t.requests for t in times]])
    missing = measured - np.array([t.kernels_ms for t in times])
    solution, _ = nnls(columns / measured[:, None], missing / measured)
    return EngineOverhead(base_ms=float(solution[0]), per_request_ms=float(solution[1]))


class HeldOut(NamedTuple):
    """Errors on one batch size of a fit without it.

    Attributes:
        requests: the requested batch size.
        overhead: the fit to all other rows.
        errors: predicted / measured - 1 of its rows, shape (n,).
    """

    requests: int
    overhead: EngineOverhead
    errors: NDArray[np.float64]


def held_out(times: Sequence[TokenTime]) -> list[HeldOut]:
    """Return the errors of each batch size under an overhead fitted to the other sizes."""
    found = []
    for size in sorted({t.measured.requests for t in times}):
        rest = [t for t in times if t.measured.requests != size]
        own = [t for t in times if t.measured.requests == size]
        overhead = fit_to_tokens(rest)
        found.append(HeldOut(size, overhead, token_errors(own, overhead)))
    return found


def repeated(deployment: Deployment) -> NDArray[np.float64]:
    """Return the token times of single requests of 512 tokens, milliseconds, shape (n,).

    They differ in the requested output, which hardly matters, and in the time of measurement: their spread is the error
    bar of a measurement.
    """
    rows = [row for row in BATCHES[deployment] if (row.prompt, row.requests) == (512, 1)]
    return np.array([row.token_ms for row in rows])


def half_spread(deployment: Deployment) -> float:
    """Return half the range of :func:`repeated` relative to its midpoint."""
    values = repeated(deployment)
    return float((values.max() - values.min()) / (values.max() + values.min()))
