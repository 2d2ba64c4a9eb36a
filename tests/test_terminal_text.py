"""Texts from files and arguments do nothing to a terminal: escape sequences are shown, not obeyed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from helpers.amount import some
from helpers.selection import others_long
from kvgym.cli.console import Terminal, mapping_table, markdown_table
from kvgym.errors import ConfigError, UnknownNameError, printable

SEQUENCES = ("\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\x85", "\x7f", "\x08", "\r", "\x00")
RUN = "from kvgym.cli.app import main; main()"


def harmless(text: str) -> bool:
    return not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in text)


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_of_messages_and_tables(sequence, capsys):
    for error in (
        ConfigError(f"field a{sequence}b", f"x{sequence}\ny"),
        UnknownNameError("a", sequence, [sequence]),
    ):
        assert harmless(str(error) + error.details)
    console = Terminal(highlight=False, width=80, force_terminal=False)
    console.print(f"one{sequence}two", markup=False)
    console.print(mapping_table(sequence, {sequence: (f"x{sequence}",)}, (sequence, "b")))
    console.print(sequence, markup=False, soft_wrap=True)
    print(markdown_table([sequence, "b"], {sequence: [sequence]}))
    assert harmless(capsys.readouterr().out)


def test_styles_and_line_breaks_stay(capsys):
    Terminal(force_terminal=True, color_system="standard", width=80).print("two\nlines", style="red")
    assert capsys.readouterr().out == "\x1b[31mtwo\x1b[0m\n\x1b[31mlines\x1b[0m\n"
    assert printable("one\n\ttwo – ü €") == "one\n\ttwo – ü €"
    assert printable("\x1b\x7f\x9b") == "␛␡\ufffd"


@pytest.mark.parametrize("name", ["a\x1b[31mb.csv", "c\x9b2Jd.yaml"])
def test_of_files(kvgym_in, name):
    (kvgym_in / name).write_text(
        "name: x\x1b\n" if name.endswith("yaml") else "t\x1b[2Jt,\x9bu\n1,2\n", "utf-8"
    )
    option = "--scenario" if name.endswith("yaml") else "--trace"
    for more in some([["--verbose"], []], 2):
        done = subprocess.run(
            [sys.executable, "-c", RUN, "run", "-p", "fcfs", option, name, *more],
            cwd=kvgym_in, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2, done
        assert harmless((done.stdout + done.stderr).decode())


@pytest.fixture
def kvgym_in(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONUTF8", "1")
    return tmp_path


@pytest.mark.parametrize(
    "closed", others_long([">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"], {">&-", "<&- >&- 2>&-"})
)
def test_closed_streams(tmp_path, closed):
    for arguments, status in some(
        [("run -p fcfs --num-requests 20 --json", 0), ("list routers", 0), ("run -p nothing", 2)], 2
    ):
        done = subprocess.run(
            ["/bin/sh", "-c", f"exec {sys.executable} -c '{RUN}' {arguments} {closed}"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done
        assert "Traceback" not in done.stderr
