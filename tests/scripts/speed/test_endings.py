"""The benchmark of ends of episodes."""

import json
import sys


def test_every_part_of_an_end_and_every_vector_is_timed(benchmarks, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["endings.py", "--smoke", "--json", str(out)])
    benchmarks("endings").main()
    found = json.loads(out.read_text())
    assert set(found["Priority"]) == {"metrics", "requests", "start"}
    assert min(found["AdmitCount"].values()) > 0
    for threads in (1, 2):
        times = found[f"{threads} threads"]
        assert times["time"] > 0
        assert times["longest"] >= 1
    assert capsys.readouterr().out.count("longest step") == 2
