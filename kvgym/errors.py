"""Exceptions of kvgym. Every error a user can cause derives from :class:`KVGymError`."""

from __future__ import annotations

import contextlib
import difflib
import pickle
from collections.abc import Iterable
from typing import Any

__all__ = [
    "ConfigError",
    "InformationError",
    "InvalidDecisionError",
    "KVGymError",
    "LivelockError",
    "RunError",
    "TraceFormatError",
    "UnknownNameError",
    "WorkloadError",
]


class KVGymError(Exception):
    """Base of all errors raised by kvgym."""


class ConfigError(KVGymError, ValueError):
    """A configuration value, option or argument is wrong."""


class UnknownNameError(ConfigError):
    """A registry was asked for a name it does not hold."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """Build the message, with the closest names first.

        Args:
            kind: what was looked up, e.g. ``"policy"``.
            name: the name that was not found.
            known: all valid names.
        """
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
        super().__init__(f"unknown {kind} {name!r}.{hint} Valid names: {', '.join(names)}.")
        self._arguments = (kind, name, names)

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str, str, list[str]]]:
        """Pickle, as process pools do with exceptions."""
        return type(self), self._arguments


class WorkloadError(KVGymError, ValueError):
    """A workload is malformed or cannot be served by the configured system."""


class TraceFormatError(WorkloadError):
    """A trace file is malformed; the message names file, line, column and what was expected."""


class RunError(KVGymError):
    """A run had to be ended before its time.

    Attributes:
        result: a :class:`~kvgym.runner.SimulationResult`, what had happened until then, with ``completed=False``,
            as far as :func:`kvgym.simulate` knows it; else None. It is pickled with the error, and left behind where
            it cannot be (a policy defined in a function, say).
    """

    result: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle, as process pools do with exceptions; a result that cannot be pickled must not hide the error."""
        try:
            packed = pickle.dumps(self.result)
        except Exception:  # whatever a policy's own objects raise
            packed = pickle.dumps(None)
        return _unpickled, (type(self), self.args, packed)


def _unpickled(kind: type[RunError], arguments: tuple[Any, ...], packed: bytes) -> RunError:
    error = kind(*arguments)
    with contextlib.suppress(Exception):  # the policy's module may be unknown here
        error.result = pickle.loads(packed)
    return error


class InvalidDecisionError(RunError):
    """A policy returned a decision that the worker cannot carry out; see :class:`RunError` for the result so far."""


class InformationError(KVGymError):
    """A policy read information that it did not declare in ``needs``."""


class LivelockError(RunError):
    """A run cannot end: the policy makes no progress any more; see :class:`RunError` for the result so far."""
