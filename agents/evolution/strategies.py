"""Evolution strategies: propose vectors and learn from their objectives; smaller is better.

A strategy starts at 0 and searches in steps, see :class:`~kvgym.agents.evolution.space.SearchSpace`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kvgym.agents.runs.limits import MAX_STEPS
from kvgym.errors import ConfigError, shown
from kvgym.policies.hyperparameters import require
from kvgym.utils.hyperparameters import describe_arguments, policy_defaults
from kvgym.utils.registry import Registry
from kvgym.utils.resources import check_free

Vector = NDArray[np.float64]


class Strategy(ABC):
    """A search that alternates between :meth:`propose` and :meth:`learn`.

    Attributes:
        size: entries of a vector.
        population: vectors per generation.
    """

    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions that a run depends on, for ``run.json``."""

    size: int
    population: int

    @abstractmethod
    def propose(self) -> NDArray[np.float64]:
        """Return the vectors of the next generation, float64 (population, size)."""

    @abstractmethod
    def learn(self, objectives: Sequence[float]) -> None:
        """Update the search with the objectives of the proposed vectors, in order; finite, smaller is better."""

    @property
    @abstractmethod
    def mean(self) -> Vector:
        """The centre of the search, float64 (size,)."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """Mean standard deviation of the proposals, in steps."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state for :meth:`restore`, JSON-able."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, bit for bit, in a new strategy with the same arguments.

        Raises:
            ConfigError: the state is damaged, or from another version of a library.
        """


STRATEGIES: Registry[type[Strategy]] = Registry("evolution strategy")
"""Strategies by name, the ``algorithm`` of a training configuration."""


@STRATEGIES.register("cma_es")
class CMAES(Strategy):
    """Covariance matrix adaptation (N. Hansen, "The CMA Evolution Strategy: A Tutorial"), of the package ``cma``.

    The package's object can only be saved as a pickle. Instead the objectives of all generations are stored; resuming
    replays them with the same random numbers.
    """

    libraries = ("cma",)

    def __init__(self, size: int, population: int, seed: int, *, sigma: float = 1.0) -> None:
        """Begin a search.

        Args:
            size: entries of a vector, at least 2.
            population: vectors per generation.
            seed: seed of all random numbers.
            sigma: initial standard deviation, steps.
        """
        require("sigma", sigma, 0 < sigma < np.inf, "a number > 0")
        try:
            cma = importlib.import_module("cma")
        except ImportError as error:
            raise ConfigError(
                f'cma_es needs the package cma: pip install "kvgym[train]" ({error})'
            ) from error
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
        self.size, self.population = size, population
        # Our own generator keeps NumPy's global one unchanged; a NaN seed makes the package skip seeding.
        options = {
            "popsize": population, "randn": lambda *shape: rng.standard_normal(shape), "seed": np.nan,
            "verbose": -9, "verb_log": 0, "verb_disp": 0, "CMA_diagonal": False,
        }  # fmt: skip
        self._search = cma.CMAEvolutionStrategy(np.zeros(size), float(sigma), options)
        self._history: list[list[float]] = []
        self._asked: list[Vector] = []

    def propose(self) -> NDArray[np.float64]:
        """Return the vectors of the next generation."""
        self._asked = self._search.ask()
        return np.array(self._asked, np.float64)

    def learn(self, objectives: Sequence[float]) -> None:
        """Update the search with the objectives of the last generation."""
        own = [float(x) for x in objectives]
        self._search.tell(self._asked, own)
        self._history.append(own)

    @property
    def mean(self) -> Vector:
        """The centre of the search."""
        return np.array(self._search.mean, np.float64)

    @property
    def spread(self) -> float:
        """Mean standard deviation of the proposals, in steps."""
        return float(np.mean(self._search.stds))

    def state(self) -> dict[str, Any]:
        """Return the objectives of all generations, and the mean to check that they lead there again."""
        return {"objectives": self._history, "mean": self.mean.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replay all objectives."""
        for objectives in state["objectives"]:
            self.propose()
            self.learn(objectives)
        if self.mean.tolist() != state["mean"]:
            raise ConfigError(
                "the search cannot be repeated to where it was: cma or NumPy are not of the version that the run began "
                "with (run.json says which)"
            )


