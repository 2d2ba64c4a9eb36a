"""Least squares for a ranking network: by hand, against a given network, and within bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgym.agents.evolution.fitting import Examples, fit_network, outputs, split, unexplained
from kvgym.errors import ConfigError


def examples(features, targets, moments=None, weights=None):
    features = np.array(features, np.float64)
    m = len(features)
    return Examples(
        features,
        np.array(targets, np.float64),
        np.zeros(m, np.int64) if moments is None else np.array(moments),
        np.ones(m) if weights is None else np.array(weights, np.float64),
    )


def fit(of, units=2, seed=0, **changes):
    options = {"iterations": 400, "decay": 1e-7, "low": -50.0, "high": 50.0, **changes}
    return np.array(fit_network(of, units, seed=np.random.SeedSequence(seed), **options))


def taught(m=600, seed=3):
    """What a network of two units gives for random features."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(m, 3))
    teacher = np.array([1.0, -0.5, 0.0, 0.2, 1.5, 0.0, 0.8, -1.0, -0.3, -0.7])
    return examples(x, outputs(teacher, x), np.arange(m) % 15)


def test_numbers_stand_unit_by_unit():
    inner, bias, outer = split(np.arange(8.0), 2)
    assert inner.tolist() == [[0, 1], [4, 5]]
    assert (bias.tolist(), outer.tolist()) == ([2, 6], [3, 7])
    given = outputs(np.arange(8.0) / 10, np.array([[1.0, -1.0]]))
    assert given == pytest.approx([0.3 * np.tanh(0.0 - 0.1 + 0.2) + 0.7 * np.tanh(0.4 - 0.5 + 0.6)])


def test_errors_are_centred_within_a_moment():
    some = examples([[0.0]] * 4, [1.0, 3.0, 10.0, 10.0], [0, 0, 1, 1], [1.0, 3.0, 1.0, 1.0])
    assert some.centred(some.targets).tolist() == [-1.5, 0.5, 0.0, 0.0]  # the weighted mean of 1 and 3 is 2.5
    # Errors -1.5 and 0.5 with weights 1 and 3: 3. With half of it given, a quarter is left.
    assert unexplained(some, np.array([0.0, 1.0, 7.0, 7.0])) == pytest.approx(0.25)
    assert np.isnan(unexplained(examples([[0.0]] * 2, [5.0, 5.0]), np.zeros(2)))


def test_the_fit_recovers_a_network():
    some = taught()
    numbers = fit(some)
    assert unexplained(some, outputs(numbers, some.features)) < 0.01
    fresh = taught(seed=4)
    assert unexplained(fresh, outputs(numbers, fresh.features)) < 0.02
    assert fit(some).tolist() == numbers.tolist()
    assert fit(some, seed=1).tolist() != numbers.tolist()


def test_a_common_shift_of_a_moment_changes_nothing():
    some = taught()
    shifted = Examples(some.features, some.targets + 100.0 * some.moments, some.moments, some.weights)
    numbers = fit(shifted)
    assert unexplained(some, outputs(numbers, some.features)) < 0.01


def test_weights_decide_which_examples_fit_best():
    """One feature value, two targets: the fit lies at their weighted mean."""
    rows, targets = [[0.0], [1.0], [1.0]] * 10, [0.0, 0.0, 1.0] * 10
    for weight, expected in ((1.0, 0.5), (3.0, 0.75)):
        some = examples(rows, targets, np.repeat(np.arange(10), 3), [1.0, 1.0, weight] * 10)
        zero, one = outputs(fit(some, units=1), np.array([[0.0], [1.0]]))
        assert one - zero == pytest.approx(expected, abs=0.01)


def test_features_that_are_always_zero_are_ignored():
    some = taught()
    features = np.insert(some.features, 1, 0.0, axis=1)
    inner, _, _ = split(fit(Examples(features, some.targets, some.moments, some.weights)), 4)
    assert (inner[:, 1] == 0).all()
    assert (inner[:, [0, 2, 3]] != 0).all()


@settings(max_examples=20, deadline=None)
@given(bound=st.floats(0.01, 3.0), decay=st.floats(0.0, 0.1), seed=st.integers(0, 100))
def test_numbers_stay_in_their_range(bound, decay, seed):
    some = taught(m=60)
    numbers = fit(some, low=-bound, high=bound, decay=decay, seed=seed, iterations=30)
    assert (np.abs(numbers) <= bound).all()
    assert (
        unexplained(some, outputs(numbers, some.features)) < 1.3
    )  # a start at random, pulled towards the targets


def test_mistakes():
    with pytest.raises(ConfigError, match="no examples to fit"):
        fit(examples(np.zeros((0, 2)), []))
    with pytest.raises(ConfigError, match="not finite"):
        fit(examples([[1.0], [np.nan]], [0.0, 1.0]))
    with pytest.raises(ConfigError, match="not finite"):
        fit(examples([[1.0], [2.0]], [0.0, np.inf]))
