"""Descriptions with random places."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.agents.evolution.drawing import draw, extremes, typical
from kvgym.errors import ConfigError

NESTED = {
    "a": {"uniform": [1, 3]},
    "b": [{"choice": ["x", {"y": {"integer": [4, 6]}}]}, 7],
    "c": {"log_uniform": [0.1, 10]},
    "kind": "plain",
}


@given(st.integers(0, 2**63), st.floats(1e-3, 1e3), st.floats(1, 1e3))
def test_ranges_are_kept_and_equal_seeds_give_equal_values(seed, low, factor):
    high = low * factor
    description = {kind: {kind: [low, high]} for kind in ("uniform", "log_uniform")}
    found = draw(description, seed)
    assert all(low <= x <= high for x in found.values())
    assert found == draw(description, seed)
    assert draw({"integer": [3, 5]}, seed) in (3, 4, 5)


def test_each_place_has_its_own_stream():
    before = draw(NESTED, 5)
    after = draw({**NESTED, "new": {"uniform": [0, 1]}, "a": {"uniform": [1, 300]}}, 5)
    assert after["a"] != before["a"]
    assert {name: after[name] for name in ("b", "c")} == {name: before[name] for name in ("b", "c")}


def test_choices_come_in_their_proportions():
    drawn = [draw({"choice": ["a", "b", "c"], "weights": [3, 1, 0]}, seed) for seed in range(2000)]
    assert drawn.count("a") / 2000 == pytest.approx(0.75, abs=0.04)
    assert "c" not in drawn
    logs = np.log([draw(NESTED, seed)["c"] for seed in range(2000)])
    assert logs.mean() == pytest.approx(0.0, abs=0.1)  # of a uniform logarithm between log 0.1 and log 10


def test_extremes_have_every_option_and_both_ends():
    found = extremes(NESTED)
    assert {x["a"] for x in found} == {1, 3}
    assert {x["c"] for x in found} == {0.1, 10}
    assert [x["b"][0] for x in found[:3]] == ["x", {"y": 4}, {"y": 6}]
    assert all(x["kind"] == "plain" and x["b"][1] == 7 for x in found)
    assert extremes(None) == [None]


def test_the_middle():
    found = typical({**NESTED, "d": {"integer": [3, 6]}})
    assert found == {"a": 2.0, "b": ["x", 7], "c": pytest.approx(1.0), "kind": "plain", "d": 4}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"uniform": [3]}, "uniform needs two numbers"),
        ({"uniform": [3, 1]}, "low ≤ high"),
        ({"uniform": ["a", "b"]}, "uniform needs two numbers"),
        ({"uniform": [0, float("inf")]}, "uniform needs two numbers"),
        ({"log_uniform": [0, 1]}, "0 < low"),
        ({"integer": [0.5, 1]}, "whole numbers"),
        ({"choice": []}, "one or more values"),
        ({"choice": ["a"], "weights": [1, 2]}, "a number ≥ 0 for each of 1"),
        ({"choice": ["a"], "weights": [0]}, "not all 0"),
    ],
)
def test_mistakes_are_named_with_their_place(wrong, message):
    for what in (lambda x: draw(x, 0), extremes, typical):
        with pytest.raises(ConfigError, match=f"^length.*{message}"):
            what({"length": wrong})
