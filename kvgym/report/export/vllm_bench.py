"""Results in the format of vLLM's serving benchmark, for scripts that read its files.

Names and definitions are those of ``vllm bench serve --save-result``: repository vllm-project/vllm, file
``vllm/benchmarks/serve.py``, commit 009e6d4 (functions ``main_async``: what the run was, ``benchmark`` and
``calculate_metrics``: its figures). :data:`NAMES` maps names to our metrics and notes differences; docs/metrics.md
shows it. Latencies are milliseconds. Entries of vLLM that a simulation does not have are left out: ``itls`` and
``max_output_tokens_per_s`` (times of single tokens are not kept), ``max_concurrent_requests``, ``queue_times``,
``generated_texts``, ``rtfx``, and figures of speculative decoding. Where nothing was measured there is null; vLLM has
0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.batch_time.deployments.load import hardware_label
from kvgym.errors import ConfigError
from kvgym.experiments.comparison import Comparison
from kvgym.experiments.result_files import jsonable, write_json
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.catalogue import LATENCIES, SCALARS, MetricInfo
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.tables import FINISHED
from kvgym.utils.arguments import explained
from kvgym.utils.files import plain_name
from kvgym.utils.version import __version__
from kvgym.workloads.arrivals import GammaArrivals, PoissonArrivals
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import Workload

__all__ = [
    "NAMES",
    "Setup",
    "details",
    "summary",
    "table",
    "write",
    "write_comparison",
]

_STATISTICS = {"mean": "mean", "median": "p50", "std": "std", "p90": "p90", "p95": "p95", "p99": "p99"}
_FAMILIES = {"ttft": "ttft", "tpot": "tpot", "itl": "tbt", "e2el": "e2e_latency"}

NAMES: dict[str, tuple[str, str]] = {
    "e2e_latency": ("e2el", "the same, in ms"),
    "ttft": ("ttft", "the same, in ms"),
    "tbt": (
        "itl",
        "in ms; of finished requests only, where ours also has the gaps of requests that a horizon cut short; here "
        "percentiles and std to 0.1 %",
    ),
    "tpot": (
        "tpot",
        "the same, in ms: (E2EL - TTFT) / (tokens - 1); one gap more where a prefill shows a token that is not counted",
    ),
    "request_throughput": ("request_throughput", "per second of `duration`, not of `makespan`"),
    "token_throughput": ("output_throughput", "per second of `duration`, not of `makespan`"),
    "goodput": (
        "request_goodput",
        "per second of `duration`; vLLM takes targets for TTFT, TPOT and E2EL as options; here they are the "
        "requests' own, for TTFT and for every gap between tokens, and null if they have none",
    ),
    "duration": (
        "duration",
        "the same: from the start of the benchmark, before the first request, to the last token",
    ),
    "input_tokens": ("total_input_tokens", "the same"),
    "output_tokens": ("total_output_tokens", "the same"),
    "finished": ("completed", "the same"),
    "unfinished": ("failed", "all requests that did not finish, including those that had not arrived"),
}
"""vLLM's names of our metrics, and how its definitions differ."""


@dataclass(frozen=True)
class Setup:
    """Setup of a run as vLLM's benchmark records it.

    Attributes:
        label: the policy.
        model_id: the hardware.
        num_prompts: requests.
        request_rate: per second; inf = all at once, NaN = not known.
        burstiness: 1 = Poisson arrivals, the shape of gamma arrivals; None = another process.
        metadata: further keys.
    """

    label: str
    model_id: str
    num_prompts: int
    request_rate: float
    burstiness: float | None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, scenario: Scenario, workload: Workload, table: RequestTable, label: str, seed: int) -> Setup:
        """Return the setup of a run."""
        process = workload.spec.arrivals
        shape = process.burstiness if isinstance(process, GammaArrivals) else None
        return cls(
            label=label,
            model_id=hardware_label(scenario.hardware) or scenario.name,
            num_prompts=len(table),
            request_rate=workload.mean_rate,
            burstiness=1.0 if isinstance(process, PoissonArrivals) else shape,
            metadata={"policy": label, "scenario": scenario.name, "seed": seed, "kvgym": __version__},
        )


def check_window(scenario: Scenario) -> None:
    """Check that whole runs are measured, as vLLM's benchmark does.

    Raises:
        ConfigError: they are not.
    """
    if scenario.window is not None:
        raise ConfigError("results of vllm-bench are of whole runs; leave out warm_up and cool_down")


