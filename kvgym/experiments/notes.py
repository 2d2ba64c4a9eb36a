"""Notes on runs, merged over seeds."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from kvgym.experiments.describing import with_engine
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.experiments.scenario_options import SERVER_SCENARIO
from kvgym.policies.policy import PolicyInfo

P = TypeVar("P", bound=Hashable)

_RULES = {("progress_on_evict", "recompute"): "recomputes", ("requeue", "front"): "requeues at the front"}
"""Descriptions of engine rules."""

_FIGURE = re.compile(r"(?<![\w=.,:/-])\d[\d,]*(?:\.\d+)?(?![\w.]*\w)")
"""A number on its own, not part of a name, an option or a version."""


def not_finished(metrics: Mapping[str, float], horizon: float) -> str:
    """Return what became of the requests of a run that did not finish."""
    left = int(metrics["unfinished"])
    if left:
        return f"stopped at the horizon, {horizon:g} s, with {left:,} requests left"
    ends = {"aborted": "given up by users", "shed": "refused by the router", "failed": "lost with workers"}
    parts = [f"{int(n):,} {what}" for name, what in ends.items() if (n := metrics.get(name, 0.0)) > 0]
    return f"ended with requests that did not finish: {', '.join(parts)}"


def merge_notes(notes: list[tuple[int, str]], seeds: int) -> tuple[str, ...]:
    """Return each note once, with its seeds unless it applies to all.

    Notes of several seeds that differ only in numbers are merged into one, with the smallest and the largest number.
    """
    return tuple(
        text if len(held) == seeds else f"{_seeds(held).capitalize()}: {text}"
        for text, held in _merged(notes)
    )


def merge_point_notes(
    notes: Iterable[tuple[tuple[int, int], str]], points: int, seeds: int
) -> tuple[str, ...]:
    """Return each note of runs at several points once, as :func:`merge_notes` does.

    Args:
        notes: notes with the place of the point and the seed; the same note of several policies counts once.
        points: number of points.
        seeds: number of seeds per point.
    """
    merged = []
    for text, held in _merged(dict.fromkeys(notes)):
        at = {point for point, _ in held}
        where = [f"{len(at)} of {points} points"] if len(at) < points else []
        if len(held) < len(at) * seeds:
            where.append(_seeds(sorted({seed for _, seed in held})))
        merged.append(f"{', '.join(where).capitalize()}: {text}" if where else text)
    return tuple(merged)


def _merged(notes: Iterable[tuple[P, str]]) -> list[tuple[str, list[P]]]:
    """Return each note with its places; notes that differ only in numbers are merged.

    They are not merged if a place has several of them.
    """
    alike: dict[str, list[tuple[P, str]]] = {}
    for place, text in notes:
        alike.setdefault(_FIGURE.sub("#", text), []).append((place, text))
    merged: list[tuple[str, list[P]]] = []
    for group in alike.values():
        places = [place for place, _ in group]
        texts = list(dict.fromkeys(text for _, text in group))
        if len(texts) > 1 and len(set(places)) == len(places):
            merged.append((_spans(texts), places))
        else:
            merged += [(text, [place for place, own in group if own == text]) for text in texts]
    return merged


def _seeds(seeds: list[int]) -> str:
    """Return seeds in words."""
    return f"seed{'s' if len(seeds) > 1 else ''} {_ranges(seeds)}"


def _spans(texts: list[str]) -> str:
    """Return one text for several that differ only in numbers, with the smallest and the largest number."""
    places = zip(*(_FIGURE.findall(text) for text in texts), strict=True)
    figures = (sorted(set(place), key=lambda figure: float(figure.replace(",", ""))) for place in places)
    shown = (found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}" for found in figures)
    return _FIGURE.sub(lambda _: next(shown), texts[0])


def _ranges(seeds: list[int]) -> str:
    """Return seeds as text, with consecutive ones as a range: ``0–4, 7``."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and parts[-1][-1] + 1 == seed:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    ends = (part if len(part) < 3 else [f"{part[0]}–{part[-1]}"] for part in parts)
    return ", ".join(str(seed) for part in ends for seed in part)


def rule_notes(infos: Iterable[PolicyInfo], scenario: Scenario) -> list[str]:
    """Return notes on schedulers of real engines that run under rules other than their engine's.

    Args:
        infos: descriptions of the schedulers.
        scenario: the scenario.
    """
    found: dict[str, list[str]] = {}
    for info in infos:
        other = {name: rule for name, rule in info.rules if getattr(scenario.system, name) != rule}
        if other:
            here = ", ".join(f"{name} = {getattr(scenario.system, name)}" for name in other)
            text = f"under {here}{_setting(scenario)}; the real engine {_engine_rules(other)}"
            found.setdefault(text, []).append(info.name)
    if not found:
        return []
    server = load_scenario(SERVER_SCENARIO)
    has = f"has these rules{_setting(server)} on {server.hardware}"
    advice = f"--scenario {SERVER_SCENARIO} {has}; another engine: --engine"
    return [
        f"{' and '.join(dict.fromkeys(names))} run{'s' * (len(set(names)) == 1)} {text}. {advice}."
        for text, names in found.items()
    ]


def _engine_rules(rules: Mapping[str, str]) -> str:
    """Return the rules of an engine in words, ``recomputes and requeues at the front``."""
    return " and ".join(_RULES.get((name, rule), f"has {name} = {rule}") for name, rule in rules.items())


def _setting(scenario: Scenario) -> str:
    """Return the block size and the engine of a scenario, if any, to append to a text."""
    return f", blocks of {scenario.system.block_size}{with_engine(scenario)}"
