"""Engines at fixed concurrency: published rows, their replay as closed loops, and errors by group.

Rows: AIConfigurator (NVIDIA, Apache-2.0), ``systems/silicon_sample.csv`` at commit 095f58a5, with a release and a note
per row. Rows with a date are runs of InferenceMAX (Apache-2.0). By its launch scripts a run sends ten requests per
place, input and output lengths are drawn from 80 to 100 % of the nominal ones, and the KV cache is fp8.
"""

from __future__ import annotations

import csv
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time import load_hardware
from kvgym.batch_time.hardware.overhead import EngineOverhead
from kvgym.experiments.changes import build_scenario
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

LONG_OUTPUT, FEW = 8192, 32
"""Rows of this output with more requests than this are left out."""
WAVES, DRAWN_WAVES = 3, 10
"""Requests per place of the loop: of rows with fixed lengths, and of InferenceMAX."""
LEAST_SHARE = 0.8
"""Least share of the nominal lengths that InferenceMAX draws."""


@dataclass(frozen=True)
class Row:
    """An engine measured at fixed concurrency.

    Attributes:
        engine: name of the engine.
        release: its release, or a text for an unknown one.
        gpu: preset.
        tp: number of GPUs.
        ep: groups of GPUs that whole experts are placed on.
        model: preset.
        dtype: type of the weights.
        input: nominal prompt tokens.
        output: nominal output tokens.
        concurrency: requests held.
        ttft_ms: mean time to first token.
        tpot_ms: mean time per output token.
        note: reason for caution; empty = none.
        drawn: whether lengths are drawn, as InferenceMAX does.
    """

    engine: str
    release: str
    gpu: str
    tp: int
    ep: int
    model: str
    dtype: str
    input: int
    output: int
    concurrency: int
    ttft_ms: float
    tpot_ms: float
    note: str = ""
    drawn: bool = True

    @property
    def latency_ms(self) -> float:
        """Mean request latency of the nominal output."""
        return self.ttft_ms + self.tpot_ms * (self.output - 1)

    @property
    def used(self) -> bool:
        """Whether it is compared: no note, and few requests if outputs are long."""
        return not self.note and (self.output < LONG_OUTPUT or self.concurrency <= FEW)

    @property
    def group(self) -> tuple[str, ...]:
        """Model, GPU, type of the weights, engine and release."""
        return self.model, self.gpu, self.dtype, self.engine, self.release


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a table, exact repeats of settings and times once."""
    with path.open(encoding="utf-8") as file:
        found = csv.DictReader(line for line in file if not line.startswith("#"))
        texts = ("engine", "release", "gpu", "model", "dtype", "note")
        numbers = ("tp", "ep", "input", "output", "concurrency")
        rows = (
            Row(
                **{name: line[name] for name in texts},
                **{name: int(line[name]) for name in numbers},
                ttft_ms=float(line["ttft_ms"]),
                tpot_ms=float(line["tpot_ms"]),
                drawn=bool(line["measured"]),
            )
            for line in found
        )
        return list(dict.fromkeys(rows))


class Times(NamedTuple):
    """Mean milliseconds of the requests of a loop.

    Attributes:
        ttft: to the first token.
        tpot: per later token.
    """

    ttft: float
    tpot: float

    def errors(self, row: Row) -> tuple[float, float, float]:
        """Return simulated / measured - 1 of time per output token, request latency and time to first token."""
        latency = self.ttft + self.tpot * (row.output - 1)
        return self.tpot / row.tpot_ms - 1, latency / row.latency_ms - 1, self.ttft / row.ttft_ms - 1


CHECKPOINTS: Mapping[tuple[str, str], str] = {
    ("deepseek-v3", "fp8"): "fp8_block",
    ("qwen3-235b-a22b", "fp8"): "fp8_block",
    ("qwen3-32b", "fp8"): "fp8_block",
    ("deepseek-v3", "fp4"): "nvfp4",
    ("llama3-70b", "fp4"): "nvfp4",
}
"""Type of the weights of published checkpoints by model and type of a row; others have the row's."""


def hardware_of(row: Row) -> str:
    """Return the hardware of a row."""
    options = {"model": row.model, "gpu": row.gpu, "tp": row.tp, "ep": row.ep}
    if row.dtype != "bf16":
        options |= {"weights": CHECKPOINTS.get((row.model, row.dtype), row.dtype), "kv_dtype": "fp8"}
    return "kernels:" + ",".join(f"{name}={value}" for name, value in options.items())


