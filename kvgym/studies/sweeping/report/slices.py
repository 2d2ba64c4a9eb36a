"""Selection of the runs in a figure of a sweep; nothing is averaged over fields that are not shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgym.studies.sweeping.report.runs import Point, SweepRuns, SweptField, Value, written

MAX_PANELS = 4


@dataclass(frozen=True)
class Slice:
    """Points that differ only in some fields.

    Attributes:
        axes: indices of the fields on the figure's axes.
        panels: title ("" if there is only one panel) and points of each panel.
        remarks: sentences on the selection.
        split: index of the field that makes the panels, None for a single panel.
    """

    axes: tuple[int, ...]
    panels: tuple[tuple[str, tuple[Point, ...]], ...]
    remarks: tuple[str, ...]
    split: int | None = None


def varying(runs: SweepRuns) -> list[int]:
    """Return the indices of the fields with two values or more."""
    return [i for i, field in enumerate(runs.fields) if len(field.known) > 1]


def numeric_pairs(runs: SweepRuns) -> list[tuple[int, int]]:
    """Return the pairs of numeric fields such that neither determines the other."""
    places = [i for i in varying(runs) if runs.fields[i].numeric]
    return [
        (a, b)
        for n, a in enumerate(places)
        for b in places[n + 1 :]
        if not (_follows(runs.points, a, (b,)) or _follows(runs.points, b, (a,)))
    ]


def cut(runs: SweepRuns, axes: Sequence[int], *, panels: bool) -> Slice:
    """Return the points to draw over some fields.

    Other fields that are determined by the axes' fields may vary. The first of the remaining fields makes panels, if
    requested; the others are fixed: numbers at the middle value, categories at the first. Runs to which such a field
    does not apply are always included.

    Args:
        runs: the sweep.
        axes: indices of the fields on the axes.
        panels: whether the figure has several panels.
    """
    points = tuple(p for p in runs.points if all(p[i] is not None for i in axes))
    others = [i for i in varying(runs) if i not in axes]
    along = [i for i in others if _follows(points, i, axes)]
    rest = [i for i in others if i not in along]
    split = rest[0] if rest and panels else None
    remarks = []
    lost = [p for p in runs.policies if not any(runs.has(p, point) for point in points)]
    if lost:
        missing = [
            i for i in axes if any(runs.has(p, at) and at[i] is None for p in lost for at in runs.points)
        ]
        names = " or ".join(runs.fields[i].title for i in missing or axes)
        remarks.append(f"Without {', '.join(lost)}, which {'have' if len(lost) > 1 else 'has'} no {names}.")
    moving = [runs.fields[i].title for i in along if len({p[i] for p in points}) > 1]
    if moving:
        remarks.append(f"{' and '.join(moving)} {'varies' if len(moving) == 1 else 'vary'} with it.")
    for i in rest:
        if i == split:
            continue
        field = runs.fields[i]
        there = [v for v in field.known if any(p[i] == v for p in points)]
        if not there:
            continue
        chosen = _middle(field, there)
        points = _at(points, i, chosen)
        if len(there) > 1:
            remarks.append(
                f"{field.label(chosen)}; not shown: {', '.join(written(v) for v in there if v != chosen)}."
            )
    there = (
        [] if split is None else [v for v in runs.fields[split].known if any(p[split] == v for p in points)]
    )
    if split is None or not there:
        return Slice(tuple(axes), (("", points),), tuple(remarks))
    field, shown = runs.fields[split], there
    if len(there) > MAX_PANELS:
        shown = [there[round(k * (len(there) - 1) / (MAX_PANELS - 1))] for k in range(MAX_PANELS)]
        left = ", ".join(written(v) for v in there if v not in shown)
        remarks.append(f"Not shown: {field.title} = {left}.")
    made = tuple((field.label(v), _at(points, split, v)) for v in shown)
    return Slice(tuple(axes), made, tuple(remarks), split)


def _follows(points: Sequence[Point], place: int, axes: Sequence[int]) -> bool:
    """Whether a field has one value for each value of the axes' fields."""
    seen: dict[tuple[Value, ...], Value] = {}
    return all(seen.setdefault(tuple(p[i] for i in axes), p[place]) == p[place] for p in points)


def _at(points: Sequence[Point], place: int, value: Value) -> tuple[Point, ...]:
    return tuple(p for p in points if p[place] in (value, None))


def _middle(field: SweptField, values: Sequence[Value]) -> Value:
    return values[(len(values) - 1) // 2] if field.numeric else values[0]
