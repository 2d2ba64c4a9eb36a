"""Strategies find minima, repeat bit for bit, and keep NumPy's global generator unchanged."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.agents.evolution.strategies import STRATEGIES, centred_ranks, make_strategy
from kvgym.agents.runs.config import kind_of
from kvgym.errors import ConfigError

SETTINGS = {"cma_es": {"sigma": 0.5}, "openai_es": {"sigma": 0.1, "learning_rate": 0.1}}


def test_every_strategy_is_an_algorithm():
    """The table of ways to train repeats their names, so that it need not import them."""
    assert set(STRATEGIES) == set(kind_of("cma_es").algorithms)


def sphere(vectors):
    return ((vectors - np.linspace(1.0, 2.0, vectors.shape[1])) ** 2).sum(axis=1).tolist()


def search(name, size=6, seed=1):
    return make_strategy(name, size, 16, seed, SETTINGS[name])


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_sphere(name):
    strategy = search(name)
    for _ in range(120):
        vectors = strategy.propose()
        assert vectors.shape == (16, 6)
        strategy.learn(sphere(vectors))
    start = sphere(np.zeros((1, 6)))[0]
    assert sphere(strategy.mean[None])[0] < 1e-2 * start
    assert strategy.spread > 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_equal_seeds_and_saved_states(name):
    """Saved after every generation, as JSON, and continued by a new object: the same proposals."""
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    whole, cut = search(name), search(name)
    for _ in range(8):
        state = json.loads(json.dumps(cut.state()))
        cut = search(name)
        cut.restore(state)
        one, two = whole.propose(), cut.propose()
        assert np.array_equal(one, two)
        for strategy in (whole, cut):
            strategy.learn(sphere(one))
        assert np.array_equal(whole.mean, cut.mean)
    assert not np.array_equal(search(name, seed=2).propose(), search(name).propose())
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize("name", STRATEGIES)
def test_equal_objectives(name):
    strategy = search(name)
    for _ in range(30):
        strategy.propose()
        strategy.learn([20.0] * 16)
    assert np.isfinite(strategy.propose()).all()


def test_a_single_weight():
    strategy = make_strategy("cma_es", 1, 8, 0, {})
    strategy.learn(sphere(strategy.propose()))
    assert strategy.mean.shape == (1,)


def test_a_state_of_another_search_is_an_error():
    strategy = search("cma_es")
    strategy.learn(sphere(strategy.propose()))
    state = strategy.state()
    with pytest.raises(ConfigError, match="cannot be repeated"):
        search("cma_es", seed=9).restore(state)
    with pytest.raises(ConfigError, match="expected 5 finite numbers"):
        search("openai_es", size=5).restore(search("openai_es").state())


@pytest.mark.parametrize(
    ("part", "value"),
    [("mean", [float("nan")] * 6), ("first", [float("inf")] * 6), ("second", [-1.0] * 6), ("generation", -1),
     ("generation", 2.5), ("generation", 10**4000)],
)  # fmt: skip
def test_an_impossible_state_is_an_error(part, value):
    begun = search("openai_es")
    begun.learn(sphere(begun.propose()))
    state = begun.state()
    search("openai_es").restore(state)
    with pytest.raises(ConfigError, match="the state of the search is damaged"):
        search("openai_es").restore({**state, part: value})


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=20))
def test_centred_ranks(values):
    ranks = centred_ranks(values)
    assert ranks.sum() == pytest.approx(0.0, abs=1e-9)
    assert (np.abs(ranks) <= 0.5).all()
    order = np.argsort(values, kind="stable")
    assert (np.diff(ranks[order]) >= 0).all()


def test_centred_ranks_by_hand():
    assert centred_ranks([30.0, 10.0, 20.0]).tolist() == [0.5, -0.5, 0.0]
    assert centred_ranks([1.0, 7.0, 7.0]).tolist() == [-0.5, 0.25, 0.25]
    assert centred_ranks([3.0]).tolist() == [0.0]


def test_a_step_of_openai_es_by_hand():
    """With one pair, Adam's first step goes against the sign of the noise of the worse one, by the learning rate."""
    strategy = make_strategy("openai_es", 3, 2, 5, {"sigma": 0.5, "learning_rate": 0.2})
    vectors = strategy.propose()
    assert np.array_equal(vectors[0], -vectors[1])
    strategy.learn([2.0, 1.0])  # the first is worse
    assert strategy.mean == pytest.approx(-0.2 * np.sign(vectors[0]), rel=1e-6)
    after = strategy.propose()
    assert after[0] - strategy.mean == pytest.approx(strategy.mean - after[1])
    assert not np.allclose(np.abs(after[0] - strategy.mean), np.abs(vectors[0]))


@pytest.mark.parametrize(
    ("name", "population", "settings", "message"),
    [
        ("cma_es", 4, {"sigma": 0.0}, "sigma = 0.0; expected a number > 0"),
        ("cma_es", 4, {"learning_rate": 0.1}, "cma_es has no hyperparameter 'learning_rate'; valid: sigma"),
        ("openai_es", 5, {}, "expected an even number"),
        ("openai_es", 4, {"beta_1": 1.0}, r"beta_1 = 1.0; expected a number in \[0, 1\)"),
        ("openai_es", 4, {"sigma": "large"}, "a value of the wrong type"),
        ("random", 4, {}, "unknown evolution strategy 'random'"),
    ],
)
def test_mistakes(name, population, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_strategy(name, 3, population, 0, settings)
