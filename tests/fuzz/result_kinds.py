"""Kinds of input: journals of runs, sweeps, outcomes of reproductions."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import yaml

from fuzz.kinds import Kind, raw, refuse, written
from helpers.script_folders import importing_from
from kvgym.utils.reading import shipped_texts


def journal_seeds() -> list[Any]:
    worker = {"worker": 0, "role": "mixed", "kv_capacity": 400, "e2e_latency_mean": None}
    line = {
        "key": "a1b2", "policy": "fcfs", "seed": 3, "metrics": {"e2e_latency_mean": 2.5, "ttft_p99": None}, "error": "",
        "completed_once": True, "wall_time": 0.25, "workers": [worker], "num_requests": 20, "notes": ["clipped."],
    }  # fmt: skip
    lines = [line, {**line, "key": "b", "workers": [], "metrics": {"goodput": "inf"}}]
    return [{"lines": lines}, {"lines": lines}, raw("".join(json.dumps(x) + "\n" for x in lines))]


def play_journal(content: Any, folder: Path) -> None:
    """Read the journal that a sweep or a comparison continues from, and write its runs again."""
    from kvgym.experiments.journal import FILE, Journal

    lines = content.get("lines") if isinstance(content, dict) else None
    data = content
    if not isinstance(content, bytes):
        data = (
            "".join(json.dumps(x) + "\n" for x in lines if x)
            if isinstance(lines, list)
            else json.dumps(lines)
        )
    written(folder, FILE, data if isinstance(data, bytes) else data.encode("utf-8", "replace"))
    with Journal(folder) as journal:
        known = dict(journal.known)
    for played in known.values():
        record = played.record
        refuse(not isinstance(record.seed, int) or record.seed < 0, "an invalid seed")
        refuse(
            not all(isinstance(x, float) for x in record.metrics.values()), "a metric that is not a number"
        )
        refuse(not math.isfinite(record.wall_time), "an invalid time")
    with Journal(folder / "again") as again:
        for key, played in known.items():
            again.add(key, played)
    with Journal(folder / "again") as again:
        refuse(repr(again.known) != repr(known), "runs that change when they are written")


JOURNAL = Kind("journal", journal_seeds, play_journal)


def sweep_seeds() -> list[Any]:
    shipped = [yaml.safe_load(text) for _, text in sorted(shipped_texts("experiment").items())]
    points = {"scenario": "mc-sf-noisy", "fields": {"num_requests": 20, "rate": [2, 4]}, "points": [{"rate": 8}],
              "combine": "zip", "seeds": 2, "first_seed": 5, "metrics": ["ttft_mean"]}  # fmt: skip
    return [*shipped, points, *[raw(yaml.safe_dump(tree)) for tree in (shipped[0], points)]]


def play_sweep(content: Any, folder: Path) -> None:
    """Read a sweep and plan its runs."""
    from kvgym.studies.sweeping.plan import load_plan

    plan = load_plan(written(folder, "sweep.yaml", content))
    plan.check()
    points = plan.make_points()
    refuse(not 1 <= len(points) <= 100_000, "an invalid number of points")
    plan.all_seeds([plan.make_scenario()])


SWEEP = Kind("sweep", sweep_seeds, play_sweep)


def outcome_seeds() -> list[Any]:
    finding = {"claim": "a", "published": "1", "ours": "2", "verdict": "reproduced", "reason": ""}
    kept = {
        "key": {"experiment": "table-1", "quick": True, "seeds": None, "code": "ab"},
        "findings": [finding], "tables": [{"head": ["x"], "rows": [["1"]], "caption": ""}], "data": {"x": [1, None]},
    }  # fmt: skip
    return [kept, raw(json.dumps(kept))]


@functools.cache
def kept_outcomes() -> Any:
    """Return the module that reads kept outcomes of reproductions."""
    with importing_from("reproduce") as load:
        return load("harness.store")


def play_outcome(content: Any, folder: Path) -> None:
    """Load the kept outcome of a reproduction; a damaged one is run again."""
    store = kept_outcomes()
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    found = store.load(written(folder, "outcome.json", data))
    if found is None:
        raise store.ConfigError("damaged: it is run again")
    refuse(not isinstance(found.data, dict), "data that are not a mapping")


OUTCOME = Kind("outcome", outcome_seeds, play_outcome)
