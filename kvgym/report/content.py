"""Contents of the report of a comparison, as plain values for the template."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pprint import pformat
from typing import Any

import numpy as np

from kvgym.errors import KVGymError
from kvgym.experiments.comparison import Comparison
from kvgym.experiments.describing import flat, hardware_of, hardware_rows, memory_rows, rule_rows
from kvgym.experiments.statistics import Estimate
from kvgym.metrics.catalogue import metric_info, metric_names
from kvgym.metrics.compute import WORKER_METRICS
from kvgym.policies.policy import POLICIES, PolicyInfo
from kvgym.report.local_paths import strip_local_paths
from kvgym.report.numbers import count_range, figures, interval
from kvgym.report.sections import mark_words, mean_cell, shown_unit, text_cell, unit_of
from kvgym.workloads.describing import describe_spec
from kvgym.workloads.spec import WorkloadSpec
from kvgym.workloads.table import RequestTable

REFERENCE_METRIC = "e2e_latency_mean"


@dataclass(frozen=True)
class Column:
    """A column of the main table.

    Attributes:
        title: heading, short enough that a screen 390 pixels wide holds three columns next to the policies.
        metric: the metric.
        with_interval: whether the interval is shown below.
    """

    title: str
    metric: str
    with_interval: bool = False


COLUMNS = (
    Column("E2E mean", "e2e_latency_mean", with_interval=True),
    Column("TTFT p50", "ttft_p50"),
    Column("TTFT p99", "ttft_p99"),
    Column("TBT p50", "tbt_p50"),
    Column("TBT p99", "tbt_p99"),
    Column("Finished", "request_throughput"),
    Column("Output", "token_throughput"),
    Column("Evictions", "evictions"),
    Column("Recomputed", "recomputed_tokens"),
    Column("KV use", "kv_utilisation"),
    Column("Longest wait", "max_wait"),
    Column("Fairness", "jain_fairness"),
)
UNFINISHED = Column("Unfinished", "unfinished")
ATTAINED = Column("Within SLOs", "slo_attainment")


class CachedComparison(Comparison):
    """A comparison that computes every estimate once."""

    def estimate(self, policy: str, metric: str) -> Estimate:
        """Return the mean of a metric over seeds, with its confidence interval."""
        known: dict[tuple[str, str], Estimate] = self.__dict__.setdefault("_known", {})
        if (policy, metric) not in known:
            known[policy, metric] = super().estimate(policy, metric)
        return known[policy, metric]


def with_cache(comparison: Comparison) -> Comparison:
    """Return a comparison with cached estimates."""
    return CachedComparison(**{f.name: getattr(comparison, f.name) for f in fields(comparison)})


def lead(comparison: Comparison) -> str:
    """Return the outcome in a sentence or two; it names no winner if there is no significant difference."""
    means = {p: comparison.estimate(p, REFERENCE_METRIC) for p in comparison.policies}
    done = {p: e for p, e in means.items() if math.isfinite(e.value)}
    if not done:
        return "No policy completed the comparison; the reasons are below."
    seeds = len(comparison.seeds)
    over = f"over {seeds} seeds" if seeds > 1 else f"on seed {comparison.seeds[0]}"
    leaders = comparison.leaders(REFERENCE_METRIC)
    if not leaders:
        known = ", ".join(f"{p} {_mean(e)}" for p, e in done.items())
        return f"Only clairvoyant references completed. Mean end-to-end latency {over}: {known}."
    best = leaders[0]
    if len(leaders) == 1:
        text = f"Lowest mean end-to-end latency {over}: {best}, {_mean(done[best])}."
    else:
        names = [f"{p}, {figures(done[p].value)} s" for p in leaders]
        text = f"Lowest mean end-to-end latency {over}: {'; '.join(names[:-1])}; and {names[-1]}."
        text += " They do not differ significantly"
        text += " (paired 95 % intervals of the ratios to the first include 1)." if seeds > 1 else "."
    if comparison.bounds:
        text += (
            f" No scheduler could be below {figures(comparison.bound().value)} s, so {best} is at most "
            f"{figures(comparison.at_most(best))} times the optimum."
        )
    others = {p: e for p, e in done.items() if p not in comparison.clairvoyant and p not in leaders}
    if others:
        second = min(others, key=lambda p: others[p].value)
        ratio = comparison.ratio(best, second, REFERENCE_METRIC)
        span = interval(ratio)
        text += f" {best} has {figures(ratio.value)} times the mean of the next, {second}"
        text += f" (paired 95 % interval {span})." if span else "."
    return text


def _mean(estimate: Estimate) -> str:
    span = interval(estimate)
    return f"{figures(estimate.value)} s" + (f" (95 % interval {span} s)" if span else "")


def main_table(comparison: Comparison, reference: str) -> dict[str, Any]:
    """Return the main table: ``columns`` (title, unit) and ``rows`` (policy, marks, cells)."""
    columns = list(COLUMNS)
    if unfinished_policies(comparison):
        columns.append(UNFINISHED)
    if comparison.has_targets:
        columns.insert(1, ATTAINED)
    best = [_best(comparison, column.metric) for column in columns]
    marked = marks(comparison)
    rows = []
    for policy in comparison.policies:
        cells = [
            mean_cell(comparison.estimate(policy, column.metric), policy in leaders, column.with_interval)
            for column, leaders in zip(columns, best, strict=True)
        ]
        ratio = comparison.ratio(policy, reference, REFERENCE_METRIC)
        span = "reference" if policy == reference else interval(ratio)
        extra = [{**text_cell(figures(ratio.value)), "interval": span}]
        if comparison.bounds:
            extra.append(text_cell(f"≤ {figures(comparison.at_most(policy))}"))
        rows.append({"policy": policy, "marks": marked[policy], "cells": [cells[0], *extra, *cells[1:]]})
    heads = [(column.title, unit_of(column.metric)) for column in columns]
    heads[1:1] = [("E2E ratio", ""), *([("× optimum", "")] if comparison.bounds else [])]
    return {"columns": heads, "rows": rows}


def marks(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    """Return what a reader must know of each policy, in a word or two each, shown below its name."""
    return {
        policy: mark_words(comparison.marks.get(policy, ()), policy in comparison.clairvoyant)
        for policy in comparison.policies
    }


def full_table(comparison: Comparison) -> list[dict[str, Any]]:
    """Return a row for every metric: name, unit, definition, and a cell per policy."""
    rows = []
    for name in metric_names():
        info = metric_info(name)
        estimates = [comparison.estimate(policy, name) for policy in comparison.policies]
        rows.append(
            {
                "name": name,
                "unit": unit_of(name),
                "summary": info.summary,
                "better": {True: "lower", False: "higher", None: ""}[info.lower_is_better],
                "cells": [{"text": figures(e.value, 4), "interval": interval(e)} for e in estimates],
            }
        )
    return rows


def _best(comparison: Comparison, metric: str) -> tuple[str, ...]:
    """Return the best policies; none if no policy is significantly worse, or the metric has no direction."""
    if metric_info(metric).lower_is_better is None:
        return ()
    leaders = comparison.leaders(metric)
    finite = [
        p
        for p in comparison.policies
        if p not in comparison.clairvoyant and math.isfinite(comparison.estimate(p, metric).value)
    ]
    return leaders if len(leaders) < len(finite) else ()


def worker_table(comparison: Comparison) -> dict[str, Any]:
    """Return means over seeds per worker, as :func:`main_table`; no rows for a single worker."""
    columns = [("Worker", "")]
    columns += [(name.replace("_", " "), shown_unit(info)) for name, info in WORKER_METRICS.items()]
    rows = [
        {
            "policy": policy,
            "marks": (),
            "cells": [
                text_cell(f"{worker['worker']}" + f" ({worker['role']})" * (worker["role"] != "mixed")),
                *(text_cell(figures(worker[name])) for name in WORKER_METRICS),
            ],
        }
        for policy in comparison.policies
        for worker in comparison.worker_means(policy)
    ]
    return {"columns": columns, "rows": rows}


def unfinished_policies(comparison: Comparison) -> dict[str, int]:
    """Return the policies that left requests unfinished, with their number over all seeds."""
    counts = {
        p: int(sum(r.metrics.get("unfinished", 0) for r in comparison.runs if r.policy == p and not r.error))
        for p in comparison.policies
    }
    return {p: n for p, n in counts.items() if n}


def failures(comparison: Comparison) -> list[dict[str, Any]]:
    """Return a row for each policy that failed: policy, failed seeds, and the first message."""
    rows = []
    for policy, message in comparison.errors().items():
        seeds = [r.seed for r in comparison.runs if r.policy == policy and r.error]
        rows.append({"policy": policy, "seeds": seeds, "total": len(comparison.seeds), "message": message})
    return rows


def completion(comparison: Comparison) -> str:
    """Return a sentence on whether every request was completed once."""
    good = [r for r in comparison.runs if not r.error]
    once = sum(r.completed_once for r in good)
    if once == len(comparison.runs):
        return "In every run every request was completed exactly once."
    return f"In {once} of {len(comparison.runs)} runs every request was completed exactly once."


def setting(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the setup of the comparison: pairs of a term and its description."""
    scenario = comparison.scenario
    rows = [("Scenario", scenario.heading)]
    hardware = hardware_of(scenario)
    known = scenario.kv_capacity or (hardware.kv_capacity if hardware is not None else None)
    for example in list(comparison.examples.values())[:1]:
        known = example.system.kv_capacity
    rows += [*hardware_rows(scenario), *memory_rows(scenario, known if isinstance(known, int) else None)]
    spec = comparison.provenance.get("spec") or {}
    trace = comparison.provenance.get("trace")
    rows.append(("Workload", describe_spec(WorkloadSpec(**spec)) if spec else flat(scenario.workload)))
    if trace:
        rows.append(("Trace", f"{trace.get('path')} ({trace.get('format')}), SHA-256 {trace.get('sha256')}"))
    rows.append(("Requests", f"{count_range(comparison.num_requests)} per seed, the same for every policy"))
    for example in list(comparison.examples.values())[:1]:
        rows += [("Targets", text) for text in [_targets(example.table)] if text]
    rows.append(("Seeds", ", ".join(map(str, comparison.seeds))))
    return rows + rule_rows(scenario)