def table() -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Return headings and rows of the table of metrics for docs/metrics.md."""
    rows = {}
    described: Mapping[str, MetricInfo] = {**LATENCIES, **SCALARS}
    for name, info in described.items():
        theirs, difference = NAMES.get(name, ("", "–"))
        if name in LATENCIES:
            theirs = f"`mean_{theirs}_ms`, …" if theirs else ""
        elif theirs:
            theirs = f"`{theirs}`"
        unit = "–" if info.unit == "1" else info.unit
        rows[name] = (info.summary, unit, theirs or "–", difference)
    return ("metric", "meaning", "unit", "vLLM's name", "vLLM's definition"), rows


@explained
def summary(metrics: Mapping[str, float], setup: Setup, *, date: str | None = None) -> dict[str, Any]:
    """Return a run's result in the format of ``vllm bench serve --save-result``, JSON-able.

    Args:
        metrics: all metrics of the run, see :mod:`kvgym.metrics`.
        setup: the setup of the run.
        date: like ``20260131-235959``; None = now.
    """
    duration = metrics["duration"]
    completed, prompts, outputs = (
        round(metrics[name]) for name in ("finished", "input_tokens", "output_tokens")
    )
    good = metrics["goodput"] * metrics["makespan"]  # NaN without targets
    figures: dict[str, Any] = {
        "duration": duration,
        "completed": completed,
        "failed": setup.num_prompts - completed,
        "total_input_tokens": prompts,
        "total_output_tokens": outputs,
        "request_throughput": _per(completed, duration),
        "request_goodput": None if math.isnan(good) else _per(round(good), duration),
        "output_throughput": _per(outputs, duration),
        "total_token_throughput": _per(prompts + outputs, duration),
    }
    for name, ours in _FAMILIES.items():
        for statistic, own in _STATISTICS.items():
            figures[f"{statistic}_{name}_ms"] = 1000 * metrics[f"{ours}_{own}"]
    rate = setup.request_rate
    written = {
        "date": date or datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "kvgym",
        "backend": "kvgym",
        "label": setup.label,
        "model_id": setup.model_id,
        "tokenizer_id": None,
        "num_prompts": setup.num_prompts,
        **setup.metadata,
        "request_rate": "inf" if rate == math.inf else rate,
        "burstiness": setup.burstiness,
        "max_concurrency": None,
        **figures,
    }
    return dict(jsonable(written))


@explained
def details(result: SimulationResult) -> dict[str, list[Any]]:
    """Return the lists that ``--save-detailed`` adds, by request: tokens and seconds.

    As in vLLM, an unfinished request has 0 everywhere except its input and its start, and an error.
    """
    r, requests = result.requests, result.table
    done = r["status"] == FINISHED
    arrival = requests.arrival_time
    return {
        "input_lens": requests.prompt_len.tolist(),
        "output_lens": np.where(done, requests.output_len, 0).tolist(),
        "ttfts": np.where(done, r["first_token_time"] - arrival, 0.0).tolist(),
        "latencies": np.where(done, r["finish_time"] - arrival, 0.0).tolist(),
        "start_times": arrival.tolist(),
        "errors": ["" if finished else "not finished when the run ended" for finished in done],
    }


@explained
def write(content: Mapping[str, Any], path: Path) -> Path:
    """Write a result as a JSON file; create missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)
    return path


@explained
def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write a file for every policy and seed, as vLLM's benchmark does for every run; return their paths.

    Failed runs have none.
    """
    scenario = comparison.scenario
    workload, capacity = scenario.make_workload(), scenario.make_system().usable_capacity
    requests = {seed: scenario.sample(workload, seed, capacity) for seed in comparison.seeds}
    paths: list[Path] = []
    for run in comparison.runs:
        if run.error:
            continue
        setup = Setup.of(scenario, workload, requests[run.seed], run.policy, run.seed)
        plain = plain_name(run.policy)
        path, number = folder / f"{plain}-seed{run.seed}.json", 1
        while path in paths:
            number += 1
            path = folder / f"{plain}-seed{run.seed}-{number}.json"
        paths.append(write(summary(run.metrics, setup), path))
    return paths


def _per(count: float, duration: float) -> float:
    return count / duration if duration > 0 else math.nan
