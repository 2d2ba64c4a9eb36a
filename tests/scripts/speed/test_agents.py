"""The benchmark of agents asks once per request."""

import json
import sys


def test_a_run_asks_once_per_request(benchmarks, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["agents.py", "--smoke", "--json", str(out)])
    benchmarks("agents").main()
    (row,) = json.loads(out.read_text())["agents"]
    assert row["questions"] == 200
    assert 0 < row["scheduler below, ms"] < row["run, ms"]
    assert capsys.readouterr().out.count("| hidden-kinds |") == 1
