"""Trace files: names, files left behind, and the strictness of the tests' checker."""

import copy
import json
from decimal import Decimal
from pathlib import Path

import pytest

from kvgym.errors import ConfigError, KVGymError
from kvgym.report.export import trace_file
from kvgym.report.export.trace_file import TraceFile, nanoseconds
from oracles.chrome_trace_format import check, load


def write_some(file):
    file.write("M", "process_name", 1, 1, 0, args={"name": "worker 0"})
    file.write("M", "thread_name", 1, 2, 0, args={"name": "requests"})
    file.write("X", "request 0", 1, 2, 0, dur=3_000, args={"request": 0})
    file.write("X", "queued", 1, 2, 0, dur=1_001)
    file.write("X", "decode", 1, 2, 1_001, dur=1_999)
    file.write("s", "transfer", 1, 2, 0, cat="transfer", id=0)
    file.write("f", "transfer", 1, 2, 1_001, cat="transfer", id=0, bp="e")
    file.write("i", "evicted", 1, 2, 7, s="t")
    file.write("C", "KV tokens", 1, 1, 5, args={"KV tokens": 3})


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_file_content(tmp_path, name):
    with TraceFile(tmp_path / name, {"policy": "fcfs()"}) as file:
        write_some(file)
        assert not file.path.exists()
    assert [p.name for p in tmp_path.iterdir()] == [name]
    content = load(tmp_path / name)
    assert content["otherData"] == {"policy": "fcfs()"}
    decode = next(e for e in content["traceEvents"] if e["name"] == "decode")
    assert (decode["ts"], decode["dur"]) == (1_001, 1_999)
    file.close()  # again: nothing happens


def test_closing_without_events_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError), TraceFile(tmp_path / "run.json"):
        1 / 0  # noqa: B018
    assert not list(tmp_path.iterdir())


def write_and_fail(path, times):
    with TraceFile(path) as file:
        for _ in range(times):
            write_some(file)
        raise RuntimeError("the run failed")


def test_an_error_keeps_written_events(tmp_path):
    with pytest.raises(RuntimeError, match="the run failed"):
        write_and_fail(tmp_path / "run.json.gz", 1)
    assert len(load(tmp_path / "run.json.gz")["traceEvents"]) == 9


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run.txt", ".json or .json.gz"),
        ("run.gz", ".json or .json.gz"),
        (".json", ".json or .json.gz"),
        ("missing/run.json", "cannot be written: No such file"),
        ("folder.json", "a folder"),
    ],
)
def test_invalid_names_are_rejected(tmp_path, name, words):
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match=words):
        TraceFile(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["folder.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_full_disk(tmp_path, name, monkeypatch):
    def full(path):
        path.with_name("part").symlink_to("/dev/full")
        return path.with_name("part")

    monkeypatch.setattr(trace_file, "create_temporary", full)
    with pytest.raises(KVGymError, match="cannot be written to its end: No space left"):
        write_and_fail(tmp_path / name, 100_000)
    assert not list(tmp_path.iterdir())


def test_files_beside_it_stay_and_a_link_is_replaced(tmp_path):
    (tmp_path / "run.json.part").write_text("mine")
    (tmp_path / "run.json").symlink_to("run.json.part")
    with TraceFile(tmp_path / "run.json") as file:
        file.write("i", "x", 1, 1, 0)
    assert (tmp_path / "run.json.part").read_text() == "mine"
    assert not (tmp_path / "run.json").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_nanoseconds():
    assert [nanoseconds(x) for x in (0.0, 1e-9, 0.5, 123456.789012345)] == [
        0,
        1,
        500_000_000,
        123_456_789_012_345,
    ]


def event(**changes):
    return {
        "ph": "X",
        "name": "decode",
        "pid": 1,
        "tid": 2,
        "ts": Decimal("2"),
        "dur": Decimal("1"),
        **changes,
    }


@pytest.mark.parametrize(
    "more",
    [
        [event(ph="Q")],
        [{k: v for k, v in event().items() if k != "dur"}],
        [{k: v for k, v in event().items() if k != "tid"}],
        [event(ts=Decimal("-1"))],
        [event(ts="2")],
        [event(ts=Decimal("2.0001"))],
        [event(dur=0)],
        [event(pid=7)],
        [event(tid=7)],
        [event(pid="1")],
        [event(extra=1)],
        [event(ts=Decimal("2.5"))],  # overlaps the one that ends at 3
        [event(ts=Decimal("3"), dur=Decimal("0.5")), event(ts=Decimal("3"))],  # the inner one first
        [{"ph": "C", "name": "n", "pid": 1, "tid": 1, "ts": 0, "args": {"n": "3"}}],
        [{"ph": "C", "name": "n", "pid": 1, "tid": 1, "ts": 0, "args": {}}],
        [{"ph": "i", "name": "n", "pid": 1, "tid": 2, "ts": 0, "s": "x"}],
        [{"ph": "s", "name": "n", "pid": 1, "tid": 2, "ts": 0, "id": 9, "cat": "c"}],
        [{"ph": "f", "name": "transfer", "pid": 1, "tid": 2, "ts": 0, "id": 0, "cat": "transfer", "bp": "e"}],
        [{"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "again"}}],
        [{"ph": "M", "name": "process_sort_index", "pid": 1, "tid": 1, "ts": 0, "args": {"sort_index": "0"}}],
    ],
)
def test_the_checker_finds_mistakes(tmp_path, more):
    with TraceFile(tmp_path / "run.json") as file:
        write_some(file)
    content = json.loads((tmp_path / "run.json").read_text(), parse_float=Decimal)
    check(copy.deepcopy(content))
    content["traceEvents"] += more
    with pytest.raises((AssertionError, KeyError)):
        check(content)
