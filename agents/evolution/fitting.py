"""Least-squares fit of a small ranking network with one hidden layer of tanh units, by L-BFGS.

A ranking does not change if all scores of a moment shift together. So the loss uses the error minus its weighted mean
over the moment, and the network has no constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Examples:
    """Features and targets to fit a network to.

    Attributes:
        features: float64 (m, f).
        targets: float64 (m,).
        moments: int64 (m,), the ranking that each example belongs to; from 0, without gaps.
        weights: float64 (m,), > 0, weights of the squared errors.
    """

    features: Array
    targets: Array
    moments: NDArray[np.int64]
    weights: Array

    def __len__(self) -> int:
        """Return their number."""
        return len(self.targets)

    def centred(self, values: Array) -> Array:
        """Return values minus their weighted mean over the moment, float64 (m,)."""
        sums = np.bincount(self.moments, self.weights * values) / np.bincount(self.moments, self.weights)
        return np.asarray(values - sums[self.moments], np.float64)


def split(numbers: Array, features: int) -> tuple[Array, Array, Array]:
    """Split a network's numbers into feature weights (u, f), biases (u,) and output weights (u,).

    The numbers are ordered by unit: a weight for each feature, a bias, and the weight of the unit's output.
    """
    units = numbers.reshape(-1, features + 2)
    return units[:, :features], units[:, features], units[:, features + 1]


def outputs(numbers: Array, features: Array) -> Array:
    """Return the outputs of a network, float64 (m,), for features (m, f)."""
    inner, bias, outer = split(numbers, features.shape[1])
    return np.asarray(np.tanh(features @ inner.T + bias) @ outer, np.float64)


def unexplained(examples: Examples, given: Array) -> float:
    """Return the weighted squared error relative to a network that always returns 0; NaN if that is 0."""
    worst = float(examples.weights @ examples.centred(examples.targets) ** 2)
    error = float(examples.weights @ examples.centred(examples.targets - given) ** 2)
    return error / worst if worst > 0 else float("nan")


def fit_network(
    examples: Examples,
    units: int,
    *,
    seed: np.random.SeedSequence,
    iterations: int,
    decay: float,
    low: float,
    high: float,
) -> tuple[float, ...]:
    """Return the numbers of a network fitted to examples; on one machine equal arguments give equal bits.

    Args:
        examples: at least one; features that are always 0 are ignored.
        units: of the hidden layer.
        seed: of the initial numbers.
        iterations: largest number of L-BFGS iterations.
        decay: penalty on squared numbers (feature weights times the feature's root mean square), relative to the mean
            squared target.
        low: least value of a number.
        high: greatest value of a number.

    Returns:
        units · (f + 2) numbers, see :func:`split`.

    Raises:
        ConfigError: there are no examples, or one is not finite.
    """
    if not len(examples):
        raise ConfigError("no examples to fit a network to")
    if not (np.isfinite(examples.features).all() and np.isfinite(examples.targets).all()):
        raise ConfigError("a network cannot be fitted to features or targets that are not finite")
    from scipy.optimize import minimize  # slow to import

    x, count = examples.features, examples.features.shape[1]
    targets, share = examples.centred(examples.targets), examples.weights / examples.weights.sum()
    variance = float(share @ targets**2) or 1.0
    size = np.sqrt(share @ x**2)
    unit = np.concatenate([np.where(size > 0, size, np.inf), [1.0, 1.0]])  # inf: the weight stays 0
    scale = np.tile(unit, units)
    start = np.random.Generator(np.random.PCG64(seed)).standard_normal(units * (count + 2))
    start *= np.tile([*[count**-0.5] * count, 0.5, 0.1], units)

    def loss(scaled: Array) -> tuple[float, Array]:
        inner, bias, outer = split(scaled / scale, count)
        hidden = np.tanh(x @ inner.T + bias)
        error = examples.centred(hidden @ outer - examples.targets)
        pull = 2 * share * error / variance  # the weighted centring is its own adjoint
        back = (1 - hidden**2) * outer * pull[:, None]
        gradient = np.column_stack([back.T @ x, back.sum(axis=0), hidden.T @ pull]).ravel() / scale
        return float(share @ error**2 / variance + decay * scaled @ scaled), gradient + 2 * decay * scaled

    bounds = [(low * s, high * s) if np.isfinite(s) else (0.0, 0.0) for s in scale]
    inside = np.clip(start, *np.array(bounds).T)
    found: Any = minimize(
        loss, inside, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations}
    )
    return tuple(float(value) for value in np.clip(found.x / scale, low, high))
