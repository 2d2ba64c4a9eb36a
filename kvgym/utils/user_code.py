"""Calls of users' code: exceptions become errors that name the user's function and line.

Users' code is everything defined outside kvgym: policies, routers, observers, batch-time models, kinds of action,
plugins. An exception from a class of kvgym is a bug in kvgym and passes unchanged.
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, TracebackType
from typing import Any

from kvgym.errors import KVGymError, UserCodeError, shown

_CUT = 90
"""Longest path in a message, characters."""

_REPLACED = (Exception, SystemExit, GeneratorExit)


class calling:  # noqa: N801
    """Context manager around a call of a user's code: raises :class:`~kvgym.errors.UserCodeError` for its exceptions.

    Errors of kvgym, Ctrl-C and every exception of kvgym's own classes pass unchanged. The object has no state, so that
    it can be reused for many calls.

    Args:
        owner: the object, class or function that is called.
        kind: what it is, for messages: "policy".
        call: name of the call, for exceptions that do not come from a user's function: "schedule".
    """

    __slots__ = ("_call", "_kind", "_owner")

    def __init__(self, owner: object, kind: str, call: str) -> None:
        self._owner, self._kind, self._call = owner, kind, call

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Replace an exception of the user's code.

        Raises:
            UserCodeError: in its place.
        """
        if error is None or not isinstance(error, _REPLACED) or isinstance(error, KVGymError):
            return
        if is_foreign(self._owner):
            below = trace and trace.tb_next  # without the frame of the with statement
            raise self._error(error, below) from error

    def _error(self, error: BaseException, trace: TracebackType | None) -> UserCodeError:
        frames = [*_foreign_frames(trace)]
        if frames:
            # The last frame in the user's package, not in libraries that it calls.
            package = frames[0][0]
            code, line = next((code, line) for name, code, line in reversed(frames) if name == package)
            place = _place(code, line)
        else:  # the call itself failed, for example with a TypeError about arguments
            found = getattr(getattr(self._owner, self._call, self._owner), "__code__", None)
            place = self._call if found is None else _place(found, found.co_firstlineno)
        try:
            text = " ".join(str(error).split())
        except Exception:  # a user's exception may fail in __str__
            text = ""
        what = f"{type(error).__name__}: {text}" if text else type(error).__name__
        details = "".join(traceback.format_exception(type(error), error, trace))
        return UserCodeError(f"{self._kind} {_name(self._owner)}: {place} raised {what}", details)


def is_foreign(owner: object) -> bool:
    """Return whether an object, class, function or ``"module:name"`` is defined outside kvgym."""
    named = owner if hasattr(owner, "__qualname__") else type(owner)
    module = owner if isinstance(owner, str) else str(getattr(named, "__module__", ""))
    return module.partition(".")[0] != "kvgym"


def named_errors(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Wrap a function so that every call is in :class:`calling`; functions of kvgym are returned unchanged."""
    return _named(function, kind) if is_foreign(function) else function


@functools.cache
def _named(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    guard = calling(function, kind, "it")

    @functools.wraps(function)
    def called(*arguments: Any) -> Any:
        with guard:
            return function(*arguments)

    return called


def _foreign_frames(trace: TracebackType | None) -> Iterator[tuple[str, CodeType, int]]:
    """Yield top-level package, code and line of the frames outside kvgym, outermost first."""
    for frame, line in traceback.walk_tb(trace):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "kvgym":
            yield package, frame.f_code, line


def _place(code: CodeType, line: int) -> str:
    """Return function, file and line."""
    return f"{getattr(code, 'co_qualname', code.co_name)} ({_short(code.co_filename)}:{line})"


def _short(path: str) -> str:
    """Return a path relative to the working directory if it is inside, and only the end of a long path."""
    below = os.path.join(os.getcwd(), "") if os.path.isabs(path) else ""
    path = path.removeprefix(below)
    return path if len(path) <= _CUT else f"…{path[-_CUT:]}"


def _name(owner: object) -> str:
    """Return the name of a policy or router, or of another class or function."""
    name = owner if isinstance(owner, str) else getattr(getattr(owner, "info", None), "name", None)
    if isinstance(name, str):
        return shown(name)
    return str(getattr(owner, "__qualname__", type(owner).__qualname__)).replace("<locals>.", "")
