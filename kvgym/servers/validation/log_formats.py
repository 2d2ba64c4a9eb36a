"""Logs that benchmarks of servers write, recognised by their keys and read as one row per request.

- ``kvgym server observe``: ``requests.jsonl`` of a results folder, or the folder.
- vLLM: the JSON file of ``vllm bench serve --save-result --save-detailed`` (repository vllm-project/vllm,
  ``vllm/benchmarks/serve.py``, commit 009e6d4), which has a list per column, and the one of ``kvgym run --format
  vllm-bench``.
- GuideLLM, AIPerf: see :mod:`kvgym.servers.validation.client_logs`.
- inference-perf: ``per_request_lifecycle_metrics.json`` (repository kubernetes-sigs/inference-perf,
  ``inference_perf/reportgen/base.py`` and ``inference_perf/apis/base.py``), also of its first versions, which have the
  token times directly in ``info``.
- engine times: JSONL with vLLM's ``RequestStateStats`` and the lengths, as the benchmark of LLMServingSim 2 writes it,
  with its ``*.meta.json``.

Requests that failed are left out, with their number and the reasons in a note.
:func:`~kvgym.servers.validation.served.read_served` uses this module and reads all other files as tables.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvgym.errors import TraceFormatError, cut, some
from kvgym.servers.validation.client_logs import (
    check_summary,
    read_aiperf,
    read_guidellm,
    refuse_aiperf_summary,
)
from kvgym.servers.validation.log_rows import NUMBERS, Row, number
from kvgym.workloads.traces.source import SourceFile

REQUESTS = "requests.jsonl"
"""The log in a results folder of ``kvgym server observe``."""

OBSERVED = "observed.json"
"""The file next to such a log with what was observed of the server as a whole."""

OWN_OUTPUT = (
    "This log was written by kvgym run: agreement with it proves nothing. Give the log of a real server; "
    "docs/validation.md lists the forms."
)
"""The note on a log that is the simulator's own output."""


@dataclass(frozen=True)
class ParsedLog:
    """The requests of a log that can be compared, in file order.

    Attributes:
        rows: at least one.
        num_evictions: evictions (vLLM: preemptions) during the log; None = not known.
        notes: what was left out and how times were read, one sentence each.
        inside: whether its times are the engine's own, without its API.
    """

    rows: tuple[Row, ...]
    num_evictions: int | None = None
    notes: tuple[str, ...] = ()
    inside: bool = False


class LogFormat(NamedTuple):
    """A format of logs.

    Attributes:
        name: its name.
        keys: keys of the first record by which it is recognised.
        read: returns rows, evictions and notes from the path and the records.
        is_log: whether it can be read; the others have an error with a remedy.
        inside: whether its times are the engine's own, without its API.
    """

    name: str
    keys: frozenset[str]
    read: Callable[[Path, Iterable[Mapping[str, Any]]], tuple[Sequence[Row], int | None, list[str]]]
    is_log: bool = True
    inside: bool = False


def parse_log(path: Path) -> ParsedLog | None:
    """Return the log in a file of a known format, None for another format.

    Args:
        path: the file.

    Raises:
        TraceFormatError: the file cannot be read, or has no request that can be compared.
    """
    check_summary(path)
    found = _records(path)
    if found is None:
        return None
    names, records = found
    known = next((f for f in FORMATS if f.keys <= set(names)), None)
    if known is None:
        first = next(iter(records), {})
        if any(isinstance(value, int | float) for value in first.values()):
            return None
        raise TraceFormatError(
            f"{path}: no log of {', '.join(f.name for f in FORMATS if f.is_log)}, and no table of requests (keys "
            f"{some(names, 60)}); write a row per request, CSV or JSON lines: arrival_time,prompt_len,output_len,ttft,"
            "e2e_latency"
        )
    try:
        rows, evictions, notes = known.read(path, records)
        problems = [row.problem() for row in rows]
    except TraceFormatError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise TraceFormatError(
            f"{path}: looks like a log of {known.name}, but a value has another form ({cut(str(error), 80)}); give "
            "the file as that program wrote it"
        ) from None
    reasons = Counter(filter(None, problems))
    listed = ", ".join(f"{count:,} x {cut(reason, 60)}" for reason, count in reasons.most_common(4))
    kept = tuple(row for row, problem in zip(rows, problems, strict=True) if not problem)
    if not kept:
        raise TraceFormatError(f"{path}: no request of the log can be compared: {listed or 'it has none'}")
    left_out = f"{reasons.total():,} of {len(rows):,} requests are left out: {listed}." if reasons else ""
    notes = [f"Read as a log of {known.name}.", *notes, *filter(None, [left_out])]
    return ParsedLog(kept, evictions, tuple(notes), known.inside)


