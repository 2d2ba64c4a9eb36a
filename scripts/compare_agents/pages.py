"""The summary page of a comparison, Markdown, made from the store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compare_agents.contestants import (
    ABLATED,
    AGENT,
    BUDGET,
    KNOBS,
    OTHER_AGENT,
    RULE,
    SCHEDULER,
    TRAINED,
    TRUE_LENGTHS,
)
from compare_agents.figures import best_of, gain, summary_of
from compare_agents.store import Entry, Row, Store
from compare_agents.studies import BETWEEN, STUDIES, TASKS
from compare_agents.tables import POLICIES
from kvgym.experiments.statistics import Estimate
from kvgym.report.numbers import NO_VALUE, figures

AGAINST = {
    SCHEDULER: "best tuned scheduler",
    BUDGET: "Sarathi-Serve, best budget chosen afterwards",
    KNOBS: "best fixed knobs",
    RULE: "`ranked`, set by hand",
    OTHER_AGENT: "other agent",
    TRUE_LENGTHS: "true lengths (clairvoyant)",
}

CONDITIONS = """\
Values are means over {seeds} held-out seeds from 2,000,000. Schedulers and knobs were tuned at the load of each row on
seeds from 1,000; no agent was trained or selected on either. A row's best scheduler is the one that is best on the
held-out seeds after tuning. Intervals are 95 % bootstrap intervals over pairs of runs on the same requests; a replayed
trace is one run, cut into blocks of requests. *True lengths* are the agent's own weights with exact predictions:
clairvoyant, for reference only."""

COLUMNS = f"""\
A task's file has a row per condition: the agent's value, and of each group the best member, its value, and by how many
per cent the agent is better (`..._gain_percent`, with the interval `..._low` to `..._high`); `true_lengths_left` is by
how much true lengths are better than the agent. `{POLICIES}` has every policy with its hyperparameters, its mean with
interval, and `agent_better_...`; a policy that failed has its error instead."""

TITLES = {
    "latency": "mean latency in seconds: Llama-2-70B on two A100, LMSYS lengths, 2,000 requests",
    "slo": "share of requests that meet their targets: Mistral-7B, two classes of users, ten minutes of arrivals",
    "mixed": "mean latency in seconds: chat, long documents and classification on one worker",
    "default": "mean latency in seconds: the default scenario, exact predictions, 50 requests per second",
    "traces": "mean latency in seconds: replayed traces, never trained or tuned on",
    "hardware": "mean latency in seconds: hardware that no training used",
}


def page_of(store: Store, title: str = "Learned agents in figures", tables: str = "") -> str:
    """Return the page.

    Args:
        store: the figures.
        title: of the page.
        tables: folder of the CSV files, seen from the page; "" = there are none.
    """
    rows = store.rows()
    by_task = {task: [row for row in rows if row.task == task] for task in TASKS}
    shown = {task: by_task[task] for task in TASKS if by_task[task] and task not in STUDIES}
    lines = [f"# {title}", ""]
    if shown:
        seeds = max(row.num_seeds for row in rows)
        lines += ["How much better the agent is, in latency (lower) or attainment (higher):", ""]
        lines += [*summary_table(shown), *CONDITIONS.format(seeds=seeds).splitlines(), ""]
    if "cpu_seconds" in store.about:
        lines += [f"All runs together took {store.about['cpu_seconds'] / 60:.1f} CPU minutes.", ""]
    if tables and shown:
        lines += ["## All figures", "", *file_table(shown, tables), *COLUMNS.splitlines(), ""]
    if by_task["spread"]:
        lines += ["## Training seeds", "", *spread_tables(by_task["spread"])]
    if by_task["ablation"]:
        lines += [
            "## What each part of `ranked` is worth",
            "",
            "How much worse mean latency is without it:",
            "",
        ]
        lines += ablation_tables(by_task["ablation"])
    if store.curves:
        lines += ["## Training", "", *curve_table(store.curves)]
    lines += ["`scripts/compare_agents` makes this page and its tables.", ""]
    return "\n".join(lines)


def summary_table(by_task: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the gains of the agent over each group, per task."""
    body = []
    for task, rows in by_task.items():
        for group, against in AGAINST.items():
            found = summary_of(rows, group)
            if found is not None:
                spread = f"{percent(found.least)} … {percent(found.most)}"
                counts = f"{found.better} / {found.rows - found.better - found.worse} / {found.worse}"
                body.append([task, against, percent(found.median), spread, counts])
    return table(["task", "against", "median gain", "least … most", "rows better / even / worse"], body)


def file_table(by_task: Mapping[str, Sequence[Row]], folder: str) -> list[str]:
    """Return the list of the CSV files."""
    files = [(f"{task}.csv", len(rows), TITLES[task]) for task, rows in by_task.items()]
    runs = sum(len(row.entries) for rows in by_task.values() for row in rows)
    files.append((POLICIES, runs, "every policy on every row"))
    body = [[f"[{name}]({folder}/{name})", f"{count:,}", text] for name, count, text in files]
    return table(["file", "rows", "figures"], body)


def curve_table(curves: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of trainings: length, effort and last value."""
    body = [
        [
            curve["training"], str(curve["seed"]), f"{curve['length']:,} {curve['unit']}",
            f"{number(curve['x'][-1])} {curve['x_label']}", f"{number(curve['y'][-1])}, {curve['y_label']}",
        ]
        for curve in curves
    ]  # fmt: skip
    return table(["training", "seed", "length", "effort", "last value"], body)


def spread_tables(rows: Sequence[Row]) -> list[str]:
    """Return a table per metric: gains of agents of several training seeds on each service."""
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
    """Return the gain of an agent of a row over the best of some groups."""
    mine = next((e for e in row.entries if e.label == agent and e.group in (AGENT, TRAINED)), None)
    rival = best_of([entry for group in groups for entry in row.group(group)], row.metric)
    return math.nan if mine is None or rival is None else gain(mine, rival, row.metric).value


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def ablation_tables(rows: Sequence[Row]) -> list[str]:
    """Return a table: the loss without each part of the policy, per service and set of weights."""
    bases = list(dict.fromkeys(e.label for row in rows for e in (*row.group(AGENT), *row.group(RULE))))
    parts = list(dict.fromkeys(e.label.partition(BETWEEN)[2] for row in rows for e in row.group(ABLATED)))
    heads = ["without", *(f"{base}: {row.row['service']}" for row in rows for base in bases)]
    body = [[part, *(_loss(row, base, part) for row in rows for base in bases)] for part in parts]
    return table(heads, body)


def _loss(row: Row, base: str, part: str) -> str:
    """Return the loss without a part."""
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


def number(value: float) -> str:
    """Return a figure with four significant digits."""
    return figures(value, 4)


def percent(share: float) -> str:
    """Return a signed percentage."""
    return NO_VALUE if math.isnan(share) else f"{100 * share:+.1f} %"


def change(estimate: Estimate) -> str:
    """Return a share with its interval, as percentages."""
    if math.isnan(estimate.low):
        return percent(estimate.value)
    return f"{percent(estimate.value)} ({100 * estimate.low:+.1f} – {100 * estimate.high:+.1f})"


def failure(entry: Entry, length: int = 160) -> str:
    """Return the error of an entry, shortened."""
    return entry.outcome.error.replace("|", "/").replace("\n", " ")[:length]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]