@STRATEGIES.register("openai_es")
class OpenAIES(Strategy):
    """The strategy of Salimans, Ho, Chen, Sidor and Sutskever, "Evolution Strategies as a Scalable Alternative to RL".

    Proposals come in pairs, mirrored at the mean, with a fixed standard deviation; objectives count by their centred
    ranks; the estimated gradient goes into Adam (Kingma and Ba). Memory and time grow linearly with the number of
    weights, so that it suits networks.
    """

    def __init__(
        self,
        size: int,
        population: int,
        seed: int,
        *,
        sigma: float = 0.5,
        learning_rate: float = 0.1,
        decay: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
    ) -> None:
        """Begin a search.

        Args:
            size: entries of a vector.
            population: vectors per generation, an even number.
            seed: seed of all random numbers.
            sigma: standard deviation of the proposals, steps.
            learning_rate: of Adam, about the initial change of an entry per generation, steps.
            decay: pull towards the start per generation, times the learning rate.
            beta_1: of Adam, decay of the mean of gradients.
            beta_2: of Adam, decay of the mean of their squares.
        """
        if population % 2:
            raise ConfigError(
                f"openai_es: population = {population}; expected an even number, half of it mirrored"
            )
        for name, value in (("sigma", sigma), ("learning_rate", learning_rate)):
            require(name, value, 0 < value < np.inf, "a number > 0")
        for name, value in (("decay", decay), ("beta_1", beta_1), ("beta_2", beta_2)):
            require(name, value, 0 <= value < 1, "a number in [0, 1)")
        self.size, self.population, self._seed = size, population, seed
        self._sigma, self._rate, self._decay, self._betas = sigma, learning_rate, decay, (beta_1, beta_2)
        self._mean, self._first, self._second = (np.zeros(size) for _ in range(3))
        self._generation = 0

    def _noise(self) -> NDArray[np.float64]:
        """Return the noise of this generation, (population / 2, size): a function of seed and generation."""
        sequence = np.random.SeedSequence(self._seed, spawn_key=(self._generation,))
        shape = (self.population // 2, self.size)
        return np.random.Generator(np.random.PCG64(sequence)).standard_normal(shape)

    def propose(self) -> NDArray[np.float64]:
        """Return the vectors of the next generation, the mirrored ones in the second half."""
        noise = self._sigma * self._noise()
        return np.concatenate([self._mean + noise, self._mean - noise])

    def learn(self, objectives: Sequence[float]) -> None:
        """Update the search with the objectives of the last generation."""
        ranks = centred_ranks(objectives)
        half = self.population // 2
        gradient = (ranks[:half] - ranks[half:]) @ self._noise() / (self.population * self._sigma)
        self._generation += 1
        (a, b), t = self._betas, self._generation
        self._first = a * self._first + (1 - a) * gradient
        self._second = b * self._second + (1 - b) * gradient**2
        direction = self._first / (1 - a**t) / (np.sqrt(self._second / (1 - b**t)) + 1e-8)
        self._mean = self._mean - self._rate * (direction + self._decay * self._mean)

    @property
    def mean(self) -> Vector:
        """The centre of the search."""
        return self._mean.copy()

    @property
    def spread(self) -> float:
        """Standard deviation of the proposals, in steps."""
        return self._sigma

    def state(self) -> dict[str, Any]:
        """Return mean, moments of the gradient and generation."""
        arrays = {"mean": self._mean, "first": self._first, "second": self._second}
        return {"generation": self._generation, **{name: x.tolist() for name, x in arrays.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore mean, moments and generation."""
        found = [np.array(state[name], np.float64) for name in ("mean", "first", "second")]
        if any(x.shape != (self.size,) or not np.isfinite(x).all() for x in found) or (found[2] < 0).any():
            raise ConfigError(
                f"the state of the search is damaged: expected {self.size} finite numbers each, and second "
                "moments that are not below 0"
            )
        generation = state["generation"]
        if type(generation) is not int or not 0 <= generation <= MAX_STEPS:
            raise ConfigError(f"the state of the search is damaged: generation {shown(generation)}")
        self._mean, self._first, self._second = found
        self._generation = generation


class Averaging:
    """Polynomial-decay average of a search's centres.

    Source: O. Shamir, T. Zhang, "Stochastic Gradient Descent for Non-smooth Optimization", section 4, which averages
        the
    iterates of stochastic gradient descent.

    A generation has few services, so the centre of the search fluctuates around the optimum; the mean of many centres
    fluctuates less (Polyak and Ruppert). After generation t the mean moves towards the centre by
    (decay + 1) / (t + decay) of the distance: with decay 0 all centres have equal weight; otherwise the weight of the
    t-th grows about as t^decay, so that the way from the start is forgotten. Only the mean is stored, and a run can be
    extended.

    Centres are averaged after reflection into the ranges of the weights: beyond a bound a search finds the weights
    mirrored at the bound, and the mean of both sides would be the bound.

    Attributes:
        mean: the average, float64 (size,); 0, the start of the search, before the first generation.
    """

    def __init__(self, size: int, decay: float) -> None:
        """Begin at the start of the search.

        Args:
            size: entries of a vector.
            decay: larger values forget early centres faster; at least 0.
        """
        self._decay = decay
        self._count = 0
        self.mean: Vector = np.zeros(size)

    def add(self, centre: Vector) -> None:
        """Add the centre of the next generation, float64 (size,)."""
        self._count += 1
        self.mean = self.mean + (self._decay + 1) / (self._count + self._decay) * (centre - self.mean)

    def restore(self, mean: Sequence[float], count: int) -> None:
        """Restore the average after a number of generations.

        Raises:
            ConfigError: it is not a finite vector of this size.
        """
        found = np.array(mean, np.float64)
        if found.shape != self.mean.shape or not np.isfinite(found).all():
            raise ConfigError(
                f"the average of the search is damaged: {shown(mean)}; expected {self.mean.size} finite numbers"
            )
        self.mean, self._count = found, count


def centred_ranks(objectives: Sequence[float]) -> Vector:
    """Return ranks scaled to [-0.5, 0.5], float64 (n,), -0.5 for the smallest; ties share their mean rank."""
    if len(objectives) < 2:
        return np.zeros(len(objectives))
    _, place, count = np.unique(np.asarray(objectives, np.float64), return_inverse=True, return_counts=True)
    first = np.cumsum(count) - count  # rank of the first of a tie, from 0
    ranks = (first + (count - 1) / 2)[place]
    return np.asarray(ranks / (len(objectives) - 1) - 0.5, np.float64)


def make_strategy(
    algorithm: str, size: int, population: int, seed: int, hyperparameters: Mapping[str, Any]
) -> Strategy:
    """Return a new search.

    Args:
        algorithm: name in :data:`STRATEGIES`.
        size: entries of a vector.
        population: vectors per generation.
        seed: seed of all random numbers.
        hyperparameters: of the strategy.

    Raises:
        UnknownNameError: no strategy of that name.
        ConfigError: an unknown hyperparameter, or a value out of range.
    """
    cls = STRATEGIES[algorithm]
    unknown = sorted(hyperparameters.keys() - policy_defaults(cls).keys())
    if unknown:
        raise ConfigError(
            f"{algorithm} has no hyperparameter {shown(unknown[0])}; valid: {describe_arguments(cls)}"
        )
    # Proposals and their updates and, of CMA-ES, a matrix and its factors.
    matrix = 6 * size**2 if cls is CMAES else 0
    what = f"a population of {population:,} vectors of {size:,} weights"
    check_free(8 * (4 * population * size + matrix), what, "choose a smaller population or fewer weights")
    try:
        return cls(size, population, seed, **hyperparameters)  # type: ignore[call-arg]
    except TypeError as error:
        raise ConfigError(
            f"{algorithm}: a value of the wrong type in {dict(hyperparameters)} ({error}); defaults: "
            f"{describe_arguments(cls)}"
        ) from error
