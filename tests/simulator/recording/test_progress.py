"""Runs in slices equal runs in one piece bit for bit, and listeners get their progress."""

import numpy as np
import pytest

from kvgym.batch_time.models.unit import UnitBatchTime
from kvgym.policies.runner import simulate
from kvgym.simulator.recording import progress as slices
from kvgym.simulator.system import System
from kvgym.simulator.tables import BUDGET, DONE
from kvgym.workloads.table import RequestTable


def table(n=60):
    rng = np.random.default_rng(1)
    columns = {"prompt_len": rng.integers(1, 6, n), "output_len": rng.integers(1, 9, n)}
    return RequestTable.from_columns(arrival_time=np.sort(rng.uniform(0, 40, n)), **columns)


@pytest.fixture
def single_decisions(monkeypatch):
    """Make every slice one decision, and call listeners after each."""

    class AlwaysDue(slices._Subscription):
        @property
        def last(self):
            return -1e9

        @last.setter
        def last(self, value):
            pass

    monkeypatch.setattr(slices, "_Subscription", AlwaysDue)
    monkeypatch.setattr(slices, "SECONDS", 1e-12)


@pytest.mark.parametrize("system", [System(60, UnitBatchTime()), System(60, UnitBatchTime()).replicate(3)])
def test_slices_change_no_bit(system, single_decisions, monkeypatch):
    requests = table()
    whole = simulate(system, requests, "fcfs", log=True)
    monkeypatch.setattr(slices, "FIRST", 1)
    monkeypatch.setattr(slices, "max", lambda *values: 1 if values[0] == 64 else max(*values), raising=False)
    shares = []
    with slices.listening(shares.append):
        cut = simulate(system, requests, "fcfs", log=True)
    assert len(shares) > 40
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.1
    assert 0.9 < shares[-1] <= 1
    for name in ("requests", "worker", "log", "gap_counts", "gap_sums"):
        assert getattr(cut, name).tobytes() == getattr(whole, name).tobytes()


class Clock:
    """A simulation without requests, and with decisions of a given duration."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds, self.asked, self.requests = 0.0, seconds, [], []
        monkeypatch.setattr(slices.time, "perf_counter", lambda: self.now)

    def advance(self, most):
        self.asked.append(most)
        self.now += most * self.seconds
        return BUDGET if len(self.asked) < 6 else DONE


def test_slices_grow_until_they_take_a_tenth_of_a_second(monkeypatch):
    clock = Clock(monkeypatch, 2**-20)
    assert slices.in_slices(clock.advance, None, clock) == DONE
    assert clock.asked[0] == slices.FIRST
    assert clock.asked[1:] == pytest.approx([slices.SECONDS * 2**20] * 5, rel=0.01)


def test_slow_decisions_have_short_slices(monkeypatch):
    clock = Clock(monkeypatch, 0.05)
    slices.in_slices(clock.advance, None, clock)
    assert set(clock.asked[1:]) <= {1, 2}


def test_a_budget_is_kept_and_none_is_one_call(monkeypatch):
    clock = Clock(monkeypatch, 0.05)
    assert slices.in_slices(clock.advance, slices.FIRST + 3, clock) == BUDGET
    assert sum(clock.asked) == slices.FIRST + 3
    clock.asked.clear()
    assert slices.in_slices(clock.advance, 0, clock) == BUDGET
    assert clock.asked == [0]
