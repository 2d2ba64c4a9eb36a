"""A small tanh network with hand-written gradients, and Adam."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BETAS, TINY = (0.9, 0.99), 1e-8
"""Decay of Adam's averages of gradients and of their squares, and the number added to its divisor."""

BATCH, FIT_RATE = 256, 0.01
"""Examples in a batch of a fit, and the learning rate of Adam at its beginning."""

WIDTH, SHARP = 1.5, 4.0
"""Standard deviation of a first layer's weighted input, and of a sharp one's: bends lie within the data, which are
standardised, and take about half their deviation if they are sharp."""


class Network:
    """Layers of weights (inputs, outputs) and biases; tanh between them, one output, 0 at first.

    Args:
        inputs: number of inputs, which are standardised.
        hidden: units of each hidden layer.
        rng: draws the initial weights.
        sharp: whether the units of the first layer bend sharply, each at a place that is drawn as the data are. A fit
            moves blunt bends; a policy gradient is too noisy for that, and must find them where they are needed.
    """

    def __init__(
        self, inputs: int, hidden: Sequence[int], rng: np.random.Generator, *, sharp: bool = False
    ) -> None:
        self.hidden = tuple(hidden)
        self.numbers: list[Array] = []
        for layer, (before, after) in enumerate(pairwise((inputs, *hidden))):
            width = 1.0 if layer else SHARP if sharp else WIDTH
            weights = width / before**0.5 * rng.standard_normal((before, after))
            biases = rng.standard_normal((before, after) if sharp and not layer else after)
            self.numbers += [weights, -(weights * biases).sum(0) if sharp and not layer else biases]
        self.numbers += [np.zeros((hidden[-1], 1)), np.zeros(1)]

    def outputs(self, x: Array) -> tuple[Array, list[Array]]:
        """Return the outputs (B,) of inputs (B, inputs), and the inputs of each layer."""
        inputs = [x]
        for k in range(0, len(self.numbers) - 2, 2):
            inputs.append(np.tanh(inputs[-1] @ self.numbers[k] + self.numbers[k + 1]))
        return (inputs[-1] @ self.numbers[-2] + self.numbers[-1])[:, 0], inputs

    def gradient(self, inputs: Sequence[Array], of_outputs: Array) -> list[Array]:
        """Return the gradient of each array of numbers.

        Args:
            inputs: of each layer, from :meth:`outputs`.
            of_outputs: gradient of the outputs, (B,).
        """
        found: list[Array] = []
        behind = of_outputs[:, None]
        for k in range(len(inputs) - 1, -1, -1):
            found = [inputs[k].T @ behind, behind.sum(0), *found]
            if k:
                behind = behind @ self.numbers[2 * k].T * (1.0 - inputs[k] ** 2)
        return found


class Adam:
    """Adam (D. P. Kingma and J. Ba, ICLR 2015), ascending.

    Args:
        numbers: arrays that it changes in place.
    """

    def __init__(self, numbers: Sequence[Array]) -> None:
        self.numbers, self.steps = numbers, 0
        self.means = [np.zeros_like(array) for array in numbers]
        self.squares = [np.zeros_like(array) for array in numbers]

    def step(self, gradient: Sequence[Array], rate: float) -> None:
        """Move the numbers along a gradient."""
        self.steps += 1
        first, second = (1.0 - beta**self.steps for beta in BETAS)
        for array, mean, square, slope in zip(self.numbers, self.means, self.squares, gradient, strict=True):
            mean *= BETAS[0]
            mean += (1.0 - BETAS[0]) * slope
            square *= BETAS[1]
            square += (1.0 - BETAS[1]) * slope**2
            array += rate * (mean / first) / (np.sqrt(square / second) + TINY)

    def state(self) -> dict[str, Any]:
        """Return everything that determines the next steps, JSON-able."""
        lists = {name: [a.tolist() for a in getattr(self, name)] for name in ("numbers", "means", "squares")}
        return {**lists, "steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` has returned.

        Raises:
            ValueError: arrays of other shapes.
        """
        for name in ("numbers", "means", "squares"):
            for array, saved in zip(getattr(self, name), state[name], strict=True):
                if np.shape(saved) != array.shape or not np.isfinite(np.asarray(saved, float)).all():
                    raise ValueError(f"{name} of the network are of another shape or not finite")
                array[:] = saved
        self.steps = int(state["steps"])


def standard(x: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of inputs (examples, inputs); 1 for those that never change."""
    spread = x.std(0)
    return x.mean(0), np.where(spread > 1e-6, spread, 1.0)


def fit(network: Network, x: Array, targets: Array, passes: int, rng: np.random.Generator) -> None:
    """Fit a network by least squares.

    Args:
        network: to change.
        x: standardised inputs, (examples, inputs).
        targets: wanted outputs, (examples,).
        passes: over the examples; the learning rate falls linearly to 0.
        rng: draws the order of the examples.
    """
    optimiser = Adam(network.numbers)
    total = passes * -(-len(x) // BATCH)
    for _ in range(passes):
        order = rng.permutation(len(x))
        for rows in (order[start : start + BATCH] for start in range(0, len(x), BATCH)):
            found, layers = network.outputs(x[rows])
            slopes = network.gradient(layers, (targets[rows] - found) / len(rows))
            optimiser.step(slopes, FIT_RATE * (1.0 - optimiser.steps / total))
