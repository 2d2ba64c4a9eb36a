"""The benchmark of routers times every view."""

import json
import sys


def test_every_view_is_timed(benchmarks, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["routing.py", "--smoke", "--json", str(out)])
    script = benchmarks("routing")
    script.main()
    rows = json.loads(out.read_text())["routing"]
    assert [row["router"] for row in rows] == list(script.VIEWS)
    assert rows[1]["iterations"] == rows[2]["iterations"]  # own counts of one router are exact
    assert capsys.readouterr().out.count("join_shortest_queue") == 1
