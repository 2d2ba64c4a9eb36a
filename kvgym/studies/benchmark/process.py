"""The process of a candidate, as its caller has it: questions and answers over pipes, within limits.

It imports no simulator, so that a process starts before its caller has loaded that.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

from kvgym.errors import ConfigError, RunError, cut, printable
from kvgym.studies.benchmark.candidate import ANSWER, QUESTION

KEPT = 1 << 16
"""Bytes that are kept of what a candidate prints."""

LONGEST = 1 << 20
"""Longest answer, bytes."""


class LostError(Exception):
    """The process of a candidate cannot be asked any more; the message says why."""


class Process:
    """The process of a candidate, with limits.

    Args:
        entry: what it loads, see :func:`kvgym.studies.benchmark.judging.judge`.
        seconds: time until it is killed, with all processes of its group.
        memory_mib: limit of its address space.

    Attributes:
        printed: the end of what it has printed, at most :data:`KEPT` bytes.
    """

    def __init__(self, entry: str, seconds: float, memory_mib: int) -> None:
        if sys.platform == "win32":
            raise ConfigError(
                "kvgym benchmark judge needs process groups, which Windows lacks; use Linux, macOS or WSL"
            )
        self._seconds, self._end = seconds, time.monotonic() + seconds
        request = json.dumps({"entry": entry, "memory_mib": memory_mib})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvgym.studies.benchmark.candidate", request],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, start_new_session=True,
        )  # fmt: skip
        pipes = self._process.stdin, self._process.stdout, self._process.stderr
        self._questions, self._answers, self._prints = (pipe.fileno() for pipe in pipes if pipe is not None)
        os.set_blocking(self._questions, False)
        self._received, self.printed = b"", b""
        self._open = [self._answers, self._prints]

    def restart_clock(self) -> None:
        """Count the time from now on."""
        self._end = time.monotonic() + self._seconds

    def close(self) -> None:
        """Kill the process group, and wait for the process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    # ------------------------------------------------------------ questions

    def ask(self, kind: bytes, content: bytes = b"") -> dict[str, Any]:
        """Return the answer to a question.

        Raises:
            RunError: the candidate failed in this run.
            LostError: the process is lost.
        """
        self._send(QUESTION.pack(kind, len(content)) + content)
        (length,) = ANSWER.unpack(self._receive(ANSWER.size))
        if length > LONGEST:
            raise LostError(f"its process wrote an answer of {length} bytes; an answer has at most {LONGEST}")
        try:
            answer = json.loads(self._receive(length))
        except (ValueError, RecursionError):
            raise LostError("its process wrote what is no answer") from None
        if not isinstance(answer, dict):
            raise LostError("its process wrote what is no answer")
        if "lost" in answer:
            raise LostError(in_a_line(answer["lost"]))
        if "failed" in answer:
            raise RunError(in_a_line(answer["failed"]))
        return answer

    # ------------------------------------------------------------ pipes

    def _send(self, content: bytes) -> None:
        left = memoryview(content)
        while left:
            try:
                left = left[os.write(self._questions, left) :]
            except BlockingIOError:
                self._wait(writing=True)
            except BrokenPipeError:
                raise LostError(self._ending()) from None

    def _receive(self, length: int) -> bytes:
        while len(self._received) < length:
            self._wait()
            part = os.read(self._answers, KEPT)
            if not part:
                raise LostError(self._ending())
            self._received += part
        found, self._received = self._received[:length], self._received[length:]
        return found

    def _wait(self, *, writing: bool = False) -> None:
        """Wait until it can be written to, or has answered; meanwhile keep the end of what it prints.

        Raises:
            LostError: the time is over.
        """
        wanted = self._questions if writing else self._answers
        while True:
            left = self._end - time.monotonic()
            slice_ = min(max(0.0, left), 1.0)
            ready, free, _ = select.select(self._open, [wanted] if writing else [], [], slice_)
            if left <= 0:
                raise LostError(f"it took more than {self._seconds:g} s")
            if not (ready or free) and self._process.poll() is not None:  # others hold its pipes open
                raise LostError(self._ending())
            if self._prints in ready:
                self._keep()
            if wanted in free or (not writing and wanted in ready):
                return
            if writing and self._answers in ready:
                raise LostError("its process wrote without being asked")

    def _keep(self) -> None:
        """Keep the end of what it has printed."""
        part = os.read(self._prints, KEPT)
        self.printed = (self.printed + part)[-KEPT:]
        if not part:
            self._open.remove(self._prints)

    def _ending(self) -> str:
        """Return how the process ended, in a line."""
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=max(0.1, min(5.0, self._end - time.monotonic())))
        while self._prints in self._open and select.select([self._prints], [], [], 0)[0]:
            self._keep()
            if time.monotonic() > self._end:
                break
        lines = self.printed.decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        if last:
            return f"its process ended: {in_a_line(last)}"
        return "its process closed its pipe" if code is None else f"its process ended: exit status {code}"


def in_a_line(text: object) -> str:
    """Return a text of the candidate as a short line."""
    return cut(" ".join(printable(str(text)).split()), 200) or "it gives no reason"
