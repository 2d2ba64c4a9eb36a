"""The growth benchmark measures the cells it names, next to another checkout only where both decide alike."""

from __future__ import annotations

from typing import Any

import pytest


class Fixed:
    """Answers every cell with the next of these answers, the last one for ever."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.cells: list[tuple[Any, ...]] = []

    def run(self, *cell: Any) -> dict[str, Any]:
        self.cells.append(cell)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def answer(*ns: float, decided: float = 1.0) -> dict[str, Any]:
    return {"ns": list(ns), "waiting": 99.0, "active": 25.0, "decided": [decided]}


def test_a_cell_is_of_its_size(benchmarks):
    growth = benchmarks("growth")
    found = growth.run_cell("fcfs", 2_000, 25, 2)
    assert len(found["ns"]) == 2
    assert 1_500 < found["waiting"] < 2_100
    assert 15 < found["active"] < 60
    assert found == {**growth.run_cell("fcfs", 2_000, 25, 2), "ns": found["ns"]}


def test_every_slice_counts_with_its_fastest_repetition(benchmarks, monkeypatch):
    growth = benchmarks("growth")
    monkeypatch.setattr(growth, "REPEATS", 2)
    here = Fixed(answer(9, 9), answer(1, 4), answer(3, 2))  # the first run compiles
    other = Fixed(answer(9, 9), answer(8, 8), answer(7, 9))
    row = growth.measure([here, other], "slai", "active", 100, 25, False)
    assert (row["ns"], row["ns before"], row["ratio"]) == (1.5, 7.5, 0.2)
    spec = "slai:token_budget=8192,max_active=4096,max_decodes=4096"
    assert here.cells == other.cells == [(spec, 100, 25, growth.SLICES)] * 3
    assert growth.measure([here], "slai:order=fcfs", "waiting", 100, 25, True)["policy"] == "slai:order=fcfs"
    assert here.cells[-1] == ("slai:order=fcfs", 100, 25, 1)


def test_checkouts_have_to_decide_alike(benchmarks):
    growth = benchmarks("growth")
    servers = [Fixed(answer(1)), Fixed(answer(1, decided=2.0))]
    with pytest.raises(SystemExit, match="make different decisions"):
        growth.measure(servers, "mc_sf", "waiting", 100, 25, True)
    assert (
        "livelock"
        in growth.measure([Fixed({"error": "livelock"})], "mc_sf", "waiting", 100, 25, True)["error"]
    )


def test_what_is_drawn(benchmarks, tmp_path):
    growth = benchmarks("growth")
    rows = [
        growth.measure([Fixed(answer(5))] * 2, "mc_sf", grows, 100, 25, True)
        for grows in ("waiting", "active")
    ]
    growth.plot(rows, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 5_000


def test_iterations_are_timed_one_by_one(benchmarks, monkeypatch, capsys):
    growth = benchmarks("growth")
    monkeypatch.setattr(growth, "WARM_UP", 20)
    rows = growth.print_longest(["fcfs"], True)
    assert rows[0]["policy"] == "fcfs"
    assert 0 < rows[0]["median"] <= rows[0]["99.9 %"] <= rows[0]["longest"]
    assert capsys.readouterr().out.splitlines()[-1].startswith("| fcfs | 300 | ")
