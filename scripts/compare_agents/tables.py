"""The figures of a comparison as CSV files: one per task, and one with every policy."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from compare_agents.contestants import BUDGET, KNOBS, OTHER_AGENT, RULE, SCHEDULER, TRUE_LENGTHS
from compare_agents.figures import agent_in, best_of, estimate_of, gain, mean_of
from compare_agents.store import Entry, Row, Store
from compare_agents.studies import STUDIES, TASKS
from kvgym.experiments.statistics import Estimate
from kvgym.report.numbers import figures
from kvgym.utils.files import write_text

POLICIES = "policies.csv"
PREFIXES = {
    SCHEDULER: "scheduler", BUDGET: "sarathi_budget", KNOBS: "fixed_knobs", RULE: "ranked_by_hand",
    OTHER_AGENT: "other_agent",
}  # fmt: skip
"""Groups that the agent is compared with, and what their columns begin with, in the order of the columns."""

Line = dict[str, str]


def plain(value: float) -> str:
    """Return a number with four significant digits; "" for none."""
    return "" if math.isnan(value) else figures(value, 4).replace(",", "")


def percent(share: float) -> str:
    """Return a share as per cent with one decimal; "" for none."""
    return "" if math.isnan(share) else f"{100 * share:.1f}"


def gain_columns(prefix: str, estimate: Estimate) -> Line:
    """Return a gain and its interval, per cent."""
    return {
        f"{prefix}_percent": percent(estimate.value),
        f"{prefix}_low": percent(estimate.low),
        f"{prefix}_high": percent(estimate.high),
    }


def task_line(row: Row) -> Line:
    """Return the agent, the best of each group, and by how much the agent is better."""
    agent = agent_in(row)
    line = {**row.row, "agent": "" if agent is None else agent.label}
    line[row.metric] = "" if agent is None else plain(mean_of(agent))
    for group, prefix in PREFIXES.items():
        rival = best_of(row.group(group), row.metric)
        if rival is None:
            continue
        if group in (SCHEDULER, BUDGET, OTHER_AGENT):
            line[prefix] = name_of(rival)
        line[f"{prefix}_value"] = plain(mean_of(rival))
        if agent is not None:
            line |= gain_columns(f"{prefix}_gain", gain(agent, rival, row.metric))
    best = best_of(row.group(TRUE_LENGTHS), row.metric)
    if best is not None and agent is not None:
        line["true_lengths_value"] = plain(mean_of(best))
        line |= gain_columns("true_lengths_left", gain(best, agent, row.metric))
    return line


def name_of(entry: Entry) -> str:
    """Return the budget of Sarathi-Serve, or the name of a scheduler or an agent, without hyperparameters."""
    if entry.group == BUDGET:
        return entry.outcome.spec.partition("token_budget=")[2].partition(",")[0]
    return entry.label if entry.group == OTHER_AGENT else entry.outcome.spec.partition(":")[0]


def policy_lines(row: Row) -> list[Line]:
    """Return a line per policy: mean and interval, and by how much the agent is better; failed ones come last."""
    agent, found, failed = agent_in(row), [], []
    for entry in row.entries:
        line = {
            "task": row.task,
            **row.row,
            "group": entry.group,
            "policy": entry.label,
            "metric": row.metric,
        }
        if not entry.outcome.values:
            failed.append({**line, "failure": " ".join(entry.outcome.error.split())[:160]})
            continue
        if entry.group in (SCHEDULER, KNOBS):
            line["policy"] = entry.outcome.spec
        mean = estimate_of(entry)
        line |= {"mean": plain(mean.value), "low": plain(mean.low), "high": plain(mean.high)}
        if agent is not None and entry is not agent:
            line |= gain_columns("agent_better", gain(agent, entry, row.metric))
        found.append(line)
    return found + failed


def write_tables(store: Store, folder: Path) -> None:
    """Write the CSV files; those of earlier tasks stay."""
    folder.mkdir(parents=True, exist_ok=True)
    order = [task for task in TASKS if task not in STUDIES]
    rows = sorted((row for row in store.rows() if row.task in order), key=lambda row: order.index(row.task))
    for task in dict.fromkeys(row.task for row in rows):
        write_csv(folder / f"{task}.csv", [task_line(row) for row in rows if row.task == task])
    conditions = dict.fromkeys(name for row in rows for name in row.row)
    last = ("group", "policy", "metric", "mean", "low", "high", "agent_better_percent", "agent_better_low",
            "agent_better_high", "failure")  # fmt: skip
    write_csv(folder / POLICIES, [x for row in rows for x in policy_lines(row)], ("task", *conditions, *last))


def write_csv(path: Path, lines: Sequence[Line], columns: Sequence[str] = ()) -> None:
    """Write a file with the given columns, or those that occur."""
    text = io.StringIO()
    names = columns or list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_text(path, text.getvalue())
