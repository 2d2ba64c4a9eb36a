"""Streaming writer of trace event files.

The JSON object format of "Trace Event Format" (Google, 2016; docs.google.com/document/d/
1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), which ui.perfetto.dev, chrome://tracing and speedscope read, plain or
compressed. Its times are microseconds; here they are whole nanoseconds until they are written, so that slices that
follow one another touch and never overlap.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from kvgym.errors import ConfigError, KVGymError
from kvgym.utils.files import create_temporary

ENDINGS = (".json", ".json.gz")
"""Allowed endings of a trace's name; the second is compressed."""


def check_ending(path: Path) -> None:
    """Reject a name without the ending of a trace.

    Raises:
        ConfigError: it has another ending.
    """
    if not path.name.endswith(ENDINGS) or path.name in ENDINGS:
        raise ConfigError(f"trace file {path}: its name must end in {' or '.join(ENDINGS)}")


def nanoseconds(seconds: float) -> int:
    """Return a time as whole nanoseconds."""
    return round(seconds * 1e9)


class TraceFile:
    """Writes trace events; a context manager.

    The file appears under its name when it is closed, complete; until then it is written next to it. Closed without an
    event, it leaves nothing behind. Equal events make equal bytes.

    Args:
        path: ends in one of :data:`ENDINGS`.
        about: a description of the run, JSON-able, stored in the file as ``otherData``.

    Raises:
        ConfigError: another ending, or the file cannot be written.
    """

    def __init__(self, path: str | Path, about: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        check_ending(self.path)
        if self.path.is_dir():
            raise ConfigError(f"trace file {self.path}: a folder; give the name of a file")
        try:
            self._part = create_temporary(self.path)
            self._raw: IO[bytes] = self._part.open("wb")
        except OSError as error:
            raise ConfigError(f"trace file {self.path} cannot be written: {error.strerror}") from None
        packed: Any = self._raw
        if self.path.name.endswith(".gz"):
            packed = gzip.GzipFile(filename="", mode="wb", fileobj=self._raw, mtime=0)
        self._text = io.TextIOWrapper(packed, encoding="ascii", newline="\n")
        self._about, self.num_events, self._closed = dict(about or {}), 0, False

    def write(self, phase: str, name: str, pid: int, tid: int, time: int, **fields: Any) -> None:
        """Write an event.

        Args:
            phase: its letter in the format: X, i, C, s, f or M.
            name: what is shown.
            pid: the process it belongs to.
            tid: and the track.
            time: nanoseconds.
            **fields: further fields of the phase; ``dur`` in nanoseconds, ``args`` as a mapping.

        Raises:
            KVGymError: the file cannot be written any further.
        """
        event = {"ph": phase, "name": name, "pid": pid, "tid": tid, "ts": time / 1000, **fields}
        if "dur" in event:
            event["dur"] /= 1000
        start = ",\n"
        if not self.num_events:
            about = json.dumps(self._about, allow_nan=False)
            start = f'{{"displayTimeUnit":"ms","otherData":{about},"traceEvents":[\n'
        try:
            self._text.write(start + json.dumps(event, separators=(",", ":"), allow_nan=False))
        except OSError as error:
            raise self._failure(error) from None
        self.num_events += 1

    def close(self) -> None:
        """Complete the file.

        Raises:
            KVGymError: it cannot be written to the end; nothing is left of it.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self.num_events:
                self._text.write("\n]}\n")
            self._text.close()  # and the compression under it; not the file under that
            self._raw.close()
            if self.num_events:
                self._part.replace(self.path)
        except OSError as error:
            raise self._failure(error) from None
        finally:
            with contextlib.suppress(OSError):  # a write that failed before fails again
                self._raw.close()
            self._part.unlink(missing_ok=True)

    def _failure(self, error: OSError) -> KVGymError:
        return KVGymError(f"trace file {self.path} cannot be written to its end: {error.strerror}")

    def __enter__(self) -> TraceFile:
        """Return the file."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file, also after an error: the events until then help to find its cause."""
        self.close()
