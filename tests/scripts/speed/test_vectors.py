"""Vector environments of two checkouts are compared step by step."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


class Scripted:
    """A player with known figures."""

    def __init__(self, *runs):
        self.runs = [[9.0, 9.0], *runs]  # the first is to compile
        self.asked = []

    def ask(self, what):
        self.asked.append(what["steps"])
        return {"seconds": self.runs.pop(0), "ends": 3, "waiting": 1.5}


def test_of_every_step_the_fastest_repetition_counts(benchmarks):
    vectors = benchmarks("vectors")
    players = {"here": Scripted([1.0, 4.0], [2.0, 3.0]), "before": Scripted([5.0, 5.0], [6.0, 4.0])}
    found = vectors.measure(players, {"num_envs": 10}, steps=2, repeats=2)
    # (1 + 3) and (5 + 4) seconds for 2 steps of 10 environments.
    assert found["ns"] == pytest.approx({"here": 0.2e9, "before": 0.45e9})
    assert (found["ends"], found["waiting"]) == (3, 1.5)
    assert players["before"].asked == [2, 2, 2]


def test_a_checkout_is_compared_with_itself(benchmarks, tmp_path, monkeypatch, capsys):
    vectors = benchmarks("vectors")
    monkeypatch.setattr(vectors, "QUEUES", {"full": {"num_requests": 20, "rate": 400.0, "kv_capacity": 6000}})
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["vectors.py", "--smoke", "--against", str(ROOT), "--json", str(out)])
    vectors.main()
    results = json.loads(out.read_text())
    assert list(results) == ["4 environments, queue full, affine", "4 environments, queue full, profile"]
    assert all(found["ns"].keys() == {"here", "before"} for found in results.values())
    assert capsys.readouterr().out.count("| 4 environments") == 2


def test_what_a_player_cannot_do_ends_the_benchmark(benchmarks):
    wrong = {"arguments": {"num_envs": 0}, "steps": 1, "wall": False}
    with (
        benchmarks("vectors").Player(ROOT) as player,
        pytest.raises(RuntimeError, match="the player has ended"),
    ):
        player.ask(wrong)
