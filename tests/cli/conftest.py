"""Command lines run in process."""

import dataclasses
import shlex
import sys

import pytest

from kvgym.cli.app import main


@dataclasses.dataclass
class CommandLine:
    """Calls of the command line in this process."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture

    def __call__(self, line="", *arguments):
        """Run the words of a line and further arguments; returns (exit code, standard output, standard error)."""
        self.monkeypatch.setattr(sys, "argv", ["kvgym", *shlex.split(str(line)), *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err

    def output(self, *words):
        """Run a command that succeeds; returns its output."""
        code, out, err = self(*words)
        assert code == 0, err
        return out

    def error(self, *words):
        """Run a command with a mistake; returns the message."""
        code, _, err = self(*words)
        assert code == 2
        assert "Traceback" not in err
        return err


@pytest.fixture
def kvgym(monkeypatch, capsys, tmp_path):
    """The command line, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return CommandLine(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def console(monkeypatch):
    """Consoles that write to the streams of the test."""
    from kvgym.cli import console

    monkeypatch.setattr(console, "out", console.Terminal(highlight=False, width=160))
    monkeypatch.setattr(console, "err", console.Terminal(stderr=True, highlight=False, width=400))
