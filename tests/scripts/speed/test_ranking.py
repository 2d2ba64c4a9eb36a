"""The benchmark of ranking runs and reports its ratios."""

import json
import sys

import pytest


def test_every_case_is_timed(benchmarks, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["ranking.py", "--smoke", "--json", str(out)])
    benchmarks("ranking").main()
    rows = json.loads(out.read_text())["rows"]
    assert len({row["case"] for row in rows}) == len(rows) == capsys.readouterr().out.count("/s |")
    for row in rows:
        assert row["ratio"] == row["ns, ranked"] / row["ns, sarathi"]
        assert row["ratio to the second"] == row["ns, ranked"] / row["ns, sarathi:max_batch_requests=1024"]
        runs = [row[f"ns, {policy}"] * row[f"iterations, {policy}"] for policy in ("ranked", "sarathi")]
        assert row["ratio of runs"] == pytest.approx(runs[0] / runs[1])
    objectives = [row for row in rows if "objectives" in row["case"]]
    assert len(objectives) == 7
