"""Tables of the studies: training seeds beside each other, and what each part of ``ranked`` is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compare_agents.entrants import ABLATED, AGENT, KNOBS, RULE, SCHEDULER, TRAINED
from compare_agents.figures import best_of, gain
from compare_agents.store import Entry, Row
from compare_agents.studies import BETWEEN
from compare_agents.writing import change, failure, percent, table


def spread_tables(rows: Sequence[Row]) -> list[str]:
    """Return a table per metric: agents of several training seeds, and how much better they are on each service."""
    lines: list[str] = []
    for metric in dict.fromkeys(row.metric for row in rows):
        some = [row for row in rows if row.metric == metric]
        agents = list(
            dict.fromkeys(e.label for row in some for e in (*row.group(AGENT), *row.group(TRAINED)))
        )
        body = []
        for agent in agents:
            over = [_gains(row, agent, (SCHEDULER, KNOBS)) for row in some]
            rule = [_gains(row, agent, (RULE,)) for row in some]
            body.append(
                [
                    f"`{agent}`",
                    *map(percent, over),
                    f"**{percent(_mean(over))}**",
                    f"**{percent(_mean(rule))}**",
                ]
            )
        means = [[_gains(row, agent, (SCHEDULER, KNOBS)) for row in some] for agent in agents]
        spread = [float(np.ptp([values[k] for values in means])) for k in range(len(some))]
        body.append(["largest less smallest", *(f"{100 * x:.1f}" for x in spread), "", ""])
        heads = ["agent", *(row.row["service"] for row in some), "mean", "mean, over `ranked` set by hand"]
        lines += [
            f"By `{metric}`, better than the best of tuned schedulers and fixed knobs:",
            "",
            *table(heads, body),
        ]
    return lines


def _gains(row: Row, agent: str, groups: Sequence[str]) -> float:
    """Return by what share an agent of a row is better than the best of some groups."""
    mine = next((e for e in row.entries if e.label == agent and e.group in (AGENT, TRAINED)), None)
    rival = best_of([entry for group in groups for entry in row.group(group)], row.metric)
    return math.nan if mine is None or rival is None else gain(mine, rival, row.metric).value


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def ablation_tables(rows: Sequence[Row]) -> list[str]:
    """Return a table: parts of the rule, and how much worse it is without them, per service and set of weights."""
    bases = list(dict.fromkeys(e.label for row in rows for e in (*row.group(AGENT), *row.group(RULE))))
    parts = list(dict.fromkeys(e.label.partition(BETWEEN)[2] for row in rows for e in row.group(ABLATED)))
    heads = ["without", *(f"{base}: {row.row['service']}" for row in rows for base in bases)]
    body = [[part, *(_loss(row, base, part) for row in rows for base in bases)] for part in parts]
    return table(heads, body)


def _loss(row: Row, base: str, part: str) -> str:
    """Return how much worse it is without a part."""
    by_label: dict[str, Entry] = {entry.label: entry for entry in row.entries}
    whole, less = by_label.get(base), by_label.get(f"{base}{BETWEEN}{part}")
    if whole is None or less is None:
        return ""
    if not less.outcome.values:
        return f"fails: {failure(less, 60)}"
    if less.outcome.values == whole.outcome.values:
        return "0"
    better = gain(less, whole, row.metric)
    worse = type(better)(-better.value, -better.high, -better.low, better.n)
    return change(worse)
