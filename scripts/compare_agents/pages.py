"""The page of tables, Markdown, made from the stored figures alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compare_agents.entrants import AGENT, BUDGET, KNOBS, OTHER_AGENT, RULE, SCHEDULER, TRUE_LENGTHS
from compare_agents.figures import agent_in, best_of, estimate_of, gain, mean_of, summary_of
from compare_agents.store import Entry, Row, Store
from compare_agents.studies import TASKS
from compare_agents.study_tables import ablation_tables, spread_tables
from compare_agents.writing import change, failure, interval, name_of, number, percent, table

RIVALS = {
    SCHEDULER: "best tuned scheduler",
    BUDGET: "best budget of Sarathi-Serve in hindsight",
    KNOBS: "best fixed knobs",
    RULE: "`ranked`, set by hand",
    OTHER_AGENT: "other agent",
}
"""What an agent is compared with, in the order of the columns."""

INTRODUCTION = """\
Made by `scripts/compare_agents` from its figures; nothing here is written by hand. Values are means over held-out
seeds from 2,000,000. Schedulers and knobs were tuned at the very load of each row on seeds from 1,000, which neither
trained nor selected any agent; the best scheduler of a row is the one that is best on the held-out seeds after that.
Percentages say how much better the agent is (latency: lower; attainment: higher), in brackets 95 % bootstrap intervals
over pairs of runs on the same requests. *True lengths* are the agent's own weights with exact predictions of the same
requests: clairvoyant, for reference only; what is left is how much better that is."""

TITLES = {
    "latency": "Mean latency: Llama-2-70B on two A100, LMSYS lengths, 2,000 requests (seconds)",
    "slo": "Objectives: Mistral-7B, two classes of users, ten minutes of arrivals (share of requests that meet theirs)",
    "mixed": "Mixed services: chat, long documents and classification behind one worker (mean latency, seconds)",
    "default": "The default scenario: exact predictions, 50 requests per second (mean latency, seconds)",
    "traces": "Replayed traces, never trained or tuned on (mean latency, seconds; intervals over blocks of requests)",
    "hardware": "Hardware that no training saw (mean latency, seconds)",
    "spread": "Training seeds",
    "ablation": "What each part of `ranked` is worth (how much worse mean latency is without it)",
}


def page_of(store: Store, title: str = "Learned agents in figures") -> str:
    """Return the whole page, under a title."""
    rows = store.rows()
    by_task = {task: [row for row in rows if row.task == task] for task in TASKS}
    lines = [f"# {title}", "", INTRODUCTION, ""]
    if "cpu_seconds" in store.about:
        lines += [f"All runs together took {store.about['cpu_seconds'] / 60:.1f} CPU minutes.", ""]
    lines += summary_table(by_task)
    special: dict[str, Callable[[Sequence[Row]], list[str]]] = {
        "spread": spread_tables,
        "ablation": ablation_tables,
    }
    for task, some in by_task.items():
        if some:
            lines += [f"## {TITLES[task]}", "", _extent(some), "", *special.get(task, task_table)(some)]
    if store.curves:
        lines += ["## Training", "", *curve_table(store.curves)]
    appendix = [row for task in by_task if task not in special for row in by_task[task]]
    if appendix:
        lines += ["## Every policy, row by row", ""]
        for row in appendix:
            lines += row_table(row)
    return "\n".join(lines).rstrip() + "\n"


def _extent(rows: Sequence[Row]) -> str:
    """Return on how much the rows of a task were compared."""
    counts = sorted({row.num_seeds for row in rows})
    return (
        "One replay per row." if counts == [1] else f"Held-out seeds per row: {', '.join(map(str, counts))}."
    )


def summary_table(by_task: dict[str, list[Row]]) -> list[str]:
    """Return where learning adds, over what, and what is left."""
    body = []
    for task, rows in by_task.items():
        for group, rival in {**RIVALS, TRUE_LENGTHS: "true lengths (clairvoyant)"}.items():
            found = None if task in ("spread", "ablation") else summary_of(rows, group)
            if found is not None:
                spread = f"{percent(found.least)} … {percent(found.most)}"
                counts = f"{found.better} / {found.rows - found.better - found.worse} / {found.worse}"
                body.append([task, rival, percent(found.median), spread, counts])
    if not body:
        return []
    heads = ["task", "agent against", "median gain", "least … most", "rows better / even / worse"]
    return ["## Where learning adds", "", *table(heads, body)]


def task_table(rows: Sequence[Row]) -> list[str]:
    """Return the table of a task: the agent, its gain over the best of each group, and what is left."""
    groups = [group for group in RIVALS if any(row.group(group) for row in rows)]
    clairvoyant = any(row.group(TRUE_LENGTHS) for row in rows)
    columns = list(rows[0].row)
    agents = dict.fromkeys(entry.label for row in rows for entry in row.group(AGENT))
    heads = [*columns, ", ".join(f"`{agent}`" for agent in agents), *(RIVALS[group] for group in groups)]
    if clairvoyant:
        heads += ["true lengths", "left to true lengths"]
    body = []
    for row in rows:
        agent = agent_in(row)
        line = [row.row.get(name, "") for name in columns]
        line.append("" if agent is None else number(mean_of(agent)) if agent.outcome.values else "fails")
        line += [_rival(row, agent, group) for group in groups]
        if clairvoyant:
            line += _left(row, agent)
        body.append(line)
    return table(heads, body)


def _rival(row: Row, agent: Entry | None, group: str) -> str:
    """Return the best of a group, its value, and the agent's gain."""
    rival = best_of(row.group(group), row.metric)
    if rival is None:
        return "" if not row.group(group) else "fails"
    budget = rival.outcome.spec.partition("token_budget=")[2].partition(",")[0]
    names = {SCHEDULER: f"{name_of(rival)} ", BUDGET: f"{budget}: ", OTHER_AGENT: f"`{rival.label}` "}
    shown = f"{names.get(group, '')}{number(mean_of(rival))}"
    return shown if agent is None else f"{shown}, {change(gain(agent, rival, row.metric))}"