@functools.cache
def _server(hardware: str) -> System:
    """Return a server in the closed loop under the rules of today's engines."""
    return replace(build_scenario("vllm-v1", hardware=hardware).make_system(), sessions="closed")


@functools.cache
def _loop(row: Row) -> RequestTable:
    """Return the requests of a row: in every place of the loop one arrives when the one before has finished."""
    count = row.concurrency * (DRAWN_WAVES if row.drawn else WAVES)
    rng, least = np.random.default_rng(0), LEAST_SHARE if row.drawn else 1.0
    lengths = [rng.integers(int(least * n), n + 1, count) for n in (row.input, row.output)]
    wave, place = np.divmod(np.arange(count), row.concurrency)
    return RequestTable.from_columns(
        arrival_time=np.zeros(count),
        prompt_len=lengths[0],
        output_len=lengths[1],
        session_id=place,
        turn=wave + 1,
        think_time=np.zeros(count),
    )


def replay(row: Row, engine: EngineOverhead) -> Times:
    """Simulate the loop of a row: ``vllm_v1`` with the token budget of the GPU, on the memory that kvgym computes."""
    hardware = hardware_of(row)
    batch_time = load_hardware(hardware).batch_time(engine=engine.model_dump())
    result = simulate(replace(_server(hardware), batch_time=batch_time), _loop(row), "vllm_v1")
    records, table = result.requests, result.table
    first = records["first_token_time"]
    tokens = (records["finish_time"] - first) / np.maximum(table.output_len - 1, 1)
    return Times(1e3 * float((first - table.arrival_time).mean()), 1e3 * float(tokens.mean()))


def errors(rows: Iterable[Row], engine_of: Callable[[Row], EngineOverhead]) -> NDArray[np.float64]:
    """Return simulated / measured - 1 of time per output token, latency and time to first token, shape (n, 3)."""
    return np.array([replay(row, engine_of(row)).errors(row) for row in rows]).reshape(-1, 3)


def groups(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    """Yield the compared rows by group, in order of the groups' names."""
    for group in sorted({row.group for row in rows if row.used}):
        yield group, [row for row in rows if row.used and row.group == group]


class Fit(NamedTuple):
    """An engine's times fitted to rows, and the errors there.

    Attributes:
        engine: the engine with the least error.
        errors: of the rows with it, as :func:`errors` returns.
    """

    engine: EngineOverhead
    errors: NDArray[np.float64]


STEP_MS, MOST_MS = 0.001, 0.08
"""Grid of a fit: distance of neighbours and largest value of both times, milliseconds."""


def fit(rows: Sequence[Row], engine: EngineOverhead) -> Fit:
    """Find the times per layer and per request with the least mean absolute error on a grid.

    The error is pooled over time per output token and request latency. Its mean is convex in both times; the median has
    a flat and noisy minimum. In a closed loop requests arrive at the ends of batches, so that the batches do not depend
    on their times, and all means are linear in both times: three replays of each row are enough.

    Args:
        rows: the rows.
        engine: everything else about the engine.
    """
    parts = np.array([_parts(row, engine) for row in rows])
    grid = np.arange(0.0, MOST_MS + STEP_MS / 2, STEP_MS).round(3).tolist()
    pairs = list(itertools.product(grid, grid))
    means = [np.abs(parts[:, :2] @ (1.0, *pair) - 1).mean() for pair in pairs]
    layer, request = pairs[int(np.argmin(means))]
    found = engine.model_copy(update={"per_layer_ms": layer, "per_request_ms": request})
    return Fit(found, parts @ (1.0, layer, request) - 1)


def _parts(row: Row, engine: EngineOverhead) -> NDArray[np.float64]:
    """Return simulated / measured of kernels alone, and of 1 ms per layer and per request, shape (3, 3)."""
    pairs = ({"per_layer_ms": x, "per_request_ms": y} for x, y in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)))
    alone, layer, request = (
        np.add(replay(row, engine.model_copy(update=pair)).errors(row), 1.0) for pair in pairs
    )
    return np.column_stack([alone, layer - alone, request - alone])