def _records(path: Path) -> tuple[Sequence[str], Iterable[dict[str, Any]]] | None:
    """Return the keys of the first JSON record of a file, and all records; None for other files."""
    try:
        source = SourceFile.open(path)
    except TraceFormatError:
        whole = _object(path)
        if whole is None:
            raise
        return tuple(whole), [whole]
    if source.container not in ("json", "jsonl"):
        return None
    return source.names, (record for _, record in source.rows())


def _object(path: Path) -> dict[str, Any] | None:
    """Return a file that is one JSON object over several lines, None for others."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _read_about(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file that accompanies a log; empty if there is none."""
    return _object(path) or {}


# ------------------------------------------------------------ kvgym server observe


def _read_observed(
    path: Path, records: Iterable[Mapping[str, Any]]
) -> tuple[Sequence[Row], int | None, list[str]]:
    about = _read_about(path.with_name(OBSERVED))
    notes = list(about.get("notes", []))
    kept: list[Mapping[str, Any]] = []
    try:
        kept.extend(records)
    except TraceFormatError:
        if path.read_bytes().endswith(b"\n"):
            raise
        notes.append("The last row is cut off: the measurement was killed.")
    rows = [
        Row(
            **{name: number(record.get(name)) for name in NUMBERS},
            reason=record.get("reason") or "",
            warm_up=bool(record.get("warm_up")),
        )
        for record in kept
    ]
    return rows, about.get("num_evictions"), notes


# ------------------------------------------------------------ vLLM's benchmark


VLLM = "vllm bench serve"


def _read_sglang(
    path: Path, records: Iterable[Mapping[str, Any]]
) -> tuple[Sequence[Row], int | None, list[str]]:
    return _read_vllm(path, records, "SGLang's bench_serving", "--output-details")


def _read_vllm(
    path: Path,
    records: Iterable[Mapping[str, Any]],
    program: str = VLLM,
    option: str = "--save-detailed",
) -> tuple[Sequence[Row], int | None, list[str]]:
    results = list(records)
    if len(results) > 1:
        raise TraceFormatError(
            f"{path}: {len(results)} results of {program} in one file; give each its own file"
        )
    (result,) = results
    wanted = ("input_lens", "output_lens", "ttfts", "start_times")
    missing = [name for name in wanted if name not in result]
    if missing:
        advice = "use a version that saves them" if "ttfts" in result else f"add {option}"
        if program != VLLM and missing == ["start_times"]:
            advice = (
                "measure with kvgym server observe, vllm bench serve, GuideLLM or AIPerf, which save them"
            )
        raise TraceFormatError(
            f"{path}: a result of {program} without {', '.join(missing)}; a log needs the values of every "
            f"request: {advice}"
        )
    latencies = result.get("latencies") or [
        ttft + sum(gaps) for ttft, gaps in zip(result["ttfts"], result["itls"], strict=True)
    ]
    errors = result.get("errors") or [""] * len(latencies)
    columns = [result[name] for name in ("start_times", "input_lens", "output_lens", "ttfts")]
    rows = [
        Row(float(start), float(prompt), float(output), float(ttft), float(latency), _last_line(error))
        for start, prompt, output, ttft, latency, error in zip(*columns, latencies, errors, strict=True)
    ]
    return rows, None, [OWN_OUTPUT] if result.get("backend") == "kvgym" else []


def _last_line(text: str) -> str:
    """Return the last line of an error, which of a traceback is its message."""
    return text.strip().rpartition("\n")[2]


# ------------------------------------------------------------ inference-perf


def _read_inference_perf(
    path: Path, records: Iterable[Mapping[str, Any]]
) -> tuple[Sequence[Row], int | None, list[str]]:
    rows, cached, prompts = [], 0, 0
    for record in records:
        row, hits = _inference_perf_row(record)
        rows.append(row)
        cached, prompts = cached + hits, prompts + (0 if row.problem() else int(row.prompt_len))
    notes = ["Times are of the client; ends are those of the last token."]
    if cached:
        notes.append(f"The prefix cache had {cached / max(prompts, 1):.0%} of all prompt tokens.")
    return rows, None, notes


