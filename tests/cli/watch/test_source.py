"""States of sources: rows that a page lacks, waiting for changes, control."""

from __future__ import annotations

import threading
import time

import pytest

from kvgym.cli.watch.source import MOST_ROWS, Chart, Source
from kvgym.errors import ConfigError


class Idle(Source):
    """A source that a test changes."""

    def follow(self):
        """Do nothing."""


def idle(speed=2.0):
    return Idle("title", ["about"], [Chart("a", "%", ("x",))], "s", speed)


def test_only_new_rows_are_sent():
    source = idle()
    source.update([[0.0, 1.0], [1.0, 2.0]], status="running")
    state = source.state()
    assert (state["first"], state["rows"], state["status"]) == (0, [[0.0, 1.0], [1.0, 2.0]], "running")
    source.update([[2.0, 3.0]])
    known = {"version": state["version"], "epoch": state["epoch"], "rows": 2}
    state = source.state(**known)
    assert (state["first"], state["rows"]) == (2, [[2.0, 3.0]])
    source.update([[5.0, 5.0]], replace=True)
    state = source.state(**known)
    assert (state["first"], state["rows"]) == (0, [[5.0, 5.0]])


def test_a_long_history_is_thinned():
    source = idle()
    for k in range(MOST_ROWS + 1):
        source.update([[float(k), 0.0]])
    rows = source.state()["rows"]
    assert len(rows) == MOST_ROWS // 2 + 1
    assert rows[:3] == [[0.0, 0.0], [2.0, 0.0], [4.0, 0.0]]
    assert rows[-1] == [float(MOST_ROWS), 0.0]


def test_a_state_waits_for_a_change():
    source = idle()
    version = source.state()["version"]
    began = time.monotonic()
    assert source.state(version=version, timeout=0.05)["version"] == version
    assert time.monotonic() - began >= 0.05
    threading.Timer(0.05, source.update, kwargs={"status": "later"}).start()
    assert source.state(version=version, timeout=30)["status"] == "later"
    threading.Timer(0.05, source.stop).start()
    source.state(version=version + 1, timeout=30)  # does not wait for longer than the page exists
    assert source.stopped


def test_control():
    source = idle()
    source.control({"speed": 5})
    source.control({"paused": True})
    assert (source.state()["speed"], source.state()["paused"]) == (5.0, True)
    for wrong in (
        {},
        [],
        None,
        {"speed": 0},
        {"speed": True},
        {"speed": 1e9},
        {"speed": "1"},
        {"paused": 1},
        {"x": 1},
    ):
        with pytest.raises(ConfigError, match="expected"):
            source.control(wrong)
    with pytest.raises(ConfigError, match="has no speed"):
        idle(None).control({"paused": True})
