"""Where Atheris puts its bytes; with Atheris there, that a search ends and finds what is wrong."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest

import fuzz_guided
from fuzz.kinds import raw
from fuzz.trees import put

ROOT = Path(__file__).resolve().parents[3]
TREE = {"files": [{"$bytes": "a"}, {"plain": 1}], "name": "x", "other": {"$bytes": "b"}}


def test_bytes_are_found():
    assert fuzz_guided.byte_places(TREE) == [("files", 0), ("other",)]
    assert fuzz_guided.byte_places(TREE["other"]) == [()]


def test_bytes_are_filled():
    filled = put(copy.deepcopy(TREE), ("other",), raw(b"\xff\x00"))
    assert filled == {**TREE, "other": {"$bytes": "\xff\x00"}}
    assert put(copy.deepcopy(TREE["other"]), (), raw(b"c")) == {"$bytes": "c"}
    assert TREE["other"] == {"$bytes": "b"}


def test_a_search_ends(tmp_path):
    pytest.importorskip("atheris")
    command = [
        sys.executable,
        ROOT / "scripts" / "checks" / "fuzz_guided.py",
        "trace",
        "--seconds",
        "2",
        "--corpus",
        tmp_path,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Done " in done.stderr
    assert list(tmp_path.glob("valid-*"))


def test_what_is_not_there_is_said(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "atheris", None)
    monkeypatch.setattr(sys, "argv", ["fuzz_guided.py", "trace"])
    with pytest.raises(SystemExit):
        fuzz_guided.main()
    assert "pip install atheris" in capsys.readouterr().err
