"""Result files of a replay: configuration, requests, summary, and a picture of the distributions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import label_of
from kvgym.experiments.result_files import jsonable, run_context, write_json
from kvgym.report import require
from kvgym.servers.validation.overhead_fit import OverheadFit
from kvgym.servers.validation.replay import METRICS, Replay, has_token_times, loss, mean_error
from kvgym.utils.arguments import explained
from kvgym.utils.files import whole_file
from kvgym.utils.frame import Frame


def replay_summary(replay: Replay) -> dict[str, Any]:
    """Return observed and simulated values and their errors, JSON-able; seconds, and shares of 1."""
    differences: dict[str, dict[str, Any]] = {metric: {} for metric in METRICS}
    for metric, statistic, observed, simulated, error in replay.differences():
        differences[metric][statistic] = {
            "observed": observed,
            "simulated": simulated,
            "error": error.value,
            "interval": [error.low, error.high],
        }
    totals = {
        name: {"observed": x, "simulated": y, "error": y / x - 1 if x > 0 else np.nan}
        for name, (x, y) in replay.totals().items()
    }
    return {
        "policy": label_of(replay.result.policy),
        "num_requests": len(replay.log),
        **({"skipped": replay.log.skip} if replay.log.skip else {}),
        "notes": list(replay.log.notes),
        "loss": loss(replay) if has_token_times(replay) else None,
        "mean_error": mean_error(replay) if has_token_times(replay) else None,
        "start_up": replay.start_up(),
        "parts": {
            part.name: {"observed": part.observed, "simulated": part.simulated} for part in replay.parts()
        },
        "metrics": {metric: rows for metric, rows in differences.items() if rows},
        "rank_correlation": {metric: replay.rank_correlation(metric) for metric in METRICS},
        "totals": totals,
        "drift": {
            drift.metric: {"errors": [error.value for error in drift.errors], "clear": drift.is_clear}
            for drift in replay.drifts()
        },
    }


def request_frame(replay: Replay) -> Frame:
    """Return one row per request: observed and simulated seconds of every metric, missing where there is none."""
    log = replay.log
    columns: dict[str, Any] = {
        name: getattr(log, name) for name in ("arrival_time", "prompt_len", "output_len")
    }
    for metric in METRICS:
        columns[f"{metric}_observed"] = np.ma.masked_invalid(replay.observed(metric))
        columns[f"{metric}_simulated"] = np.ma.masked_invalid(replay.simulated(metric))
    columns["num_evictions"] = replay.result.requests["num_evictions"]
    return Frame({"request_id": np.arange(len(log)), **columns})


@explained
def save_replay(
    replay: Replay, folder: str | Path, *, fit: OverheadFit | None = None, seed: int = 0, command: str = ""
) -> dict[str, Any]:
    """Write ``config.json``, ``requests.csv`` and ``summary.json``; with a fit they describe its replay.

    ``requests.csv`` is also a trace of the log, and the workload of the scenario in ``config.json``.

    Args:
        replay: the replay with the requested engine.
        folder: created if missing.
        fit: an overhead fitted to the log.
        seed: of the policy.
        command: the command line of this run.

    Returns:
        The content of ``summary.json``.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    shown = replay if fit is None else fit.after
    summary = replay_summary(replay)
    if fit is not None:
        summary |= {"fit": fit.summary(), "fitted": replay_summary(fit.after)}
    summary = jsonable(summary)
    request_frame(shown).write_csv(path / "requests.csv")
    scenario = build_scenario(shown.scenario, trace=path / "requests.csv")
    config = {"scenario": scenario.resolved().model_dump(mode="json"), "seed": seed, **run_context(command)}
    write_json(path / "config.json", config)
    write_json(path / "summary.json", summary)
    return dict(summary)


@explained
def save_picture(replay: Replay, path: str | Path, *, fit: OverheadFit | None = None) -> Path:
    """Write the distributions of all metrics, observed and simulated.

    Args:
        replay: the replay with the requested engine.
        path: ends in .png, .svg or .pdf.
        fit: an overhead fitted to the log, drawn next to it.

    Returns:
        The path.

    Raises:
        ConfigError: matplotlib is missing.
    """
    require("matplotlib", "pictures")
    from kvgym.servers.validation.distributions import distribution_figure

    simulated = {"simulated": replay} if fit is None else {"simulated": replay, "fitted": fit.after}
    with whole_file(path) as place:
        distribution_figure(simulated).savefig(place, dpi=130)
    return Path(path)