def _left(row: Row, agent: Entry | None) -> list[str]:
    """Return what the agent reaches with true lengths, and by how much that is better."""
    best = best_of(row.group(TRUE_LENGTHS), row.metric)
    if best is None or agent is None:
        return ["", ""]
    return [number(mean_of(best)), change(gain(best, agent, row.metric))]


def row_table(row: Row) -> list[str]:
    """Return every policy of a row with its hyperparameters, mean and interval, and why some failed."""
    agent, body, failed = agent_in(row), [], []
    for entry in row.entries:
        if not entry.outcome.values:
            failed.append(f"- {entry.group} `{entry.label}` has no value: {failure(entry)}")
            continue
        better = "" if agent is None or entry is agent else change(gain(agent, entry, row.metric))
        mean = estimate_of(entry)
        clear = "" if math.isnan(mean.value) else interval(mean)
        shown = entry.outcome.spec if entry.group in (SCHEDULER, KNOBS) else entry.label
        body.append([entry.group, f"`{shown}`", clear, better])
    title = ", ".join(f"{name} {text}" for name, text in row.row.items())
    heads = ["", "policy", row.metric, "agent better by"]
    return [f"### {row.task}: {title}", "", *table(heads, body), *failed, *([""] if failed else [])]


def curve_table(curves: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what each training took and reached, Markdown."""
    body = [
        [
            curve["training"], str(curve["seed"]), f"{curve['length']:,} {curve['unit']}",
            f"{number(curve['x'][-1])} {curve['x_label']}", f"{number(curve['y'][-1])}, {curve['y_label']}",
        ]
        for curve in curves
    ]  # fmt: skip
    return table(["training", "seed", "length", "effort", "last value"], body)
