"""The benchmark of runs in pieces compares them with a run in one piece."""

import json
import sys


def test_a_run_in_pieces_has_the_iterations_of_one(benchmarks, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["streaming.py", "--smoke", "--json", str(out)])
    benchmarks("streaming").main()
    pieces, whole = json.loads(out.read_text())["streaming"]
    assert pieces["iterations"] == whole["iterations"] > 1000
    error = capsys.readouterr().out.split("largest relative difference of a mean: ")[1]
    assert float(error) < 1e-12
