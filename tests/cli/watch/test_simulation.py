"""Live runs: the same run as any other, at the pace of a clock."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import kvgym
from kvgym.policies.runner import simulate


def wait_for(source, condition):
    """Wait until the state meets a condition, and return it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        state = source.state()
        if condition(state):
            return state
        source.state(version=state["version"], timeout=1)
    raise AssertionError(state)


def tiles(state):
    return dict(state["tiles"])


def test_as_fast_as_it_can_it_is_the_same_run(live_run):
    source = live_run()
    source.run()
    state = source.state()
    system, table, policy, _, seed = source._run
    expected = simulate(system, table, policy, seed=seed)
    assert state["status"] == "finished"
    assert tiles(state)["Finished"] == "20 of 20"
    latency = (expected.requests["finish_time"] - table.arrival_time).mean()
    assert tiles(state)["Mean latency"] == f"{latency:.2f} s"
    assert tiles(state)["Evictions"] == str(expected.worker["total_evicted"].sum())
    end, used, waiting, running, *_ = state["rows"][-1]
    assert end == expected.worker["clock"][0]
    assert (used, waiting, running) == (0, 0, 0)
    assert state["rows"][-1][-1] == pytest.approx(latency)
    assert all(len(row) == 1 + sum(len(c["series"]) for c in state["charts"]) for row in state["rows"])


def test_speed_pause_and_end(live_run):
    """In slotted time a batch takes a second; at 20 per second, 8 take 0.4 s."""
    source = live_run(speed=20.0)
    thread = threading.Thread(target=source.run)
    thread.start()
    wait_for(source, lambda state: state["status"] == "running")
    began, first = time.monotonic(), source.state()["rows"][-1][0]
    state = wait_for(source, lambda state: state["rows"] and state["rows"][-1][0] >= first + 8)
    assert time.monotonic() - began >= 0.25
    source.control({"paused": True})
    paused = wait_for(source, lambda state: state["status"] == "paused")["rows"][-1]
    time.sleep(0.3)
    assert source.state()["rows"][-1] == paused
    source.control({"paused": False, "speed": 1e6})
    state = wait_for(source, lambda state: state["status"] == "finished")
    assert state["rows"][-1][0] > paused[0]
    thread.join(10)
    slow = live_run(speed=0.01)
    thread = threading.Thread(target=slow.run)
    thread.start()
    wait_for(slow, lambda state: state["status"] == "running")
    slow.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_cluster_has_a_line_per_worker(live_run):
    source = live_run(workers=3)
    source.run()
    state = source.state()
    assert [chart["title"] for chart in state["charts"]] == [
        "KV memory",
        "Waiting",
        "Running",
        "Last batch",
        "Mean latency so far",
    ]
    assert state["charts"][0]["series"] == ("worker 0", "worker 1", "worker 2")
    assert len(state["rows"][-1]) == 1 + 3 * 3 + 2 + 2
    assert tiles(state)["Finished"] == "20 of 20"
    assert np.isfinite(state["rows"][-1]).all()


class Wrong(kvgym.Policy):
    """A policy with an impossible decision."""

    info = kvgym.PolicyInfo(name="wrong", summary="admits a request that does not exist")

    def schedule(self, view):
        return kvgym.Decision(admit=[10**6])


def test_a_failed_run_is_shown(live_run):
    source = live_run()
    source._run = (*source._run[:2], Wrong(), None, 0)
    source.run()
    state = source.state()
    assert state["status"] == "failed"
    assert "admits request 1000000" in state["message"]


@pytest.mark.parametrize("speed", [10.0, 1e6])
def test_rows_have_increasing_times(live_run, speed):
    source = live_run(speed=speed)
    thread = threading.Thread(target=source.run)
    thread.start()
    if speed < 1e6:
        wait_for(source, lambda state: len(state["rows"]) >= 3)
        source.control({"speed": 1e6})
    thread.join(60)
    times = [row[0] for row in source.state()["rows"]]
    assert times == sorted(times)
