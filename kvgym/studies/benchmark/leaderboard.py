"""The tables of entries: a Markdown page from files of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvgym.errors import ConfigError
from kvgym.experiments.statistics import Estimate
from kvgym.studies.benchmark.running import BenchmarkResult
from kvgym.studies.benchmark.scoring import difference_of, interval_of, pooled, profile
from kvgym.studies.benchmark.tasks import GROUPS, Suite, load_suite

LEVELS = (0.0, 0.5, 0.9)
"""Scores of the performance profile."""


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
    """Return the tables of entries by section, best first, as Markdown."""
    suite = load_suite(results[0].suite)
    parts = [f"# {suite.name}", f"Suite {suite.name}, hash `{suite.hash}`. {suite.summary}"]
    for section in sections_of(suite):
        entered = [result for result in results if section in result.sections]
        if entered:
            group = section.partition(",")[0]
            parts += [f"## {section.capitalize()}", f"{GROUPS[group].capitalize()}."]
            parts += [_summary(entered, section), _by_task(entered, section)]
    parts.append(
        "Score: mean over tasks and runs; 0 = the plain rule, 1 = the reference in hindsight. Over the next: "
        "difference from the entry below it in the table. Over its base: difference from the scheduler below an "
        "agent, from the same rule with default settings, or from default weights. Differences are paired: the same "
        "drawn seeds for both entries. All intervals are 95 %, from a bootstrap over seeds and trainings. Above x: "
        "share of runs with a higher score. Tasks in italics test doing no harm. † observes what no real server or "
        "fleet has. ‡ has settings of its own for each task."
    )
    return "\n\n".join(parts) + "\n"


def sections_of(suite: Suite) -> tuple[str, ...]:
    """Return the sections of a suite, in its order."""
    return tuple(dict.fromkeys(task.section for task in suite.tasks))


def standings(results: Sequence[BenchmarkResult]) -> dict[str, dict[str, float]]:
    """Return the scores of entries by section, best first, rounded as the table prints them."""
    found = {}
    for section in sections_of(load_suite(results[0].suite)):
        if entered := [result for result in results if section in result.sections]:
            found[section] = {
                result.name: float(_number(score, 3)) for result, score in _ranked(entered, section)
            }
    return found


def places_of(result: BenchmarkResult) -> dict[str, str]:
    """Return by section the score of an entry, its rank in the published table, and its neighbours.

    A section is missing if the table has no entry there, or results lack one of its tasks, so that scores cannot be
    compared.
    """
    suite = load_suite(result.suite)
    found = {}
    for section in result.sections:
        others = [each for each in suite.standings.get(section, {}).items() if each[0] != result.name]
        tasks = {task.name for task in suite.tasks if task.section == section}
        if not others or tasks - result.values.keys():
            continue
        score = pooled(result.scores(section))
        place = sum(each > score for _, each in others)
        above, below = (
            f"{others[k][0]} ({others[k][1]:.3f})" if 0 <= k < len(others) else "" for k in (place - 1, place)
        )
        between = (
            f"between {above} and {below}"
            if above and below
            else f"below {above}" if above else f"above {below}"
        )  # fmt: skip
        found[section] = f"{score:.3f}, rank {place + 1} of {len(others) + 1}, {between}"
    return found


def _ranked(results: Sequence[BenchmarkResult], section: str) -> list[tuple[BenchmarkResult, float]]:
    found = [(result, pooled(result.scores(section))) for result in results]
    return sorted(found, key=lambda each: (-each[1], each[0].name))


def _summary(results: Sequence[BenchmarkResult], section: str) -> str:
    ranked = [result for result, _ in _ranked(results, section)]
    scores = {result.name: result.scores(section) for result in ranked}
    head = ["entry", "score", "95 % interval", "over the next", "over its base", "base", "trainings"]
    head += [f"above {x:g}" for x in LEVELS]
    rows = []
    for place, result in enumerate(ranked):
        own = scores[result.name]
        estimate = interval_of(own, np.random.default_rng(0))
        following = ranked[place + 1].name if place + 1 < len(ranked) else ""
        gains = [
            _difference(difference_of(own, scores[other], np.random.default_rng(0)))
            if other in scores
            else "–"
            for other in (following, result.below)
        ]
        rows.append([
            _name(result), _number(estimate.value, 3),
            f"{_number(estimate.low, 3)} – {_number(estimate.high, 3)}", *gains,
            f"`{result.below}`" if result.below in scores else "–", f"{len(result.specs)}",
            *(f"{share:.2f}" for share in profile(own, LEVELS)),
        ])  # fmt: skip
    return _table(head, rows)


def _difference(found: Estimate) -> str:
    return f"{found.value:+.3f} ({found.low:+.3f} – {found.high:+.3f})"


def _by_task(results: Sequence[BenchmarkResult], section: str) -> str:
    """Return mean values in the metric, with mean scores."""
    tasks = [task for task in load_suite(results[0].suite).tasks if task.section == section]
    rows = []
    for result, _ in _ranked(results, section):
        scores, cells = result.scores(section), [_name(result)]
        for task in tasks:
            if task.name not in scores:
                cells.append("–")
                continue
            values = np.asarray(result.values[task.name])
            value = "failed" if np.isnan(values).any() else f"{task.sign * values.mean():.4g}"
            cells.append(f"{value} ({_number(float(scores[task.name].mean()), 2)})")
        rows.append(cells)
    heads = [f"*{task.name}*" if task.does_no_harm else task.name for task in tasks]
    return _table(["value (score)", *heads], rows)


def _name(result: BenchmarkResult) -> str:
    return f"`{result.name}`{' †' if result.clairvoyant else ''}{' ‡' if result.settings else ''}"


def _number(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:.{digits}f}"  # no minus sign before 0


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
