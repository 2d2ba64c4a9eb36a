"""Learned weights of a policy or router, and their search space."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.agents.evolution.role import KINDS
from kvgym.errors import ConfigError, shown
from kvgym.policies.hyperparameters import AUTO, Weight
from kvgym.policies.policy import policy_defaults

Value = float | tuple[float, ...]
"""Value of a weight: a number, or a tuple if its size is above 1."""


def weights_of(name: str, fixed: Mapping[str, Any], kind: str = "policy") -> dict[str, Weight]:
    """Return the declared weights of a policy or router, by name.

    Args:
        name: registered name.
        fixed: its other hyperparameters.
        kind: key of :data:`~kvgym.agents.evolution.role.KINDS`.

    Raises:
        UnknownNameError: no policy or router of that name.
        ConfigError: a hyperparameter in ``fixed`` is wrong.
    """
    try:
        return {weight.name: weight for weight in KINDS[kind].registry[name].weights(**fixed)}
    except TypeError as error:
        raise ConfigError(f"{kind} {shown(name)}: {error}") from None


def chosen_weights(
    name: str, fixed: Mapping[str, Any], chosen: Mapping[str, Mapping[str, Any]], kind: str = "policy"
) -> tuple[tuple[Weight, ...], dict[str, Value]]:
    """Return the weights to learn and the start of their search.

    Args:
        name: registered name of the policy or router.
        fixed: hyperparameters that are not learned.
        chosen: names with changes of ``start``, ``step``, ``low`` and ``high``; empty = all declared weights. A
            hyperparameter that is not a declared weight needs ``step``, ``low`` and ``high``.
        kind: key of :data:`~kvgym.agents.evolution.role.KINDS`.

    Raises:
        UnknownNameError: no policy, router or hyperparameter of that name.
        ConfigError: there is nothing to learn, or a number is out of range.
    """
    declared = weights_of(name, fixed, kind)
    cls = KINDS[kind].registry[name]
    usual = dict(getattr(cls.info, "auto", ()))
    defaults = {
        key: usual.get(key, value) if value == AUTO else value for key, value in policy_defaults(cls).items()
    }
    if not declared and not chosen:
        raise ConfigError(
            f"{kind} {shown(name)} declares no weights; name hyperparameters to learn with step, low and high, e.g. "
            "weights: {alpha: {step: 0.1, low: 0, high: 1}}"
        )
    learned: list[Weight] = []
    starts: dict[str, Value] = {}
    for key, changes in (chosen or {key: {} for key in declared}).items():
        given = {field: value for field, value in changes.items() if value is not None}
        start = given.pop("start", None)
        if key in fixed:
            raise ConfigError(f"weight {shown(key)} is in fixed, too; a weight is either fixed or learned")
        if key in declared:
            weight = dataclasses.replace(declared[key], **given)
        else:
            weight = _of_number(f"{kind} {name!r}", key, defaults, given, tuple(declared))
        if not 0 < weight.step < math.inf or not weight.low < weight.high:
            raise ConfigError(
                f"weight {shown(key)}: step = {weight.step}, low = {weight.low}, high = {weight.high}; expected 0 "
                "< step and low < high"
            )
        learned.append(weight)
        default: Value = weight.default if weight.size == 1 else (weight.default,) * weight.size
        starts[key] = checked(weight, default if start is None else start, "start")
    return tuple(learned), starts


def _of_number(
    what: str, name: str, defaults: Mapping[str, Any], given: Mapping[str, Any], declared: Sequence[str]
) -> Weight:
    """Return a weight for a hyperparameter that is not a declared weight."""
    default = defaults.get(name)
    if isinstance(default, bool) or not isinstance(default, float):
        numbers = [key for key, value in defaults.items() if isinstance(value, float)]
        valid = ", ".join(dict.fromkeys((*declared, *numbers))) or "none"
        raise ConfigError(f"{what} has no weight {shown(name)} that is a real number; valid: {valid}")
    missing = [key for key in ("step", "low", "high") if key not in given]
    if missing:
        raise ConfigError(f"weight {shown(name)}: {what} does not declare it; also give {', '.join(missing)}")
    return Weight(name=name, default=default, **given)


def checked(weight: Weight, value: Any, what: str = "value") -> Value:
    """Return a value of a weight as a float, or as a tuple of floats if its size is above 1.

    Raises:
        ConfigError: it has another size, is not finite, or is out of range.
    """
    entries = [value] if weight.size == 1 and not isinstance(value, list | tuple) else value
    good = isinstance(entries, list | tuple) and all(
        isinstance(x, int | float) and not isinstance(x, bool) for x in entries
    )
    if not good or len(entries) != weight.size:
        expected = "a number" if weight.size == 1 else f"{weight.size} numbers"
        found = f"{len(value)} entries" if isinstance(value, list | tuple) else repr(value)
        raise ConfigError(f"weight {shown(weight.name)}: {what} needs {expected}, got {found}")
    for x in entries:
        if not math.isfinite(x) or not weight.low <= x <= weight.high:
            raise ConfigError(
                f"weight {shown(weight.name)}: {what} {shown(x)} is out of range; expected {weight.low:g} … "
                f"{weight.high:g}"
            )
    numbers = tuple(float(x) for x in entries)
    return numbers[0] if weight.size == 1 else numbers


class SearchSpace:
    """Map vectors of a search to weights.

    A vector counts steps from the start: 0 is the start, 1 is a typical change of an entry. The search is unbounded;
    values outside the range of a weight are reflected into it.

    Args:
        weights: the learned weights.
        starts: value of each at vector 0.
    """

    def __init__(self, weights: Sequence[Weight], starts: Mapping[str, Value]) -> None:
        self.weights = tuple(weights)
        sizes = [weight.size for weight in weights]
        self._start = np.concatenate([np.atleast_1d(np.asarray(starts[w.name], np.float64)) for w in weights])
        self._step, self._low, self._high = (
            np.repeat([getattr(w, name) for w in weights], sizes).astype(np.float64)
            for name in ("step", "low", "high")
        )

    @property
    def size(self) -> int:
        """Entries of a vector."""
        return len(self._start)

    def inside(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the vector with the same weights that needs no reflection, float64 (size,)."""
        entries = self._start + self._step * vector
        found = reflected(entries, self._low, self._high)
        return np.where(found == entries, vector, (found - self._start) / self._step)

    def values(self, vector: NDArray[np.float64]) -> dict[str, Value]:
        """Return the weights at a vector, float64 (size,), each within its range."""
        entries = reflected(self._start + self._step * vector, self._low, self._high).tolist()
        found: dict[str, Value] = {}
        place = 0
        for weight in self.weights:
            own = entries[place : place + weight.size]
            found[weight.name] = own[0] if weight.size == 1 else tuple(own)
            place += weight.size
        return found


def reflected(
    x: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``x`` mirrored at the bounds until it is in [low, high]; shapes (n,)."""
    outside = (x < low) | (x > high)
    if not outside.any():
        return x
    found, x, low, high = x.copy(), x[outside], low[outside], high[outside]
    with np.errstate(invalid="ignore"):
        width = high - low
        both = np.abs((x - low + width) % (2 * width) - width)  # distance from low, a triangle wave
        one = np.where(np.isfinite(low), low + np.abs(x - low), high - np.abs(high - x))
        mirrored = np.where(np.isfinite(width), low + both, one)
    found[outside] = np.clip(mirrored, low, high)
    return found
