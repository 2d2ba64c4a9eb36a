"""Result folder of a single run: per-request records, per-iteration log, JSON summary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgym.experiments.result_files import jsonable, run_context, write_json
from kvgym.metrics.compute import compute_metrics, worker_metrics
from kvgym.metrics.streaming import Streamed
from kvgym.policies.runner import SimulationResult
from kvgym.report.export.records import iteration_frame, request_frame, write_frame
from kvgym.utils.arguments import explained
from kvgym.utils.hyperparameters import all_hyperparameters

if TYPE_CHECKING:
    from kvgym.experiments.scenario import Scenario


@explained
def run_summary(result: SimulationResult) -> dict[str, Any]:
    """Return the metrics and settings of a run, JSON-able."""
    policy = result.policy
    summary = {
        "policy": policy.info.name,
        "hyperparameters": all_hyperparameters(policy),
        "num_requests": len(result.table),
        "completed": result.completed,
        "notes": list(result.table.notes),
        "metrics": compute_metrics(result),
    }
    if len(result.worker) > 1:
        summary["workers"] = worker_metrics(result)
    return dict(jsonable(summary))


@explained
def save_run(
    result: SimulationResult,
    folder: str | Path,
    *,
    scenario: Scenario | None = None,
    seed: int | None = None,
    command: str = "",
    provenance: dict[str, Any] | None = None,
    error: str = "",
    records: str = "csv",
) -> dict[str, Any]:
    """Write ``requests.csv``, ``summary.json`` and, if there is a log, ``iterations.csv``.

    Args:
        result: the run.
        folder: created if missing.
        scenario: the scenario of the run.
        seed: its seed.
        command: the command line of this run.
        provenance: the source of the workload.
        error: why the run ended early; also written to the summary.
        records: format of the tables, ``"csv"`` or ``"parquet"``, see :mod:`kvgym.report.export.records`.

    Returns:
        The content of ``summary.json``.

    Raises:
        ConfigError: there is no such format.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    write_frame(request_frame(result), path, "requests", records)
    if result.log is not None:
        write_frame(iteration_frame(result), path, "iterations", records)
    summary = run_summary(result)
    if scenario is not None:
        summary["notes"] = list(scenario.notes(result.table))
    if error:
        summary["error"] = error
    summary["config"] = _config(scenario, seed, command, provenance)
    write_json(path / "summary.json", summary)
    return summary


def save_streamed(
    outcome: Streamed,
    folder: Path,
    *,
    scenario: Scenario,
    seed: int,
    command: str,
    provenance: dict[str, Any],
) -> dict[str, Any]:
    """Write ``summary.json`` of a run in pieces, which has no records; arguments and result as of :func:`save_run`."""
    folder.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = jsonable(
        {
            "policy": outcome.policy.info.name,
            "hyperparameters": all_hyperparameters(outcome.policy),
            "num_requests": outcome.num_requests,
            "completed": True,
            "metrics": outcome.metrics,
        }
    )
    summary["config"] = _config(scenario, seed, command, provenance)
    write_json(folder / "summary.json", summary)
    return summary


def _config(
    scenario: Scenario | None, seed: int | None, command: str, provenance: dict[str, Any] | None
) -> Any:
    """Return what reproduces a run, JSON-able."""
    return jsonable(
        {
            "scenario": scenario.resolved().model_dump(mode="json") if scenario else None,
            "seed": seed,
            "workload": provenance,
            **run_context(command),
        }
    )
