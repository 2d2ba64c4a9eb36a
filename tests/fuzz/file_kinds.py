"""Kinds of input: scenarios, training configurations, hardware and traces."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fuzz.kinds import Kind, raw, refuse, written
from kvgym.utils.reading import shipped_texts

SMALL = {
    "summary": "small",
    "kv_capacity": 400,
    "batch_time": {"kind": "affine", "constant": 0.01, "per_context_token": 0.0001},
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 4.0},
        "lengths": {
            "kind": "independent",
            "prompt": {"kind": "uniform", "low": 5, "high": 60},
            "output": {"kind": "lognormal", "median": 20, "sigma": 0.5},
        },
        "predictions": {"kind": "noisy", "epsilon": 0.2},
        "num_requests": 20,
    },
    "system": {"first_token": "counted", "progress_on_evict": "lost", "block_size": 4, "stall_limit": 5000},
    "policies": ["fcfs", "mc_sf"],
    "seeds": 1,
}


def scenario_seeds() -> list[Any]:
    shipped = [yaml.safe_load(text) for _, text in sorted(shipped_texts("scenario").items())]
    kinds = [
        {"kind": "gamma", "rate": 4.0, "burstiness": 0.5},
        {"kind": "deterministic", "rate": 4.0},
        {"kind": "piecewise", "times": [0, 2, 4], "rates": [3, 0, 5], "period": 6.0},
        {"kind": "sinusoid", "rate": 4.0, "period": 10.0},
        {"kind": "timestamps", "times": [0, 1, 2, 3]},
        {"kind": "slotted", "rate": 2.0},
        {"kind": "all_at_once"},
    ]
    variants = [{**SMALL, "workload": {**SMALL["workload"], "arrivals": arrivals}} for arrivals in kinds]
    timed = [{**v, "workload": {**v["workload"], "num_requests": None, "duration": 5.0}} for v in variants]
    cluster = {**SMALL, "workers": [{"count": 2, "role": "mixed"}], "router": "join_shortest_queue"}
    classes = {
        **SMALL,
        "workload": {
            "classes": [
                {
                    "name": "a",
                    "rate": 2.0,
                    "prompt": {"kind": "constant", "value": 5},
                    "output": {"kind": "constant", "value": 9},
                },
                {
                    "name": "b",
                    "rate": 1.0,
                    "priority": 2,
                    "ttft_slo": 1.0,
                    "prompt": {"kind": "discrete", "values": [3, 30], "weights": [1.0, 2.0]},
                    "output": {"kind": "uniform", "low": 1, "high": 9},
                },
            ],
            "num_requests": {"low": 5, "high": 20},
        },
    }
    window = {**SMALL, "warm_up": "3r", "cool_down": 1.0, "too_long": "clip"}
    trees = [SMALL, *variants, *timed, cluster, classes, window, *shipped]
    return [*trees, *[raw(yaml.safe_dump(tree)) for tree in (SMALL, cluster, classes)]]


def play_scenario(content: Any, folder: Path) -> None:
    from kvgym.experiments.scenario import load_scenario
    from kvgym.policies.policy import make_policy

    scenario = load_scenario(written(folder, "scenario.yaml", content))
    system, workload = scenario.make_system(), scenario.make_workload()
    scenario.make_router()
    for policy in scenario.policies:
        make_policy(policy)
    scenario.window  # noqa: B018
    one = scenario.of_seed(0)
    table = one.sample(workload, 0, system.usable_capacity)
    scenario.notes(table)
    scenario.resolved()
    seconds = [
        worker.batch_time(prefill_tokens=3, num_decodes=2, decode_context=9)
        for worker in system.all_workers[:3]
    ]
    refuse(not all(0 <= s < math.inf for s in seconds), f"invalid batch times: {seconds}")
    refuse(len(table) == 0 and not table.notes, "no requests, without a note")
    refuse(not 2 <= system.kv_capacity < 2**31, f"an invalid memory: {system.kv_capacity}")


SCENARIO = Kind("scenario", scenario_seeds, play_scenario, weight=3)


def training_seeds() -> list[Any]:
    shipped = [yaml.safe_load(text) for _, text in sorted(shipped_texts("train").items())]
    return [*shipped, *[raw(text) for _, text in sorted(shipped_texts("train").items())]]


def play_training(content: Any, folder: Path) -> None:
    from kvgym.agents.runs.config import load_training

    config = load_training(written(folder, "training.yaml", content))
    least = 0 if config.LENGTH == "generations" else 1  # with 0 generations only the start is evaluated
    refuse(not least <= config.length < 10**18, f"an invalid length: {config.length}")


TRAINING = Kind("training", training_seeds, play_training, weight=2)


def hardware_seeds() -> list[Any]:
    texts = shipped_texts("hardware")
    smallest = sorted(texts, key=lambda name: len(texts[name]))[:2]
    roofline = {"kind": "roofline", "model": "llama3-8b", "gpu": "h100-80gb", "tp": 1}
    return [
        *[yaml.safe_load(texts[name]) for name in smallest],
        roofline,
        raw(texts[smallest[0]]),
        raw(yaml.safe_dump(roofline)),
    ]


def play_hardware(content: Any, folder: Path) -> None:
    from kvgym.batch_time.deployments.load import load_hardware

    hardware = load_hardware(written(folder, "hardware.yaml", content))
    model = hardware.batch_time()
    for load in ({"num_decodes": 1, "decode_context": 1}, {"num_decodes": 64, "decode_context": 10**5}):
        seconds = model(**load)
        refuse(not 0 <= seconds < math.inf, f"an invalid batch time: {seconds}")
    refuse(not hardware.kv_capacity >= 2, f"an invalid memory: {hardware.kv_capacity}")


HARDWARE = Kind("hardware", hardware_seeds, play_hardware)

# Columns of each trace format: arrival, prompt, output.
COLUMNS = {
    "kvgym": ("arrival_time", "prompt_len", "output_len"),
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens"),
    "mooncake": ("timestamp", "input_length", "output_length"),
    "bailian": ("timestamp", "input_length", "output_length"),
    "vidur": ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
}
# What their requests share: hashes of the prompts of 10, 200 and 3 tokens, and sessions.
SHARED = {
    "kvgym": [
        {
            "hash_ids": ids,
            "hash_block": 64,
            "session_id": session,
            "turn": turn,
            "think_time": 0.5,
            "gap_kind": kind,
        }
        for ids, session, turn, kind in (("7", "a", 1, 0), ("1 2 3 4", "b", 1, 0), ("8", "a", 2, 1))
    ],
    "mooncake": [{"hash_ids": ids} for ids in ([0], [1], [2])],
    "bailian": [
        {"chat_id": chat, "parent_chat_id": parent, "turn": turn, "type": "text", "hash_ids": ids}
        for chat, parent, turn, ids in ((5, -1, 1, [1]), (6, -1, 1, list(range(2, 15))), (7, 5, 2, [1]))
    ],
}
TURNS = {
    "sharegpt": [{"conversations": [{"from": "human", "value": "a b c"}, {"from": "gpt", "value": "d e"}]}],
    "lmsys": [
        {"conversation": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c d"}]}
    ],
    "lmcache": [
        {"session_id": "s", "input": [{"role": role, "content": "a b c"}], "output_length": 3, "pre_gap": 0.5}
        for role in ("user", "tool")
    ],
    "mooncake_sessions": [
        {"session_id": "s", "input_length": 20, "output_length": 3, "hash_ids": [1], **time}
        for time in ({"timestamp": 5}, {"delay": 2.5})
    ],
    "weka": [
        {
            "block_size": 64,
            "hash_id_scope": "local",
            "requests": [
                {"t": 0, "in": 100, "out": 3, "hash_ids": [1, 2], "api_time": 0.5, "stop": "tool_use"},
                {"t": 1, "type": "subagent", "agent_id": "a", "requests": [{"t": 1.5, "in": 9, "out": 1}]},
                {"t": 2, "in": 120, "out": 3, "hash_ids": [1, 2], "think_time": 0.5},
            ],
        }
    ],
}


def trace_seeds() -> list[Any]:
    seeds: list[Any] = []
    for name, columns in COLUMNS.items():
        stamps = ["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690", "2023-11-16 18:15:51"]
        times = stamps if name == "azure" else [0, 1000, 2500] if name == "mooncake" else [0.0, 1.5, 1.5]
        rows = [
            dict(zip(columns, row, strict=True)) for row in zip(times, [10, 200, 3], [4, 5, 600], strict=True)
        ]
        if name == "kvgym":
            rows = [
                {**row, "priority": 1, "ttft_slo": 2.5, "class_id": 0, "predicted_output_len": 7}
                for row in rows
            ]
        rows = [row | more for row, more in zip(rows, SHARED.get(name, [{}] * 3), strict=True)]
        containers = (
            ("csv", "parquet") if name in ("azure", "burstgpt", "vidur") else ("csv", "jsonl", "parquet")
        )
        for container in containers:
            seeds.append({"format": name, "container": container, "rows": rows})
            seeds.append(
                {"format": "auto", "container": container, "data": raw(trace_bytes(container, rows))}
            )
    for name, rows in TURNS.items():
        container = "json" if name in ("sharegpt", "lmsys") else "jsonl"
        seeds.append({"format": name, "container": container, "rows": rows})
        seeds.append({"format": "auto", "container": container, "data": raw(trace_bytes(container, rows))})
    return seeds


def trace_bytes(container: str, rows: Any) -> bytes:
    """Return a trace file for any rows, as JSON if the container cannot hold them."""
    named = isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)
    if container == "csv" and named:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode("utf-8", "replace")
    if container == "parquet" and named:
        import pyarrow as pa
        import pyarrow.parquet

        buffer = io.BytesIO()
        try:
            pa.parquet.write_table(pa.Table.from_pylist(rows), buffer)
        except (pa.ArrowException, TypeError, OverflowError, AttributeError):  # columns of several types
            texts = [{str(k): str(v) for k, v in row.items()} for row in rows]
            buffer = io.BytesIO()
            pa.parquet.write_table(pa.Table.from_pylist(texts), buffer)
        return buffer.getvalue()
    if container == "jsonl" and isinstance(rows, list):
        return "\n".join(map(json.dumps, rows)).encode()
    return json.dumps(rows).encode()


def play_trace(content: Any, folder: Path) -> None:
    from kvgym.workloads.traces import read_trace

    content = content if isinstance(content, dict) else {}
    container, rows = str(content.get("container", "csv"))[:20], content.get("rows")
    data = content.get("data")
    if not isinstance(data, bytes):
        data = trace_bytes(container, rows)
    suffix = container if container.isalnum() else "csv"
    path = folder / f"trace.{suffix}"
    path.write_bytes(data)
    name = content.get("format")
    table = read_trace(path, name if isinstance(name, str) else "auto")
    columns = COLUMNS.get(str(name))
    if isinstance(rows, list) and columns is not None and "data" not in content:
        for row in rows:
            written = rows[0] if container == "csv" else row
            if isinstance(row, dict) and all(row.get(name) in (None, "", " ") for name in written):
                continue  # an empty line; in CSV, cells without a header do not count
            wrong = [row.get(c) for c in columns[1:] if isinstance(row, dict) and _no_count(row.get(c))]
            refuse(bool(wrong), f"a length: {wrong}")
    for values in table.columns().values():
        refuse(bool(np.isnan(values.astype(float)).any()), "a column that is not a number: NaN")
    refuse(len(table) == 0, "no requests")


def _no_count(value: Any) -> bool:
    """Whether a value is clearly not a number of tokens; 0 marks rows to skip."""
    if value is None or isinstance(value, bool | dict | list):
        return True
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return True
    return not 0 <= number < 2**31 or number != int(number)


TRACE = Kind("trace", trace_seeds, play_trace, weight=3)
