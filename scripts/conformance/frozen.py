"""Recorded schedules of an engine, in a small file: one line of JSON for the engine, and one for each workload.

Times are whole numbers of :data:`~conformance.cases.PER_TOKEN` seconds, of which all clocks are multiples.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from conformance.cases import PER_TOKEN, Case, Schedule, Step

OPTIONAL = (
    *("texts", "sessions", "think", "depth", "lookahead", "by_batch", "right"),
    *("host_blocks", "load_time", "store_time", "prompt_only"),
)
"""Fields of a case that are left out where they are empty."""

MOST_STEPS = 24
"""Longest schedule that is recorded, batches."""


def features(case: Case, schedule: Schedule) -> frozenset[str]:
    """Return what a workload exercises: settings that are not the usual ones, and events."""
    settings = case.settings
    found = {f"{name}={bool(value)}" for name, value in settings.items() if name != "policy"}
    found |= {f"policy={settings.get('policy')}", f"blocks of {case.block_size}"}
    preempted = [len(step.preempted) for step in schedule.steps]
    found |= {f"preempted {min(most, 3)}" for most in preempted}
    found |= {f"turns={len(case.sessions) > len({*case.sessions})}"} if case.sessions else set()
    found |= {f"table={bool(case.by_batch)}", f"lookahead={bool(case.lookahead)}"} if case.depth else set()
    found |= {f"cached={any(step.cached for step in schedule.steps)}"} if case.texts else set()
    if case.host_blocks:
        loads = {step.transfers[0] for step in schedule.steps}
        found |= {
            f"prompt_only={case.prompt_only}",
            f"loads={len(loads) > 1}",
            f"full={_is_full(case, schedule)}",
        }
    alone = any(len(step.running) + len(step.waiting) == 1 for step in schedule.steps)
    return frozenset(found | {f"alone={alone}", f"empty={any(step.empty for step in schedule.steps)}"})


def _is_full(case: Case, schedule: Schedule) -> bool:
    return any(step.transfers[3] == case.host_blocks for step in schedule.steps)


def choose(played: Iterable[tuple[Case, Schedule]], most: int) -> list[tuple[Case, Schedule]]:
    """Return short schedules that together have many pairs of features, at most ``most``."""
    left = [(c, s) for c, s in played if len(s.steps) <= MOST_STEPS]
    pairs = [{(a, b) for a in f for b in f if a < b} for f in (features(c, s) for c, s in left)]
    chosen: list[tuple[Case, Schedule]] = []
    covered: set[tuple[str, str]] = set()
    while len(chosen) < most and left:
        best = max(range(len(left)), key=lambda k: (len(pairs[k] - covered), -len(left[k][1].steps)))
        if not pairs[best] - covered:
            break
        covered |= pairs.pop(best)
        chosen.append(left.pop(best))
    return chosen


def write(path: Path, engine: dict[str, str], played: Sequence[tuple[Case, Schedule]]) -> None:
    """Write a file of recorded schedules."""
    lines = [engine, *({"case": described(case), **recorded(schedule)} for case, schedule in played)]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), "utf-8")


def read(path: Path) -> tuple[dict[str, str], list[tuple[Case, Schedule]]]:
    """Return the engine and the recorded schedules of a file."""
    engine, *lines = (json.loads(line) for line in path.read_text("utf-8").splitlines())
    return engine, [(case_of(line["case"]), schedule_of(line)) for line in lines]


def _units(seconds: Iterable[float]) -> list[int]:
    return [round(time / PER_TOKEN) for time in seconds]


def _seconds(units: Iterable[int]) -> tuple[float, ...]:
    return tuple(number * PER_TOKEN for number in units)


def described(case: Case) -> dict[str, Any]:
    """Return a case for JSON."""
    fields = vars(case) | {"arrival": _units(case.arrival), "think": _units(case.think)}
    return {k: v for k, v in fields.items() if v or k not in OPTIONAL}


def case_of(line: dict[str, Any]) -> Case:
    """Return a case that :func:`described` has described."""
    columns: dict[str, Any] = {name: tuple(line[name]) for name in ("prompt", "output", "priority")}
    for name in ("texts", "by_batch", "right"):
        columns |= {name: tuple(map(tuple, line[name]))} if name in line else {}
    columns |= {"sessions": tuple(line["sessions"])} if "sessions" in line else {}
    columns |= {name: _seconds(line[name]) for name in ("arrival", "think") if name in line}
    return Case(**(line | columns))


def _used(step: Step) -> list[Any]:
    """Return the fields of caches, drafts and transfers, as far as any of them is used."""
    fields: list[Any] = [step.cached, step.drafts, step.transfers]
    while fields and not fields[-1]:
        fields.pop()
    return fields


def recorded(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule for JSON."""
    steps = [
        [*_units([s.time]), s.running, s.waiting, s.preempted, s.tokens, s.blocks, *_used(s)]
        for s in schedule.steps
    ]
    return {"steps": steps, "first": _units(schedule.first_token), "finish": _units(schedule.finish)}


def _tuples(value: Any) -> Any:
    """Return lists of lists as tuples of tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def schedule_of(line: dict[str, Any]) -> Schedule:
    """Return a schedule that :func:`recorded` has described."""
    steps = tuple(
        Step(
            *_seconds(step[:1]),
            *map(_tuples, step[1:7]),
            drafts=tuple(step[7]) if len(step) > 7 else (),
            transfers=tuple(step[8]) if len(step) > 8 else (),
        )
        for step in line["steps"]
    )
    return Schedule(steps, _seconds(line["first"]), _seconds(line["finish"]))
