"""Progress of commands, with and without a terminal."""

import re
import time

import pytest
from rich.console import Console

from kvgym.cli import console, progress
from kvgym.cli.console import number
from kvgym.simulator.recording.progress import _subscription


def test_lines_show_progress_and_remaining_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    steps = progress.Steps(4, None)
    assert steps.line() == "0 of 4 done in 0:00"
    now[0] = 160.0
    steps.update("fcfs, seed 0")
    steps.within(0.5)
    assert steps.line() == "fcfs, seed 0: 1.5 of 4 done in 1:00, about 1:40 left; Ctrl-C stops"
    steps.update("mc_sf, seed 0")
    assert steps.line() == "mc_sf, seed 0: 2 of 4 done in 1:00, about 1:00 left; Ctrl-C stops"
    steps.update("all", 4, 4)
    assert steps.line() == "all: 4 of 4 done in 1:00"
    steps.update("slow", 0)
    steps.within(1e-9)
    assert "more than a year left" in steps.line()


def test_there_is_no_estimate_while_code_is_compiled(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    steps = progress.Steps(5, None)
    now[0] = 140.0
    steps.observe(True)
    assert steps.line() == "0 of 5 done in 0:40, compiling; Ctrl-C stops"
    steps.update("fcfs, seed 0")
    now[0] = 150.0
    steps.observe(False)
    assert steps.line() == "fcfs, seed 0: 1 of 5 done in 0:50"
    now[0] = 155.0
    steps.update("fcfs, seed 1")  # 5 seconds a run, not 27
    assert steps.line() == "fcfs, seed 1: 2 of 5 done in 0:55, about 0:15 left; Ctrl-C stops"


@pytest.mark.parametrize("terminal", [True, False])
def test_long_runs_show_progress(monkeypatch, capsys, terminal):
    monkeypatch.setattr(progress, "PATIENCE", 0.3)
    monkeypatch.setattr(console, "err", Console(stderr=True, force_terminal=terminal, width=100))
    with progress.run_progress(3, True) as advance:
        advance("[one]")
        _subscription.get().listener(0.25)
        said, end = "", time.monotonic() + 20
        while "[one]" not in said and time.monotonic() < end:
            time.sleep(0.1)
            said += capsys.readouterr().err
    said += capsys.readouterr().err
    assert bool(re.search(r"1\.25 of 3 done in 0:\d\d", said)) is not terminal
    assert "[one]" in said
    assert _subscription.get() is None


def test_disabled_progress_shows_nothing(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with progress.run_progress(3, False) as advance:
        advance("one")
    assert capsys.readouterr().err == ""


def test_infinite_numbers_have_a_sign():
    assert [number(value) for value in (float("inf"), -float("inf"), float("nan"))] == ["∞", "-∞", "–"]
