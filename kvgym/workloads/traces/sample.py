"""Synthetic traces in the layout of every supported format, for examples and tests."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.errors import ConfigError, UnknownNameError
from kvgym.utils.files import whole_file, write_text
from kvgym.utils.frame import pyarrow
from kvgym.utils.seeding import stream
from kvgym.workloads.lengths import LogNormalLength
from kvgym.workloads.table import RequestTable
from kvgym.workloads.traces.writer import write_requests

Rows = list[dict[str, Any]]


def sample_requests(num_requests: int = 200, seed: int = 0) -> RequestTable:
    """Return synthetic requests: Poisson, 5 per second, lognormal lengths; times in whole milliseconds."""
    gaps = stream(seed, "arrivals").exponential(0.2, num_requests)
    prompt = LogNormalLength(median=300, mean=500).sample(num_requests, stream(seed, "lengths", 0))
    output = LogNormalLength(median=80, mean=120).sample(num_requests, stream(seed, "lengths", 1))
    times = np.cumsum(gaps)
    times = np.round(times - times[0], 3)
    return RequestTable.from_columns(arrival_time=times, prompt_len=prompt, output_len=output)


def write_sample_trace(
    path: str | Path,
    format: str,  # noqa: A002
    num_requests: int = 200,
    seed: int = 0,
) -> RequestTable:
    """Write a synthetic trace as a file of a given format.

    Args:
        path: the file; its suffix should match the format (``.csv``, ``.jsonl``, ``.json``, ``.parquet``).
        format: a name of :func:`kvgym.workloads.trace_formats`.
        num_requests: number of requests.
        seed: non-negative integer.

    Returns:
        The requests in the file. Texts consist of words, one per token.
    """
    path = Path(path)
    table = sample_requests(num_requests, seed)
    if format == "kvgym":
        write_requests(table, path)
        return table
    if format not in _ROWS:
        raise UnknownNameError("trace format", format, ["kvgym", *_ROWS])
    rows = _ROWS[format](table)
    if path.suffix == ".csv":
        with whole_file(path) as place, place.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        write_text(path, json.dumps(rows))
    elif path.suffix == ".parquet":
        pa = pyarrow()
        with whole_file(path) as place:
            pa.parquet.write_table(pa.Table.from_pylist(rows), place)
    else:
        raise ConfigError(f"{path}: unknown suffix; valid: .csv, .jsonl, .json, .parquet")
    return table


def _tuples(table: RequestTable) -> Sequence[tuple[float, int, int]]:
    """Return (arrival time, prompt length, output length) as Python numbers."""
    columns = (table.arrival_time.tolist(), table.prompt_len.tolist(), table.output_len.tolist())
    return list(zip(*columns, strict=True))


def _azure(table: RequestTable) -> Rows:
    origin = datetime(2023, 11, 16, 18, 15, 46, tzinfo=timezone.utc)
    return [
        {
            "TIMESTAMP": f"{origin + timedelta(milliseconds=round(1e3 * t)):%Y-%m-%d %H:%M:%S.%f}0",
            "ContextTokens": p,
            "GeneratedTokens": o,
        }
        for t, p, o in _tuples(table)
    ]


def _burstgpt(table: RequestTable) -> Rows:
    return [
        {
            "Timestamp": t,
            "Model": "ChatGPT",
            "Request tokens": p,
            "Response tokens": o,
            "Total tokens": p + o,
            "Log Type": "Conversation log",
        }
        for t, p, o in _tuples(table)
    ]


def _mooncake(table: RequestTable) -> Rows:
    return [
        {"timestamp": round(1e3 * t), "input_length": p, "output_length": o, "hash_ids": _hash_ids(i, p, 512)}
        for i, (t, p, o) in enumerate(_tuples(table))
    ]


def _mooncake_sessions(table: RequestTable) -> Rows:
    rows, times = _mooncake(table), np.round(1e3 * table.arrival_time).astype(int).tolist()
    for i, row in enumerate(rows):
        row["session_id"] = f"session-{i // 2}"
        if i % 2:
            row["delay"] = row.pop("timestamp") - times[i - 1]
    return rows


def _weka(table: RequestTable) -> Rows:
    """Return conversations of four calls, of which a subagent makes the second and the third."""
    rows, tuples = [], _tuples(table)
    for first in range(0, len(tuples), 4):
        begin = tuples[first][0]
        calls = [
            {"t": round(t - begin, 3), "type": "s", "in": p, "out": o, "hash_ids": _hash_ids(i, p, 64)}
            for i, (t, p, o) in enumerate(tuples[first : first + 4])
        ]
        inner = {"type": "subagent", "agent_id": "agent", "status": "completed", "requests": calls[1:3]}
        entries = [calls[0], *({"t": call["t"], **inner} for call in calls[1:2]), *calls[3:]]
        rows.append({"id": f"{first}", "block_size": 64, "hash_id_scope": "local", "requests": entries})
    return rows


def _bailian(table: RequestTable) -> Rows:
    return [
        {
            "chat_id": i,
            "parent_chat_id": i - 1 if i % 2 else -1,
            "timestamp": t,
            "input_length": p,
            "output_length": o,
            "type": "text",
            "turn": 1 + i % 2,
            "hash_ids": _hash_ids(i, p, 16),
        }
        for i, (t, p, o) in enumerate(_tuples(table))
    ]


def _hash_ids(row: int, tokens: int, block: int) -> list[int]:
    """Return the hashes of a request that shares its first block, if that is full, with all others."""
    own = range(1, -(-tokens // block))
    return [0 if tokens >= block else _OWN * (row + 1), *(_OWN * (row + 1) + j for j in own)]


_OWN = 1 << 16  # hashes of one request


def _vidur(table: RequestTable) -> Rows:
    return [{"arrived_at": t, "num_prefill_tokens": p, "num_decode_tokens": o} for t, p, o in _tuples(table)]


def _words(n: int) -> str:
    return " ".join(["word"] * n)


def _sharegpt(table: RequestTable) -> Rows:
    return [
        {
            "id": str(i),
            "conversations": [{"from": "human", "value": _words(p)}, {"from": "gpt", "value": _words(o)}],
        }
        for i, (_, p, o) in enumerate(_tuples(table))
    ]


def _lmsys(table: RequestTable) -> Rows:
    return [
        {
            "conversation_id": str(i),
            "model": "synthetic",
            "conversation": [
                {"content": _words(p), "role": "user"},
                {"content": _words(o), "role": "assistant"},
            ],
            "turn": 1,
        }
        for i, (_, p, o) in enumerate(_tuples(table))
    ]


def _table(table: RequestTable) -> Rows:
    first = datetime(2024, 5, 10, 8, 30, tzinfo=timezone(timedelta(hours=2)))
    return [
        {"timestamp": (first + timedelta(seconds=a)).isoformat(), "input_tokens": p, "output_tokens": o}
        for a, p, o in _tuples(table)
    ]


def _lmcache(table: RequestTable) -> Rows:
    return [
        {
            "session_id": f"session-{i}",
            "model": "synthetic",
            "input": [{"role": "user", "content": _words(p - 1)}],
            "output_length": o,
            "pre_gap": 0.0,
        }
        for i, (_, p, o) in enumerate(_tuples(table))
    ]


_ROWS: dict[str, Callable[[RequestTable], Rows]] = {
    "azure": _azure,
    "burstgpt": _burstgpt,
    "bailian": _bailian,
    "mooncake": _mooncake,
    "mooncake_sessions": _mooncake_sessions,
    "vidur": _vidur,
    "sharegpt": _sharegpt,
    "lmsys": _lmsys,
    "lmcache": _lmcache,
    "weka": _weka,
    "table": _table,
}
