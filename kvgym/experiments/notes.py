"""Notes on what was run: in few lines, however many seeds they are of."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvgym.experiments.changes import engine_text
from kvgym.experiments.defaults import SERVER_SCENARIO
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.policy import PolicyInfo

_FIGURE = re.compile(r"(?<![\w=.,:/-])\d[\d,]*(?:\.\d+)?(?![\w.]*\w)")
"""A number that stands alone, so not of a name, an option or a version."""


def merge_notes(notes: list[tuple[int, str]], seeds: int) -> tuple[str, ...]:
    """Return each note once, with the seeds it holds for unless these are all.

    Notes of several seeds that differ only in their figures become one, with the least and the largest of each.
    """
    alike: dict[str, list[tuple[int, str]]] = {}
    for seed, text in notes:
        alike.setdefault(_FIGURE.sub("#", text), []).append((seed, text))
    merged = []
    for group in alike.values():
        where = [seed for seed, _ in group]
        texts = list(dict.fromkeys(text for _, text in group))
        if len(texts) > 1 and len(set(where)) == len(where):
            texts = [_spans(texts)]
        for text in texts:
            held = where if len(texts) == 1 else [seed for seed, own in group if own == text]
            prefix = "" if len(held) == seeds else f"Seed{'s' if len(held) > 1 else ''} {_ranges(held)}: "
            merged.append(prefix + text)
    return tuple(merged)


def _spans(texts: list[str]) -> str:
    """Return a text of several that differ in figures only: where they do, the least and the largest."""
    places = zip(*(_FIGURE.findall(text) for text in texts), strict=True)
    figures = (sorted(set(place), key=lambda figure: float(figure.replace(",", ""))) for place in places)
    shown = (found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}" for found in figures)
    return _FIGURE.sub(lambda _: next(shown), texts[0])


def _ranges(seeds: list[int]) -> str:
    """Return seeds with those that follow one another as a range: ``0–4, 7``."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and parts[-1][-1] + 1 == seed:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    ends = (part if len(part) < 3 else [f"{part[0]}–{part[-1]}"] for part in parts)
    return ", ".join(str(seed) for part in ends for seed in part)


def rule_notes(infos: Iterable[PolicyInfo], scenario: Scenario) -> list[str]:
    """Return what keeps schedulers of engines from doing what these do: rules and batch times that are others.

    Args:
        infos: of the schedulers.
        scenario: what they run on.
    """
    found: dict[str, list[str]] = {}
    for info in infos:
        other = {name: rule for name, rule in info.rules if getattr(scenario.system, name) != rule}
        if other:
            here = ", ".join(f"{name} = {getattr(scenario.system, name)}" for name in other)
            text = f"under {here}{_setting(scenario)}; its engine has {', '.join(other.values())}"
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


def _setting(scenario: Scenario) -> str:
    """Return blocks of memory and, where there is one, the engine of a scenario, to go on with."""
    engine = scenario.resolved().engine
    blocks = f"blocks of {scenario.system.block_size}"
    return f", {blocks}" if engine is None else f", {blocks}, engine {engine_text(engine)}"
