import math

import numpy as np
import pytest

import kvgym
from kvgym.batch_time import UnitBatchTime
from kvgym.simulator.system import System
from kvgym.workloads import RequestTable


def run(**columns):
    table = RequestTable.from_columns(**columns)
    return kvgym.compute_metrics(kvgym.simulate(System(4, UnitBatchTime()), table, "fcfs"))


def test_metrics_of_clients_by_hand():
    # One at a time: client 0 gets iterations 1-3 and 4-6, client 1 then 7-9. Requests 2 and 3 wait together until 3.
    m = run(
        arrival_time=[0, 0, 0], prompt_len=[2, 2, 2], output_len=[2, 2, 2], client_id=[0, 0, 1],
    )  # fmt: skip
    ends = [m["e2e_latency_max"] / 3 * k for k in (1, 2, 3)]
    rates = np.array([4 / (ends[0] + ends[1]), 2 / ends[2]])
    assert m["client_fairness"] == pytest.approx(rates.sum() ** 2 / (2 * (rates**2).sum()))
    assert m["worst_client_ttft"] == m["ttft_max"]
    # Client 0 waits until the start of its second request; both wait until then, and it has received 2 + 2 * 2.
    assert m["service_difference"] == pytest.approx(6.0)


def test_clients_that_never_wait_together_have_no_difference():
    m = run(arrival_time=[0, 100], prompt_len=[2, 2], output_len=[2, 2], client_id=[0, 1])
    assert math.isnan(m["service_difference"])
    assert m["client_fairness"] == pytest.approx(1.0)


def test_without_clients_and_deadlines_there_are_no_such_metrics():
    m = run(arrival_time=[0], prompt_len=[2], output_len=[2])
    for name in (
        "client_fairness",
        "service_difference",
        "worst_client_ttft",
        "e2e_attainment",
        "ttft_attainment",
    ):
        assert math.isnan(m[name])


def test_attainment_by_kind_of_target():
    columns = {"arrival_time": [0, 0, 0], "prompt_len": [2, 2, 2], "output_len": [2, 2, 2]}
    free = run(**columns)
    third = free["e2e_latency_max"] / 3
    m = run(**columns, e2e_slo=[third, third, np.inf], ttft_slo=[np.inf, np.inf, 0.5])
    assert m["e2e_attainment"] == 0.5
    assert m["ttft_attainment"] == 0.0
    assert math.isnan(m["tbt_attainment"])
    assert m["slo_attainment"] == pytest.approx(1 / 3)
