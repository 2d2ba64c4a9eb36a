"""A trace file is read once, even if its workload is built several times."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kvgym import load_scenario
from kvgym.errors import TraceFormatError, UnknownNameError
from kvgym.workloads import load_trace
from kvgym.workloads.traces.source import SourceFile

ROWS = "arrival_time,prompt_len,output_len\n0,3,2\n1,5,3\n"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of files opened for reading."""
    seen: list[str] = []
    original = SourceFile.open.__func__  # type: ignore[attr-defined]

    def counted(cls: type[SourceFile], path: str | Path) -> SourceFile:
        seen.append(Path(path).name)
        opened: SourceFile = original(cls, path)
        return opened

    monkeypatch.setattr(SourceFile, "open", classmethod(counted))
    return seen


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(ROWS)
    return path


def test_an_unchanged_file_is_read_once(trace: Path, reads: list[str]) -> None:
    first = load_trace(trace)
    assert load_trace(trace) is first
    assert load_trace(str(trace)) is first
    scenario = load_scenario("mc-sf-model-1").override(
        workload={"name": "mine", "lengths": {"kind": "trace", "path": str(trace)}}
    )
    one, two = scenario.make_workload(), scenario.make_workload()
    assert one.sample(0).columns().keys() == two.sample(0).columns().keys()
    assert reads == ["mine.csv"]


def test_shared_arrays_are_read_only(trace: Path) -> None:
    shared = load_trace(trace)
    for column in (shared.arrival_time, shared.prompt_len, shared.output_len):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 7
    table = shared.to_table()
    assert table.prompt_len.tolist() == [3, 5]


def test_a_changed_file_another_format_or_tokenizer_is_read_again(trace: Path, reads: list[str]) -> None:
    assert load_trace(trace).prompt_len.tolist() == [3, 5]
    assert load_trace(trace, "kvgym").format == "kvgym"
    assert len(reads) == 2
    trace.write_text(ROWS + "2,7,1\n")
    assert load_trace(trace, "kvgym").prompt_len.tolist() == [3, 5, 7]
    changed = ROWS.replace("0,3,2", "0,4,2") + "2,7,1\n"  # same size
    other = trace.with_name("other.csv")
    other.write_text(changed)
    os.replace(other, trace)
    assert load_trace(trace, "kvgym").prompt_len.tolist() == [4, 5, 7]
    load_trace(trace, "kvgym", tokenizer=len)
    load_trace(trace, "kvgym", tokenizer=len)
    assert len(reads) == 6


def test_errors_are_not_cached(trace: Path, tmp_path: Path) -> None:
    load_trace(trace)
    with pytest.raises(UnknownNameError):
        load_trace(trace, "nothing")
    with pytest.raises(TraceFormatError, match="no such file"):
        load_trace(tmp_path / "none.csv")
    trace.unlink()
    with pytest.raises(TraceFormatError, match="no such file"):
        load_trace(trace)


def test_equal_names_in_two_folders_are_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "mine.csv").write_text(ROWS.replace("0,3,2", f"0,{len(lengths) + 7},2"))
        monkeypatch.chdir(folder)
        lengths.append(int(load_trace("mine.csv").prompt_len[0]))
    assert np.array_equal(lengths, [7, 8])
