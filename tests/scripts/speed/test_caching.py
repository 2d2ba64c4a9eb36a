"""The benchmark of prefix caches runs and reports its ratios."""

import json
import sys

import pytest


def test_every_unit_is_timed(benchmarks, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["caching.py", "--smoke", "--json", str(out)])
    benchmarks("caching").main()
    rows = json.loads(out.read_text())["caching"]
    assert [(row["policy"], row["unit"]) for row in rows] == [
        (policy, unit) for policy in ("fcfs", "vllm_v1") for unit in (0, 512, 16)
    ]
    for first, *others in (rows[:3], rows[3:]):
        assert [row["ratio"] for row in others] == pytest.approx(
            [r["run_ms"] / first["run_ms"] for r in others]
        )
    assert capsys.readouterr().out.count("| fcfs |") == 3


def test_a_trace_is_needed(benchmarks, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["caching.py"])
    with pytest.raises(SystemExit):
        benchmarks("caching").main()
    assert "--trace FILE is needed" in capsys.readouterr().err
