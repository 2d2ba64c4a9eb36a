"""The progress lines of a training run."""

import pytest

from kvgym.agents.runs import progress
from kvgym.agents.runs.progress import FILE, TrainingLog, duration


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_a_minute_and_at_evaluations(tmp_path, clock):
    said, done = [], []
    log = TrainingLog(tmp_path / "run", 1000, "steps", "e2e_latency_mean", done.append, said.append)
    log.evaluated(0, 15.849)
    for steps, seconds in ((0, 1.0), (100, 31.0), (200, 61.0), (300, 91.0), (400, 121.0)):
        clock[0] = seconds
        log.passed(steps)
    log.evaluated(500, 13.9)
    assert done == [0, 100, 200, 300, 400]
    assert said == [
        "0 of 1,000 steps, 0:00, e2e_latency_mean 15.849",
        "200 of 1,000 steps, 1:01, e2e_latency_mean 15.849, 4:04 left",
        "400 of 1,000 steps, 2:01, e2e_latency_mean 15.849, 3:02 left",
        "500 of 1,000 steps, 2:01, e2e_latency_mean 13.9, 2:01 left",
    ]
    lines = (tmp_path / "run" / FILE).read_text().splitlines()
    assert [line.partition("  ")[2] for line in lines] == said


def test_a_resumed_run_counts_its_own_time(tmp_path, clock):
    for start in (0, 600):
        said = []
        log = TrainingLog(tmp_path, 1000, "steps", "goodput", echo=said.append)
        log.passed(start)
        clock[0] += 60.0
        log.passed(start + 200)
    assert said == ["800 of 1,000 steps, 1:00, 1:00 left"]
    assert len((tmp_path / FILE).read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (59.6, "1:00"), (125, "2:05"), (3599.7, "1:00:00"), (86465, "24:01:05")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
