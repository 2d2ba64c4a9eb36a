"""Every policy on the first requests of every scenario gives the results of tests/golden/scenarios.csv."""

from __future__ import annotations

import csv

import pytest

from golden import generate
from kvgym.experiments.scenario import scenario_names


def expected(name: str) -> list[dict[str, str]]:
    with generate.SCENARIOS.open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["scenario"] == name]


@pytest.mark.parametrize("name", scenario_names())
def test_every_policy_has_its_results(name: str) -> None:
    rows, wanted = generate.outcomes(name), expected(name)
    for row, golden in zip(rows, wanted, strict=True):
        figures = [float(row.pop(figure) or 0) for figure in generate.FIGURES]
        assert figures == pytest.approx(
            [float(golden.pop(figure) or 0) for figure in generate.FIGURES], rel=1e-6
        )
        assert row == golden
    assert {"finished", "horizon"} & {row["outcome"] for row in rows}
