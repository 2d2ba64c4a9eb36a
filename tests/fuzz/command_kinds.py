"""Kinds of input: command lines, in this process and in a separate one."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzz.judging import HangError, SilentError
from fuzz.kinds import Kind
from kvgym.errors import LIMIT, KVGymError

LINES = (
    "list policies",
    "list scenarios --markdown",
    "list hardware",
    "run fcfs --scenario mc-sf-noisy -n 20",
    "run mc_sf:protection=0.1 --scenario mc-sf-noisy -n 20 --seed 3 --json",
    "compare -p fcfs -p mc_sf --scenario mc-sf-noisy -n 20 --seeds 2",
    "watch curve nothing",
    "bound mc-sf-noisy -n 5",
    "capacity --policies fcfs --scenario mc-sf-noisy -n 20",
    "train default --steps 100",
    "evaluate ppo_noisy -n 5",
    "sweep rates --jobs 2",
    "render fcfs --out film.gif",
    "tune mc_sf -n 20 --trials 2",
    "server validate x.csv --hardware llama2-70b-a100-tp2",
)


class UnclearError(Exception):
    """A command line ended in a traceback, or with an unclear message."""


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Change the working directory temporarily, like ``contextlib.chdir`` of Python 3.11."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def line_seeds() -> list[Any]:
    return [{"arguments": shlex.split(line)} for line in LINES]


def _arguments(content: Any) -> list[str]:
    given = content.get("arguments") if isinstance(content, dict) else content
    words = given if isinstance(given, list) else [given]
    return [str(word).replace("\x00", "")[:5000] for word in words][:40]


def play_line(content: Any, folder: Path) -> None:
    """Parse a command line without running it; the other kinds cover the rest."""
    from typer.main import get_command

    from kvgym.cli.app import app, command_name, load_command

    words = _arguments(content)
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), working_in(folder):
        try:
            command: Any = get_command(app)
            name = command_name(words)
            if name:
                command, words = load_command(name), words[len(name.split()) :]
            context = command.make_context("kvgym", words)
            if name == "list":
                command.invoke(context)
        except Exception as error:
            # Typer may contain its own click, with other error classes of the same names.
            names = {base.__name__ for base in type(error).__mro__}
            if "ClickException" in names:
                raise KVGymError(error.format_message()[:LIMIT] or "the help") from None  # type: ignore[attr-defined]
            if not names & {"Exit", "Abort"}:
                raise
        except SystemExit:
            return


LINE = Kind("line", line_seeds, play_line)


def play_process(content: Any, folder: Path) -> None:
    """Run a command line in a separate process, which must end without a traceback."""
    code = "from kvgym.cli.app import main; main()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *_arguments(content)], cwd=folder, capture_output=True, timeout=60,
            env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise HangError("no answer after 60 s") from None
    errors = done.stderr.decode("utf-8", "replace")
    if "Traceback" in errors or done.returncode < 0 or done.returncode not in (0, 1, 2, 130):
        raise UnclearError(f"exit status {done.returncode}: {errors[-800:]}")
    if "not enough memory" in errors:
        raise MemoryError(errors[-200:])
    if done.returncode == 2:
        shown = [line for line in errors.splitlines() if line.startswith("error: ")]
        if shown and len(shown[0]) > LIMIT + len("error: "):
            raise UnclearError(f"a message of {len(shown[0])} characters: {shown[0][:300]}")
        if not errors.strip() and not done.stdout.strip():  # without a command it prints the help
            raise SilentError("an error without a message")
        raise KVGymError(errors[-200:] or "the help")


PROCESS = Kind("process", line_seeds, play_process, weight=0.02, quick=False)
