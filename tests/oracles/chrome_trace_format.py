"""A strict check of the Chrome JSON trace format.

After "Trace Event Format" (Google, 2016; docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU),
in the object form. Like viewers, it is stricter than the specification: times are whole nanoseconds, slices of a track
never overlap in part, an enclosing slice comes first, arrows begin and end in slices, and every process and track has
a name.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

REQUIRED = {
    "X": {"dur"},
    "i": {"s"},
    "C": {"args"},
    "M": {"args"},
    "s": {"id", "cat"},
    "f": {"id", "cat", "bp"},
}
COMMON = {"name", "ph", "ts", "pid", "tid"}
OPTIONAL = {"args", "cname"}
METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
KEYS = {"traceEvents", "displayTimeUnit", "otherData"}


def load(path: str | Path) -> dict[str, Any]:
    """Read and check a trace; return ``ts`` and ``dur`` as whole nanoseconds."""
    path = Path(path)
    raw = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    content = json.loads(
        raw.decode("ascii"), parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=_once
    )
    check(content)
    return content


def check(content: Any) -> None:
    """Raise AssertionError if the content is not a trace; replace times by nanoseconds."""
    assert isinstance(content, dict)
    assert content.keys() <= KEYS, content.keys() - KEYS
    assert content["displayTimeUnit"] in ("ms", "ns")
    assert isinstance(content.get("otherData", {}), dict)
    assert isinstance(content["traceEvents"], list)
    for event in content["traceEvents"]:
        _check_event(event)
    slices, named = defaultdict(list), {"process_name": set(), "thread_name": set()}
    for event in content["traceEvents"]:
        track = event["pid"], event["tid"]
        if event["ph"] == "X":
            slices[track].append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] == "M" and event["name"] in named:
            key = track if event["name"] == "thread_name" else event["pid"]
            assert key not in named[event["name"]], f"named twice: {event}"
            named[event["name"]].add(key)
    for track, spans in slices.items():
        _check_nesting(track, spans)
    for event in content["traceEvents"]:
        if event["ph"] != "M":
            assert event["pid"] in named["process_name"], f"a process without a name: {event}"
        if event["ph"] in "Xisf":
            assert (event["pid"], event["tid"]) in named["thread_name"], f"a track without a name: {event}"
    _check_arrows(content["traceEvents"], slices)


def _check_event(event: Any) -> None:
    assert isinstance(event, dict)
    phase = event.get("ph")
    assert phase in REQUIRED, f"phase {phase!r}: {event}"
    assert event.keys() >= COMMON | REQUIRED[phase], f"fields are missing: {event}"
    assert event.keys() <= COMMON | REQUIRED[phase] | OPTIONAL, f"fields that do not belong: {event}"
    assert isinstance(event["name"], str)
    assert event["name"]
    for name in ("pid", "tid"):
        assert isinstance(event[name], int), event
        assert not isinstance(event[name], bool), event
        assert event[name] > 0, f"0 is the idle process to viewers: {event}"
    for name in {"ts", "dur"} & event.keys():
        event[name] = _nanoseconds(event[name])
    assert isinstance(event.get("args", {}), dict)
    if phase == "X":
        assert event["dur"] > 0, f"an invisible slice: {event}"
    elif phase == "i":
        assert event["s"] in ("g", "p", "t")
    elif phase == "C":
        assert event["args"], event
        for value in event["args"].values():
            assert isinstance(value, int | Decimal), f"a counter that is no number: {event}"
            assert not isinstance(value, bool), event
    elif phase == "M":
        key, kind = METADATA[event["name"]]
        assert event["args"].keys() == {key}, event
        assert isinstance(event["args"][key], kind), event


def _check_nesting(track: tuple[int, int], spans: list[tuple[int, int]]) -> None:
    """Check that slices of a track are nested or disjoint, and that the outer one comes first in the file."""
    around: list[int] = []
    for start, end in sorted(spans, key=lambda span: span[0]):  # stable: equal starts as in the file
        while around and around[-1] <= start:
            around.pop()
        assert not around or end <= around[-1], f"track {track}: {start} … {end} overlaps another slice"
        around.append(end)


def _check_arrows(events: list[Any], slices: dict[tuple[int, int], list[tuple[int, int]]]) -> None:
    """Check that every arrow has a begin and, not earlier, an end, each in a slice of its track."""
    ends: dict[Any, dict[str, Any]] = defaultdict(dict)
    for event in events:
        if event["ph"] in ("s", "f"):
            key = event["cat"], event["name"], event["id"]
            assert event["ph"] not in ends[key], f"twice: {event}"
            ends[key][event["ph"]] = event
            spans = slices[event["pid"], event["tid"]]
            assert any(start <= event["ts"] < end for start, end in spans), f"in no slice: {event}"
    for key, pair in ends.items():
        assert pair.keys() == {"s", "f"}, f"arrow {key} has only {list(pair)}"
        assert pair["s"]["ts"] <= pair["f"]["ts"], f"arrow {key} goes back in time"


def _nanoseconds(microseconds: Any) -> int:
    assert isinstance(microseconds, int | Decimal), microseconds
    assert not isinstance(microseconds, bool)
    assert microseconds >= 0, microseconds
    whole = Decimal(microseconds) * 1000
    assert whole == int(whole), f"{microseconds} µs: more digits than nanoseconds"
    return int(whole)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs), f"a key twice: {pairs}"
    return dict(pairs)
