"""The process of a candidate, as its caller has it: questions and answers over pipes, within limits.

It imports no simulator, so that :class:`Nursery` starts before its caller has loaded that.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
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


class Nursery:
    """A process that has imported what candidates need, and forks the process of each."""

    def __init__(self) -> None:
        if sys.platform == "win32":
            raise ConfigError(
                "kvgym benchmark judge needs process groups, which Windows lacks; use Linux, macOS or WSL"
            )
        self._channel, other = socket.socketpair()
        command = [sys.executable, "-m", "kvgym.studies.benchmark.candidate", str(other.fileno())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()], start_new_session=True
        )
        other.close()

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Return the id of a new process of a candidate with three pipes; the caller closes its own copies."""
        return int(self._ask(request, descriptors))

    def status(self, process: int) -> int | None:
        """Return the exit status of a process, once; None while it runs."""
        found: int | None = self._ask(process, [])
        return found

    def _ask(self, order: Any, descriptors: list[int]) -> Any:
        try:
            socket.send_fds(self._channel, [json.dumps(order).encode()], descriptors)
            answer = self._channel.recv(KEPT)
        except OSError:
            answer = b""
        if not answer:
            raise LostError("the process that starts candidates has ended")
        return json.loads(answer)


class Process:
    """The process of a candidate, with limits.

    Args:
        nursery: starts it.
        entry: what it loads, see :func:`kvgym.studies.benchmark.judging.judge`.
        seconds: time until it is killed, with all processes of its group.
        memory_mib: limit of its address space.

    Attributes:
        printed: the end of what it has printed, at most :data:`KEPT` bytes.
    """

    def __init__(self, nursery: Nursery, entry: str, seconds: float, memory_mib: int) -> None:
        self._nursery, self._seconds = nursery, seconds
        self._status: int | None = None
        theirs, self._questions = os.pipe()
        self._answers, answering = os.pipe()
        self._prints, printing = os.pipe()
        request = {"entry": entry, "memory_mib": memory_mib}
        try:
            self._pid = nursery.fork(request, [theirs, answering, printing])
        finally:
            for descriptor in (theirs, answering, printing):
                os.close(descriptor)
        os.set_blocking(self._questions, False)
        self._received, self.printed = b"", b""
        self._open = [self._answers, self._prints]
        self._end = time.monotonic() + seconds

    def close(self) -> None:
        """Kill the process group, and wait for the process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(LostError):
            self._wait_for_end(60.0)
        for pipe in (self._questions, self._answers, self._prints):
            os.close(pipe)

    def _ended(self) -> bool:
        """Return whether the process has ended."""
        if self._status is None:
            self._status = self._nursery.status(self._pid)
        return self._status is not None

    def _wait_for_end(self, seconds: float) -> None:
        """Wait until the process has ended, at most this long."""
        end = time.monotonic() + seconds
        while not self._ended() and time.monotonic() < end:
            time.sleep(0.002)

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
            if not (ready or free) and self._ended():  # others hold its pipes open
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
        self._wait_for_end(max(0.1, min(5.0, self._end - time.monotonic())))
        while self._prints in self._open and select.select([self._prints], [], [], 0)[0]:
            self._keep()
            if time.monotonic() > self._end:
                break
        lines = self.printed.decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        if last:
            return f"its process ended: {in_a_line(last)}"
        if self._status is None:
            return "its process closed its pipe"
        return f"its process ended: exit status {self._status}"


def in_a_line(text: object) -> str:
    """Return a text of the candidate as a short line."""
    return cut(" ".join(printable(str(text)).split()), 200) or "it gives no reason"
