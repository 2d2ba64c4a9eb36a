"""Files of a single run: per-request records, per-iteration log, JSON summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvgym.experiments.comparison import jsonable, run_context
from kvgym.metrics import compute_metrics, slo_met, worker_metrics
from kvgym.policy import policy_defaults
from kvgym.runner import SimulationResult

if TYPE_CHECKING:
    from kvgym.experiments.scenario import Scenario


def request_frame(result: SimulationResult) -> Any:
    """Return one row per request as a polars DataFrame: lengths, times in seconds, evictions.

    Times that never came are null.
    """
    import polars as pl

    r, table = result.requests, result.table
    columns: dict[str, Any] = {"request_id": np.arange(len(table))}
    columns |= table.columns()
    for name in ("start_time", "first_token_time", "finish_time"):
        columns[name] = r[name]
    columns["max_token_gap"] = np.where(r["max_token_gap"] > 0, r["max_token_gap"], np.nan)
    if len(result.worker) > 1:
        columns["worker"] = r["worker"]
    columns["num_evictions"] = r["num_evictions"]
    columns["num_recomputed_tokens"] = r["num_recomputed_tokens"]
    columns["slo_met"] = slo_met(result)
    return pl.DataFrame(columns).fill_nan(None)


def iteration_frame(result: SimulationResult) -> Any:
    """Return the per-iteration log as a polars DataFrame.

    Raises:
        ValueError: the run kept no log.
    """
    import polars as pl

    if result.log is None:
        raise ValueError("this run kept no per-iteration log; run it with log=True")
    return pl.DataFrame({name: result.log[name] for name in result.log.dtype.names or ()})


def run_summary(result: SimulationResult) -> dict[str, Any]:
    """Return the metrics and what was run, JSON-able."""
    policy = result.policy
    summary = {
        "policy": policy.info.name,
        "hyperparameters": {**policy_defaults(type(policy)), **policy.hyperparameters()},
        "num_requests": len(result.table),
        "completed": result.completed,
        "notes": list(result.table.notes),
        "metrics": compute_metrics(result),
    }
    if len(result.worker) > 1:
        summary["workers"] = worker_metrics(result)
    return dict(jsonable(summary))


def save_run(
    result: SimulationResult,
    folder: str | Path,
    *,
    scenario: Scenario | None = None,
    seed: int | None = None,
    command: str = "",
    provenance: dict[str, Any] | None = None,
    error: str = "",
) -> dict[str, Any]:
    """Write ``requests.csv``, ``summary.json`` and, if there is a log, ``iterations.csv``.

    Args:
        result: the run.
        folder: created if missing.
        scenario: what was run.
        seed: its seed.
        command: the command line that led here.
        provenance: what the workload was made from.
        error: why the run ended before its time; then also in the summary.

    Returns:
        The content of ``summary.json``.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    request_frame(result).write_csv(path / "requests.csv")
    if result.log is not None:
        iteration_frame(result).write_csv(path / "iterations.csv")
    summary = run_summary(result)
    if error:
        summary["error"] = error
    summary["config"] = jsonable(
        {
            "scenario": scenario.resolved().model_dump(mode="json") if scenario else None,
            "seed": seed,
            "workload": provenance,
            **run_context(command),
        }
    )
    (path / "summary.json").write_text(
        json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8"
    )
    return summary
