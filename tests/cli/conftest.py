"""Command lines run in process."""

import sys

import pytest

from kvgym.cli.app import main


@pytest.fixture
def kvgym(monkeypatch, capsys, tmp_path):
    """Run a command line; returns (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kvgym", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(autouse=True)
def console(monkeypatch):
    """Consoles that write to the streams of the test."""
    from kvgym.cli import console

    monkeypatch.setattr(console, "out", console.Terminal(highlight=False, width=160))
    monkeypatch.setattr(console, "err", console.Terminal(stderr=True, highlight=False, width=400))
