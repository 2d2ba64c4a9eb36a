"""Verdicts on runs: the backlog by hand, reasons, and requests that cannot be judged."""

from types import SimpleNamespace

import numpy as np
import pytest

from kvgym.errors import ConfigError
from kvgym.experiments.marks import MOST_GROWTH, backlog_growth
from kvgym.experiments.runs import Played, RunRecord
from kvgym.studies.capacity.targets import parse_targets
from kvgym.studies.capacity.verdict import check_requests, judge
from kvgym.workloads import RequestTable


def growth(arrival, finish):
    requests = np.zeros(len(arrival), [("finish_time", "f8")])
    requests["finish_time"] = finish
    return backlog_growth(
        SimpleNamespace(table=SimpleNamespace(arrival_time=np.asarray(arrival, float)), requests=requests)
    )


def played(error="", once=True, growth=0.0, **metrics):
    record = RunRecord("fcfs", 0, metrics, error, once, 0.1)
    return Played(record, 100, measured={"backlog_growth": growth, "backlog_allowed": 0.02})


def test_an_overload_by_half_makes_half_pile_up():
    arrival = np.arange(40.0)
    overloaded = growth(arrival, 2 * (arrival + 1))
    # Arrival i finds ⌈i/2⌉: 7.5 on average in the second quarter, 17.5 in the last, 20 arrivals apart.
    assert overloaded["backlog_growth"] == 0.5
    assert overloaded["backlog_allowed"] == pytest.approx(MOST_GROWTH + 2 * np.sqrt(8.5) / 20)


def test_a_system_that_keeps_up_has_no_growth():
    arrival = np.arange(40.0)
    assert growth(arrival, arrival + 5)["backlog_growth"] == 0
    # Unfinished requests stay in the system.
    finish = np.where(np.arange(40) < 20, arrival + 0.5, np.nan)
    assert growth(arrival, finish)["backlog_growth"] == pytest.approx(14.5 / 20)


def test_verdicts_have_reasons():
    targets = parse_targets("ttft_p99<1,tbt_p99<0.2")
    good = {"ttft_p99": 0.9, "tbt_p99": 0.1}
    assert judge(played(**good), targets).held
    assert judge(played(growth=0.02, **good), targets).held
    assert judge(played(growth=0.021, **good), targets).reasons == ("backlog",)
    assert judge(played(growth=9, **good), targets, sustained=False).held
    assert judge(played(ttft_p99=1.0, tbt_p99=0.3), targets).reasons == ("ttft_p99<1", "tbt_p99<0.2")
    assert judge(played(error="livelock", **good), targets).reasons == ("livelock",)
    assert judge(played(once=False, **good), targets).reasons == ("unfinished",)
    assert judge(played(), ()).held


def table(n, **columns):
    ones = np.ones(n, np.int64)
    return RequestTable.from_columns(
        arrival_time=np.arange(float(n)), prompt_len=ones, output_len=ones, **columns
    )


def test_requests_that_cannot_be_judged_are_refused():
    with pytest.raises(ConfigError, match="19 requests are too few"):
        check_requests(table(19), ())
    with pytest.raises(ConfigError, match="their own SLOs, and these have none; set them"):
        check_requests(table(100), parse_targets("goodput>=0.9"))
    assert check_requests(table(100, ttft_slo=np.ones(100)), parse_targets("goodput>=0.9")) == ()


def test_thin_percentiles_are_noted():
    targets = parse_targets("ttft_p99<1,tbt_p99<1,e2e_latency_mean<9,queueing_delay_p90<3")
    (note,) = check_requests(table(500), targets)
    assert note.startswith("ttft_p99<1: depends on the 5 slowest of 500 requests")
    assert not check_requests(table(1000), targets)
