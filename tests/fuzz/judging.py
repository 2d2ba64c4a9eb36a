"""Outcome of an input: fine, a clear error, or a failure."""

from __future__ import annotations

import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgym.errors import LIMIT, KVGymError

FINE, CLEAR = "fine", "clear"
FOREIGN, HANG, MEMORY, SILENT, LONG = FAILURES = ("foreign", "hang", "memory", "silent", "long")
CLASSES = (FINE, CLEAR, *FAILURES)
"""Outcomes: accepted, rejected by an error of kvgym, and failures."""

SECONDS = 20.0
"""CPU time after which an input counts as hung, seconds."""

GROWTH = 1 << 30
"""Bytes by which an input may raise the peak memory of the process."""


class HangError(BaseException):
    """An input took too long; ``except Exception`` does not catch it."""


class SilentError(Exception):
    """A wrong input was accepted."""


@dataclass(frozen=True)
class Verdict:
    """Outcome of an input.

    Attributes:
        outcome: one of :data:`CLASSES`.
        message: message of the error, if there was one.
        place: identity of the failure: class of the error, and function of the project that raised it.
        trace: last lines of a failure's traceback.
        seconds: CPU time.
    """

    outcome: str
    message: str = ""
    place: str = ""
    trace: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether it is a failure."""
        return self.outcome in FAILURES


def judge(play: Callable[[], Any]) -> Verdict:
    """Play an input and return its outcome."""
    began, held = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with _limited():
            play()
        verdict = Verdict(FINE)
    except KVGymError as error:
        text = str(error)
        verdict = Verdict(CLEAR, text)
        if len(text) > LIMIT or "\n" in text or not text.strip():
            verdict = _failure(LONG, error)
    except SilentError as error:
        verdict = _failure(SILENT, error)
    except MemoryError as error:
        verdict = _failure(MEMORY, error)
    except HangError as error:
        verdict = _failure(HANG, error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # what the fuzzer searches for
        verdict = _failure(FOREIGN, error)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held)
    if grown > GROWTH and not verdict.failed:
        verdict = Verdict(MEMORY, f"{grown:,} bytes above the previous peak", "memory")
    return Verdict(*list(vars(verdict).values())[:4], seconds=time.process_time() - began)


def _failure(outcome: str, error: BaseException) -> Verdict:
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f for f in frames if any(part in ("kvgym", "agents", "baselines") for part in Path(f.filename).parts)
    ]
    last = own[-1] if own else frames[-1] if frames else None
    where = "" if last is None else f"{'/'.join(Path(last.filename).parts[-2:])}:{last.name}"
    # A wrong acceptance has no own traceback: its message, without the numbers, identifies it.
    what = str(error).partition(":")[0] if outcome == SILENT else type(error).__name__
    trace = "".join(traceback.format_exception(error)[-6:])
    return Verdict(outcome, str(error)[:500], f"{what} at {where}", trace[-3000:])


@contextmanager
def _limited() -> Iterator[None]:
    """Raise :class:`HangError` after :data:`SECONDS` of CPU time."""

    def stop(*_: Any) -> None:
        raise HangError(f"no answer after {SECONDS:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
