"""Saved states of environments, for planners that try actions and return to an earlier moment.

An episode is one block of memory (:class:`~kvgym.envs.scheduling.memory.Block`), so that saving and restoring it are a
copy each. The state includes the future: requests that have not arrived are in the block, and a copy continues with
the same ones. A planner that simulates on copies is therefore clairvoyant.

Compiled code trusts the content of the block. So the arrays of a state are read-only, and a state is restored
only with the arrays it was saved with. A pickled state has a digest of them that reveals damage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.memory import Sizes
from kvgym.envs.scheduling.reward_reference import ReferenceRewards
from kvgym.errors import ConfigError, shown
from kvgym.utils.checks import check_parts, whole_number
from kvgym.workloads.table import RequestTable


class SavedArray(np.ndarray[Any, Any]):
    """An array of a state: a copy in read-only memory."""


def frozen(array: NDArray[Any]) -> SavedArray:
    """Return a read-only copy of an array for a state."""
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape).view(SavedArray)


def _is_frozen(array: NDArray[Any]) -> bool:
    return isinstance(array, SavedArray) and not (array.flags.writeable or array.flags.owndata)


class Sealed:
    """Mixin of a dataclass with arrays that compiled code will read: detects replaced and damaged arrays."""

    def check_seal(self) -> None:
        """Check that the arrays were saved from an environment.

        Raises:
            ConfigError: one was replaced, so that its content cannot be trusted.
        """
        if not all(map(_is_frozen, self._arrays())):
            raise ConfigError(
                "the state has arrays that were not saved with it; pass what get_state() has returned, or its pickle"
            )

    def _arrays(self) -> Iterator[NDArray[Any]]:
        for value in vars(self).values():
            parts = value if isinstance(value, tuple) else (value,)
            yield from (part for part in parts if isinstance(part, np.ndarray))

    def _digest(self) -> bytes:
        seen = hashlib.blake2b(digest_size=16)
        for array in self._arrays():
            seen.update(f"{array.dtype}{array.shape}".encode())
            seen.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return seen.digest()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields and a digest of the arrays."""
        return {**vars(self), "digest": self._digest()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copy the fields, arrays as :func:`frozen` ones.

        Raises:
            ConfigError: fields are missing, or the arrays differ from those that were pickled.
        """
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        check_parts(state, {**dict.fromkeys(names, object), "digest": bytes}, "the saved state")
        for name in names:
            value = state[name]
            if isinstance(value, np.ndarray) and not value.dtype.hasobject:
                value = frozen(value)
            elif isinstance(value, tuple) and any(isinstance(part, np.ndarray) for part in value):
                value = tuple(frozen(part) if isinstance(part, np.ndarray) else part for part in value)
            object.__setattr__(self, name, value)
        if any(array.dtype.hasobject for array in self._arrays()) or self._digest() != state["digest"]:
            raise ConfigError("the saved state is damaged: its arrays are not those that were saved")


@dataclass(frozen=True)
class EpisodeState(Sealed):
    """An episode at a moment; it can be pickled, and restored any number of times.

    Attributes:
        sizes: sizes of its tables.
        memory: uint8, a copy of its tables.
        outputs: copies of the arrays that the latest step has written, see :attr:`Episodes.outputs`.
        table: its requests.
        reference: the rewards of the reference policy on them.
    """

    sizes: Sizes
    memory: NDArray[np.uint8]
    outputs: tuple[NDArray[Any], ...]
    table: RequestTable
    reference: ReferenceRewards | None


@dataclass(frozen=True)
class SavedState:
    """Base class of saved states.

    Attributes:
        config: configuration of the environment.
    """

    config: Any

    @classmethod
    def check(cls, state: Any, config: Any) -> None:
        """Check that ``state`` can be restored in an environment with the configuration ``config``.

        Raises:
            ConfigError: it is not a state, or belongs to an environment with other arguments.
        """
        if not isinstance(state, cls):
            raise ConfigError(f"state = {shown(state)}; expected what get_state() has returned")
        if type(state.config) is not type(config):
            raise ConfigError(
                f"config of the state = {shown(state.config)}; expected {type(config).__name__}"
            )
        if state.config is config or state.config == config:
            return
        names = type(config).model_fields
        other = [name for name in names if getattr(state.config, name, None) != getattr(config, name)]
        raise ConfigError(
            f"the state is of an environment with another {', '.join(other)}; make both with the same arguments"
        )

    @staticmethod
    def check_rest(state: Any) -> None:
        """Check the fields of a state other than the episode.

        Raises:
            ConfigError: a field does not have the type that get_state() returns.
        """
        check_generator(state.generator)
        whole_number(state.steps, "steps of the state", "a whole number ≥ 0", 0)
        if not isinstance(state.ended, bool):
            raise ConfigError(f"ended of the state = {shown(state.ended)}; expected true or false")


_TRIAL = np.random.PCG64(0)
"""Generator on which states are tried."""


def check_generator(state: Any) -> None:
    """Check that ``state`` is a state of a bit generator of Gymnasium.

    Raises:
        ConfigError: it is not.
    """
    try:
        _TRIAL.state = state
    except Exception as error:  # NumPy raises exceptions of many types
        raise ConfigError(f"generator of the state = {shown(state)}: no state of PCG64 ({error})") from None


@dataclass(frozen=True)
class EnvState(SavedState):
    """An environment at a moment: its episode, and the generator that draws later episodes.

    Attributes:
        config: its configuration.
        episode: the episode.
        generator: state of the bit generator.
        ended: whether the episode is over.
        steps: steps of the episode so far; a ``TimeLimit`` around a single environment counts its own.
    """

    config: EnvConfig
    episode: EpisodeState
    generator: Mapping[str, Any]
    ended: bool
    steps: int = 0
