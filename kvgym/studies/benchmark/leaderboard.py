"""The table of entries: a Markdown page from files of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvgym.errors import ConfigError
from kvgym.studies.benchmark.running import BenchmarkResult
from kvgym.studies.benchmark.scoring import interval_of, pooled, probability_of_improvement, profile
from kvgym.studies.benchmark.tasks import load_suite

LEVELS = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Scores of the performance profile."""

TITLES = {"scheduler": "Schedulers", "router": "Routers"}


def read_results(folder: str | Path) -> list[BenchmarkResult]:
    """Return the results in a folder, ``*.json``.

    Raises:
        ConfigError: there are none, or they are of different suites.
    """
    results = [BenchmarkResult.load(path) for path in sorted(Path(folder).glob("*.json"))]
    if not results:
        raise ConfigError(
            f"{folder} has no results (*.json) of kvgym benchmark; write them with --out {folder}"
        )
    if len({result.suite for result in results}) > 1:
        raise ConfigError(f"{folder} has results of several suites; keep those of one")
    return results


def leaderboard(results: Sequence[BenchmarkResult]) -> str:
    """Return the tables of entries, best first, as Markdown; clairvoyant entries are marked with a dagger."""
    suite = load_suite(results[0].suite)
    parts = [f"# {suite.name}", f"Suite {suite.name}, hash `{suite.hash}`. {suite.summary}"]
    for role, title in TITLES.items():
        entered = [result for result in results if result.role == role]
        if entered:
            parts += [f"## {title}", _summary(entered), _by_task(entered)]
    parts.append(
        "Score: interquartile mean over tasks and runs; 0 = the plain rule, 1 = the reference in hindsight; 95 % "
        "stratified bootstrap intervals. Above x: share of runs with a higher score (performance profile). "
        "P: probability of improvement over the entry below. † observes what no real scheduler has."
    )
    return "\n\n".join(parts) + "\n"


def standings(results: Sequence[BenchmarkResult]) -> dict[str, dict[str, float]]:
    """Return the scores of entries by role, best first, rounded as the table prints them."""
    return {
        role: {result.name: float(_number(score, 3)) for result, score in _ranked(entered)}
        for role in TITLES
        if (entered := [result for result in results if result.role == role])
    }


def place_of(result: BenchmarkResult) -> str:
    """Return the score of an entry, its rank in the published table, and its neighbours.

    "" if the table has no entry for the role, or tasks are missing, so that scores cannot be compared. Tasks that
    need a trace may be missing.
    """
    suite = load_suite(result.suite)
    tasks = {task.name for task in suite.tasks if task.role == result.role and task.needs is None}
    others = [each for each in suite.standings.get(result.role, {}).items() if each[0] != result.name]
    if not others or tasks - result.values.keys():
        return ""
    score = pooled(result.scores())
    place = sum(each > score for _, each in others)
    above, below = (
        f"{others[k][0]} ({others[k][1]:.3f})" if 0 <= k < len(others) else "" for k in (place - 1, place)
    )
    between = (
        f"between {above} and {below}" if above and below else f"below {above}" if above else f"above {below}"
    )
    return f"{score:.3f}, rank {place + 1} of {len(others) + 1} {TITLES[result.role].lower()}, {between}"


def _ranked(results: Sequence[BenchmarkResult]) -> list[tuple[BenchmarkResult, float]]:
    found = [(result, pooled(result.scores())) for result in results]
    return sorted(found, key=lambda each: (-each[1], each[0].name))


def _summary(results: Sequence[BenchmarkResult]) -> str:
    ranked = [result for result, _ in _ranked(results)]
    head = ["entry", "score", "95 % interval", "tasks", "trainings", *(f"above {x:g}" for x in LEVELS), "P"]
    rows = []
    for place, result in enumerate(ranked):
        scores = result.scores()
        estimate = interval_of(scores, np.random.default_rng(0))
        better = "–"
        if place + 1 < len(ranked):
            better = f"{probability_of_improvement(scores, ranked[place + 1].scores()):.2f}"
        shares = [f"{share:.2f}" for share in profile(scores, LEVELS)]
        rows.append([
            _name(result), _number(estimate.value, 3),
            f"{_number(estimate.low, 3)} – {_number(estimate.high, 3)}", f"{len(scores)}",
            f"{len(result.specs)}", *shares, better,
        ])  # fmt: skip
    return _table(head, rows)


def _by_task(results: Sequence[BenchmarkResult]) -> str:
    tasks = [
        task.name
        for task in load_suite(results[0].suite).tasks
        if any(task.name in r.values for r in results)
    ]
    rows = []
    for result, _ in _ranked(results):
        scores = result.scores()
        rows.append(
            [
                _name(result),
                *(_number(float(np.mean(scores[task])), 2) if task in scores else "–" for task in tasks),
            ]
        )
    return _table(["mean score", *tasks], rows)


def _name(result: BenchmarkResult) -> str:
    return f"`{result.name}`{' †' if result.clairvoyant else ''}"


def _number(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:.{digits}f}"  # no minus sign before 0


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
