"""Learned weights and the vectors of a search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.agents.evolution.space import SearchSpace, chosen_weights, reflected
from kvgym.errors import ConfigError
from kvgym.policies.hyperparameters import Weight

FINITE = st.floats(-1e6, 1e6)


def test_by_hand():
    space = SearchSpace(
        [Weight("a", 1.0, 0.5, 0.0, 2.0), Weight("b", 0.0, 2.0, size=2), Weight("c", 0.0, 1.0, low=0.0)],
        {"a": 1.5, "b": (1.0, -1.0), "c": 0.25},
    )
    assert space.size == 4
    assert space.values(np.zeros(4)) == {"a": 1.5, "b": (1.0, -1.0), "c": 0.25}
    # 1.5 + 2 * 0.5 = 2.5 is 0.5 above 2; 0.25 - 1 is 0.75 below 0.
    assert space.values(np.array([2.0, 1.0, -1.0, -1.0])) == {"a": 1.5, "b": (3.0, -3.0), "c": 0.75}


@given(st.lists(FINITE, min_size=1, max_size=5), FINITE, st.floats(1e-3, 1e3), st.integers(0, 3))
def test_reflection(x, low, width, kind):
    """What is inside stays; everything ends inside; a step across a bound comes back as far from it."""
    bounds = [(low, low + width), (low, np.inf), (-np.inf, low), (-np.inf, np.inf)][kind]
    a, b = (np.full(len(x), bound) for bound in bounds)
    given_x = np.array(x)
    found = reflected(given_x, a, b)
    inside = (given_x >= a) & (given_x <= b)
    assert np.array_equal(found[inside], given_x[inside])
    assert ((found >= a) & (found <= b)).all()
    for bound, sign in ((bounds[0], -1), (bounds[1], 1)):
        if np.isfinite(bound):
            step = 0.25 * width
            back = reflected(np.array([bound + sign * step]), a[:1], b[:1])[0]
            assert back == pytest.approx(bound - sign * step, abs=1e-6)


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3))
def test_inside(entries):
    """The same weights, by entries that stay in the ranges; those that do already are left as they are, bit for bit."""
    vector = np.array(entries)
    weights = (
        Weight("free", 0.0, 0.3, -np.inf, np.inf), Weight("half", 0.2, 0.1, 0.0, np.inf),
        Weight("both", 0.5, 0.25, 0.0, 1.0),
    )  # fmt: skip
    space = SearchSpace(weights, {"free": 0.1, "half": 0.2, "both": 0.5})
    found = space.inside(vector)
    assert space.values(found) == pytest.approx(space.values(vector), abs=1e-9)
    assert found[0] == vector[0]
    assert found[1] >= -2 - 1e-9
    assert abs(found[2]) <= 2 + 1e-9
    assert (found == vector)[1:].tolist() == [vector[1] >= -2, abs(vector[2]) <= 2]


def test_declared_weights(weighted):
    learned, starts = chosen_weights("weighted", {"count": 3}, {})
    assert [(w.name, w.size) for w in learned] == [("margin", 1), ("bias", 3)]
    assert starts == {"margin": 0.25, "bias": (0.0, 0.0, 0.0)}
    learned, starts = chosen_weights("weighted", {}, {"bias": {"start": [1, 2], "step": 3.0}})
    assert learned == (Weight("bias", 0.0, 3.0, size=2),)
    assert starts == {"bias": (1.0, 2.0)}


def test_numbers_of_policies_that_declare_none():
    chosen = {"protection": {"step": 0.1, "low": 0.0, "high": 0.9}}
    assert chosen_weights("mc_sf", {}, chosen) == (
        (Weight("protection", 0.0, 0.1, 0.0, 0.9),),
        {"protection": 0.0},
    )


@pytest.mark.parametrize(
    ("policy", "fixed", "chosen", "message"),
    [
        ("mc_sf", {}, {}, "declares no weights"),
        ("mc_sf", {}, {"protection": {"step": 0.1}}, "also give low, high"),
        ("mc_sf", {}, {"overrun": {"step": 0.1, "low": 0, "high": 1}}, "valid: protection"),
        ("weighted", {}, {"margn": {}}, "valid: margin, bias"),
        ("weighted", {"margin": 0.1}, {"margin": {}}, "either fixed or learned"),
        ("weighted", {}, {"margin": {"start": 0.8}}, r"start 0.8 is out of range; expected 0 … 0.75"),
        ("weighted", {}, {"margin": {"low": 0.9}}, "low ≤ default ≤ high"),
        ("weighted", {}, {"bias": {"start": 1.0}}, "start needs 2 numbers, got 1.0"),
        ("weighted", {}, {"bias": {"start": [1.0]}}, "start needs 2 numbers, got 1 entries"),
        ("weighted", {}, {"margin": {"start": [0.1, 0.2]}}, "start needs a number, got 2 entries"),
        ("missing", {}, {}, "unknown policy"),
    ],
)
def test_mistakes(weighted, policy, fixed, chosen, message):
    with pytest.raises(ConfigError, match=message):
        chosen_weights(policy, fixed, chosen)
