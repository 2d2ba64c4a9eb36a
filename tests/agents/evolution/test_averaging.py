"""Averages of a search's centres: by hand, against the closed form, their benefit, and in a run."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.training.evolution_runs import TINY
from kvgym.agents import train
from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.evolution.strategies import CMAES, Averaging, make_strategy
from kvgym.agents.runs.checkpoints import checkpoints
from kvgym.agents.runs.config import make_training
from kvgym.errors import ConfigError


def averaged(centres, decay):
    average = Averaging(len(centres[0]), decay)
    for centre in centres:
        average.add(np.array(centre, float))
    return average.mean


def test_by_hand():
    assert Averaging(2, 3.0).mean.tolist() == [0.0, 0.0]
    assert averaged([[2.0, -1.0]], 3.0).tolist() == [2.0, -1.0]  # the start counts nothing
    assert averaged([[1.0], [2.0], [6.0]], 0.0) == pytest.approx([3.0])
    # Decay 1: 2/2, 2/3, 2/4 of the way: weights 1, 2, 3 of 6.
    assert averaged([[1.0], [2.0], [6.0]], 1.0) == pytest.approx([(1 + 4 + 18) / 6])


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20),
    st.integers(0, 6),
)
def test_weights_are_rising_factorials(numbers, decay):
    """With a whole decay d the t-th centre weighs t (t + 1) ... (t + d - 1)."""
    weights = [np.prod([float(t + i) for i in range(decay)]) for t in range(1, len(numbers) + 1)]
    expected = np.average(numbers, weights=weights)
    assert averaged([[x] for x in numbers], decay)[0] == pytest.approx(expected, abs=1e-6)


def test_it_fluctuates_less_than_the_centre():
    """Where every generation has a minimum of its own, the average is nearer to the mean of these."""
    rng = np.random.Generator(np.random.PCG64(3))
    last, mean = [], []
    for seed in range(20):
        strategy, average = make_strategy("cma_es", 5, 8, seed, {}), Averaging(5, 3.0)
        for _ in range(25):
            minimum = 1.0 + rng.normal(0.0, 1.5, 5)  # of what this generation plays
            strategy.learn(((strategy.propose() - minimum) ** 2).sum(axis=1).tolist())
            average.add(strategy.mean)
        last.append(np.linalg.norm(strategy.mean - 1.0))
        mean.append(np.linalg.norm(average.mean - 1.0))
    assert np.mean(mean) < 0.8 * np.mean(last)


def test_of_a_run(tmp_path):
    """The run's agent is the average of the centres that the same run without it goes through."""
    interval = {"services": 2, "interval": 1}
    plain = train(make_training({**TINY, "held_out": interval, "keep_checkpoints": 9}), tmp_path / "plain")
    centres = [
        json.loads((place / "strategy.json").read_text())["mean"]
        for place in checkpoints(plain.folder / "checkpoints")
    ]
    assert len(centres) == TINY["generations"] + 1
    train(make_training({**TINY, "held_out": interval, "average": 2}), tmp_path / "run")
    weights = EvolvedModel.load(tmp_path / "run/final.json").weights
    values = [abs(0.5 + 0.2 * centre) for [centre] in centres[1:]]  # mirrored at 0, where they lie beyond
    assert max(values) < 0.9
    expected = averaged([[value] for value in values], 2)[0]
    assert weights["protection"] == pytest.approx(expected, abs=1e-12)
    assert weights != EvolvedModel.load(plain.folder / "final.json").weights


def test_centres_beyond_a_bound_are_reflected_before_averaging(tmp_path, monkeypatch):
    """A step beyond the bound and a step within are the same weights, and so is their mean."""
    config = make_training({**TINY, "weights": {"protection": {"start": 0.0, "step": 0.1, "low": 0.0, "high": 0.9}},
                            "generations": 4, "average": 0})  # fmt: skip
    sides = iter([1.0, -1.0, 1.0, -1.0])
    learn = CMAES.learn

    def move(self, objectives):
        learn(self, objectives)
        self.shown = np.array([next(sides)])

    monkeypatch.setattr(CMAES, "learn", move)
    monkeypatch.setattr(CMAES, "mean", property(lambda self: getattr(self, "shown", np.zeros(1))))
    train(config, tmp_path / "run")
    assert EvolvedModel.load(tmp_path / "run/final.json").weights["protection"] == pytest.approx(0.1)


@pytest.mark.parametrize("value", [-1, 101, "much", float("nan")])
def test_out_of_range(value):
    with pytest.raises(ConfigError, match="average"):
        make_training({**TINY, "average": value})