def _inference_perf_row(record: Mapping[str, Any]) -> tuple[Row, int]:
    """Return a request, and the number of its prompt tokens that the server had in its prefix cache."""
    error, info = record.get("error"), record.get("info") or {}
    if error:
        return Row(reason=error.get("error_type") or "error"), 0
    response = info.get("response_metrics") or info
    usage = response.get("server_usage") or {}
    prompt = (info.get("request_metrics") or {}).get("text", info).get("input_tokens")
    times = response.get("output_token_times") or response.get("chunk_times")
    if not times:
        return Row(reason="the answer was not streamed"), 0
    start = float(record["start_time"])
    details = usage.get("prompt_tokens_details") or {}
    row = Row(
        arrival_time=start,
        prompt_len=number(usage.get("prompt_tokens") or prompt),
        output_len=number(usage.get("completion_tokens") or response.get("output_tokens")),
        ttft=min(times) - start,
        e2e_latency=max(times) - start,
    )
    return row, details.get("cached_tokens") or 0


# ------------------------------------------------------------ times of vLLM's engine


def _read_engine(
    path: Path, records: Iterable[Mapping[str, Any]]
) -> tuple[Sequence[Row], int | None, list[str]]:
    times = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
    kept = list(records)
    table = np.array([[number(record.get(name)) for name in times] for record in kept], np.float64)
    # Two clocks that run equally fast: the arrival closest to its place in the queue shows their distance.
    arrival = table[:, 0] + np.nanmin(table[:, 1] - table[:, 0], initial=math.inf)
    rows = [
        Row(
            float(at),
            _tokens(record, "input"),
            _tokens(record, "output"),
            float(first - at),
            float(last - at),
        )
        for record, at, (first, last) in zip(kept, arrival, table[:, 2:], strict=True)
    ]
    notes = [
        "arrival_time is of another clock than the rest: it was moved by its least distance to queued_ts, so that TTFT "
        "has the wait for the running iteration."
    ]
    return rows, None, [*notes, *_server_settings(path)]


def _tokens(record: Mapping[str, Any], side: str) -> float:
    """Return the prompt or output length of a record."""
    names = (f"{side}_{what}" for what in ("toks", "tokens", "len"))
    return number(next((record[name] for name in names if name in record), None))


def _server_settings(path: Path) -> Iterator[str]:
    """Yield a note on the server's settings in the ``*.meta.json`` of a log, as options of kvgym server validate."""
    stem = path.name.removesuffix(".jsonl").removesuffix(".requests")
    about = _read_about(path.with_name(f"{stem}.meta.json"))
    given, memory = about.get("engine_kwargs") or {}, about.get("kv_cache") or {}
    tokens = memory.get("num_kv_tokens")
    limits = [
        f"{name}={given[name]}" for name in ("max_num_seqs", "max_num_batched_tokens") if given.get(name)
    ]
    options = [f"--kv-capacity {tokens}"] if tokens else []
    options += [f"-p vllm_v1:{','.join(limits)}"] if limits else []
    if options:
        yield f"The server ran {about.get('model', 'its model')} with {' '.join(options)}."


FORMATS = (
    LogFormat(
        "kvgym server observe",
        frozenset({"scheduled_time", "arrival_time", "ttft", "gaps", "reason"}),
        _read_observed,
    ),
    LogFormat(
        "SGLang's bench_serving", frozenset({"duration", "total_output_tokens_retokenized"}), _read_sglang
    ),
    LogFormat("GuideLLM", frozenset({"metadata", "benchmarks"}), read_guidellm),
    LogFormat("AIPerf", frozenset({"metadata", "metrics"}), read_aiperf),
    LogFormat(
        "AIPerf's summary",
        frozenset({"request_throughput", "request_latency", "request_count"}),
        refuse_aiperf_summary,
        is_log=False,
    ),
    LogFormat(VLLM, frozenset({"duration", "completed", "total_input_tokens"}), _read_vllm),
    LogFormat("inference-perf", frozenset({"start_time", "end_time", "info"}), _read_inference_perf),
    LogFormat(
        "engine times",
        frozenset({"arrival_time", "queued_ts", "first_token_ts", "last_token_ts"}),
        _read_engine,
        inside=True,
    ),
)
"""All formats."""