def _targets(table: RequestTable) -> str:
    """Return the SLOs of requests in a few words, "" if none has one."""
    found = []
    for name, slo in (("TTFT", table.ttft_slo), ("TBT", table.tbt_slo), ("E2E", table.e2e_slo)):
        values = np.unique(slo[np.isfinite(slo)]) if slo is not None else np.zeros(0)
        if len(values):
            several = f" to {figures(float(values[-1]))}" if len(values) > 1 else ""
            found.append(f"{name} {figures(float(values[0]))}{several} s")
    return ", ".join(found)


def policy_rows(comparison: Comparison) -> list[dict[str, str]]:
    """Return a row per policy: label, summary, source, options, needs (in brackets: optional)."""
    rows = []
    for label in comparison.policies:
        info = _policy_info(comparison, label)
        given = comparison.hyperparameters.get(label, {})
        known = [*sorted(info.needs), *(f"({name})" for name in sorted(info.uses))] if info else []
        needs = ", ".join(known).replace("_", " ")
        if label in comparison.clairvoyant:
            needs += " (clairvoyant: a reference, not a deployable scheduler)"
        summary = info.summary if info else ""
        rows.append(
            {
                "label": label,
                "summary": summary,
                "paper": info.origin if info else "",
                "needs": needs or "nothing",
                "options": flat(given),
            }
        )
    return rows


