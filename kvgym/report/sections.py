"""Sections that several reports share, as plain values for their templates."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

import kvgym.metrics.compute
from kvgym.experiments.describing import hardware_rows, memory_rows, rule_rows
from kvgym.experiments.marks import Mark
from kvgym.experiments.result_files import jsonable, run_context
from kvgym.experiments.scenario import Scenario
from kvgym.experiments.statistics import Estimate
from kvgym.metrics.catalogue import MetricInfo, metric_info
from kvgym.report.local_paths import strip_local_paths
from kvgym.report.numbers import figures, interval
from kvgym.workloads.describing import describe_spec

Cell = dict[str, Any]
"""A cell of a table: ``text``, the ``interval`` below it or "", and whether it is the ``best`` of its column."""


def text_cell(text: str) -> Cell:
    """Return a cell with a text."""
    return {"text": text, "interval": "", "best": False}


def mean_cell(estimate: Estimate, best: bool = False, with_interval: bool = True) -> Cell:
    """Return a cell with a mean."""
    span = interval(estimate) if with_interval else ""
    return {"text": figures(estimate.value), "interval": span, "best": best}


def unit_of(metric: str) -> str:
    """Return the unit of a metric as readers see it, "" for none."""
    return shown_unit(metric_info(metric))


def shown_unit(info: MetricInfo) -> str:
    """Return the unit of a metric as readers see it, "" for none."""
    return "" if info.unit == "1" else info.unit


def mark_words(marks: Iterable[Mark], clairvoyant: bool = False) -> tuple[str, ...]:
    """Return what a reader must know of a policy, in a word or two each."""
    return (*["clairvoyant"] * clairvoyant, *(f"{mark.sign} {mark.words}" for mark in marks))


def scenario_rows(scenario: Scenario) -> list[tuple[str, str]]:
    """Return hardware, memory, rules and workload of a scenario: pairs of a term and its description."""
    return [
        ("Scenario", scenario.heading),
        *hardware_rows(scenario),
        *memory_rows(scenario, scenario.make_system().kv_capacity),
        ("Workload", describe_spec(scenario.make_workload().spec)),
        *rule_rows(scenario),
    ]


_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times faster, if available


def as_yaml(blocks: Iterable[tuple[str, Any]], command: str) -> list[tuple[str, str]]:
    """Return titled contents as YAML, without empty ones, and software versions."""
    return [
        (
            title,
            yaml.dump(
                strip_local_paths(jsonable(content)),
                Dumper=_Dumper,
                sort_keys=False,
                allow_unicode=True,
                width=100,
            ),
        )
        for title, content in (*blocks, ("Software", run_context(command)))
        if content
    ]


def definitions() -> list[dict[str, Any]]:
    """Return the definitions of all metrics: paragraphs (one item) and lists, with items split at code."""
    text = (kvgym.metrics.compute.__doc__ or "").partition("\n")[2].strip()
    blocks = []
    for block in re.split(r"\n\s*\n", text):
        bullets = block.startswith("- ")
        items = re.split(r"\n- ", block[2:]) if bullets else [block]
        parts = [[{"code": i % 2 == 1, "text": t} for i, t in enumerate(item.split("``"))] for item in items]
        blocks.append({"bullets": bullets, "items": parts})
    return blocks
