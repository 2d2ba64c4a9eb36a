"""Logs of GuideLLM and AIPerf, and the summaries of both, which are no logs.

- GuideLLM: ``benchmarks.json`` (repository vllm-project/guidellm, ``src/guidellm/schemas/request_stats.py`` and
  ``info.py``, commit ee7a7745). Benchmarks of one file follow each other on one clock and are one log.
- AIPerf: ``profile_export.jsonl`` (repository ai-dynamo/aiperf, ``docs/tutorials/working-with-profile-exports.md``,
  commit db4f6397).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kvgym.errors import TraceFormatError
from kvgym.servers.validation.log_rows import Row, number

_UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_SUMMARIES = {
    b"Run Info,": ("GuideLLM", "benchmarks.json, its output of kind json"),
    b"Metric,": ("AIPerf", "profile_export.jsonl, from the same folder"),
}
"""First bytes of a summary in CSV: its program, and the file to give instead."""


def check_summary(path: Path) -> None:
    """Check that a file is no summary in CSV.

    Raises:
        TraceFormatError: it is one; the message names the file to give.
    """
    try:
        with path.open("rb") as file:
            head = file.read(64).removeprefix(b"\xef\xbb\xbf")
    except (OSError, ValueError):  # the reader of files says what is wrong
        return
    for begin, (program, instead) in _SUMMARIES.items():
        if head.startswith(begin):
            _refuse(path, program, instead)


def refuse_aiperf_summary(path: Path, records: Iterable[Mapping[str, Any]]) -> NoReturn:
    """Refuse ``profile_export_aiperf.json``.

    Raises:
        TraceFormatError: always; the message names the file to give.
    """
    _refuse(path, *_SUMMARIES[b"Metric,"])


def _refuse(path: Path, program: str, instead: str) -> NoReturn:
    raise TraceFormatError(
        f"{path}: a summary of {program}, without the values of every request; give {instead}"
    )


def read_guidellm(
    path: Path, records: Iterable[Mapping[str, Any]]
) -> tuple[Sequence[Row], int | None, list[str]]:
    """Return the requests of GuideLLM's report."""
    (report,) = records
    benchmarks = report["benchmarks"]
    rows = [
        _guidellm_row(record, "" if status == "successful" else status)
        for benchmark in benchmarks
        for status in ("successful", "incomplete", "errored")
        for record in benchmark["requests"].get(status) or ()
    ]
    if not rows:
        raise TraceFormatError(
            f"{path}: the report has no requests; run GuideLLM without a limit on the requests that it samples"
        )
    several = len(benchmarks) > 1
    return rows, None, [f"{len(benchmarks)} benchmarks follow each other." for _ in range(several)]


def _guidellm_row(record: Mapping[str, Any], reason: str) -> Row:
    times = record["info"]["timings"]
    start, first, last = (
        number(next((times[name] for name in names if times.get(name) is not None), None))
        for names in (
            ("request_start",),
            ("first_token_iteration", "first_iteration"),
            ("last_token_iteration", "last_iteration"),
        )
    )
    return Row(
        arrival_time=start,
        prompt_len=number(record.get("prompt_tokens")),
        output_len=number(record.get("output_tokens")),
        ttft=first - start,
        e2e_latency=last - start,
        reason=reason and str(record["info"].get("error") or reason),
    )


def read_aiperf(
    path: Path, records: Iterable[Mapping[str, Any]]
) -> tuple[Sequence[Row], int | None, list[str]]:
    """Return the requests of AIPerf's export of records."""
    return [_aiperf_row(record) for record in records], None, []


def _aiperf_row(record: Mapping[str, Any]) -> Row:
    about, metrics, error = record["metadata"], record["metrics"] or {}, record.get("error")
    if error or about.get("was_cancelled"):
        return Row(reason=str((error or {}).get("type") or "cancelled"))
    return Row(
        arrival_time=number(about["request_start_ns"]) / 1e9,
        prompt_len=_metric(metrics, "input_sequence_length"),
        output_len=_metric(metrics, "output_sequence_length"),
        ttft=_metric(metrics, "time_to_first_token"),
        e2e_latency=_metric(metrics, "request_latency"),
        warm_up=about.get("benchmark_phase") == "warmup",
    )


def _metric(metrics: Mapping[str, Any], name: str) -> float:
    """Return a metric of a record, seconds or tokens; NaN without it."""
    found = metrics.get(name)
    return math.nan if found is None else number(found["value"]) * _UNITS.get(found.get("unit"), 1.0)