def _policy_info(comparison: Comparison, label: str) -> PolicyInfo | None:
    if label in comparison.examples:
        return comparison.examples[label].policy.info
    try:
        return POLICIES[label.partition(":")[0]].info
    except KVGymError:
        return None


def configuration(comparison: Comparison) -> list[tuple[str, Any]]:
    """Return titled contents: the scenario as run, the workload in full, the policies, the hardware."""
    blocks: list[tuple[str, Any]] = [
        ("Scenario", comparison.scenario.model_dump(mode="json")),
        ("Workload", comparison.provenance),
        ("Policies", comparison.hyperparameters),
    ]
    hardware = hardware_of(comparison.scenario)
    if hardware is not None:
        blocks.append(("Hardware (without its tables)", hardware.model_dump(mode="json", exclude={"tables"})))
    return blocks


def repeat_code(comparison: Comparison) -> str:
    """Return Python code that repeats the comparison."""
    described = comparison.scenario.model_dump(mode="json", exclude_defaults=True)
    scenario = pformat(strip_local_paths(described), width=96, sort_dicts=False)
    policies = pformat(strip_local_paths(list(comparison.policies)), width=96)
    return (
        "from kvgym import Scenario, compare\n"
        "from kvgym.report import write_report\n\n"
        f"scenario = Scenario.model_validate(\n{_indent(scenario)}\n)\n"
        f"policies = {_indent(policies).lstrip()}\n"
        f"comparison = compare(scenario, policies, seeds={list(comparison.seeds)}, keep_examples=True)\n"
        'write_report(comparison, "report.html")\n'
    )


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())
