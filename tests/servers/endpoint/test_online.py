"""Runs with requests that are not known beforehand have the times of those that know them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError, WorkloadError
from kvgym.policies.policy import Policy, PolicyInfo, make_policy
from kvgym.policies.runner import simulate
from kvgym.servers.endpoint.online import OnlineRun
from kvgym.simulator.decision import Decision
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

SYSTEM = System(
    kv_capacity=400,
    batch_time=AffineBatchTime(constant=0.01, per_prefill_token=1e-4, per_decode_token=1e-3),
    progress_on_evict="recompute",
    requeue="front",
)


def requests(count=40, seed=0):
    rng = np.random.default_rng(seed)
    return RequestTable.from_columns(
        arrival_time=np.cumsum(rng.exponential(0.05, count)),
        prompt_len=rng.integers(1, 60, count),
        output_len=rng.integers(1, 60, count),
    )


def play(run, table, step):
    """Enter the requests as they arrive and advance in steps; return first and last token times and the counts."""
    times = {i: [] for i in range(len(table))}
    finished = {}
    left = list(zip(table.arrival_time, table.prompt_len, table.output_len, strict=True))
    now = 0.0
    while len(finished) < len(table):
        now = min(now + step, left[0][0]) if left else now + step
        for tokens in run.advance(now):
            for i in tokens.request_id.tolist():
                times[i].append(tokens.time)
            finished.update(dict.fromkeys(tokens.finished.tolist(), tokens.time))
        if left and left[0][0] == now:
            at, prompt, output = left.pop(0)
            run.add(at, int(prompt), int(output))
    return times, finished


@pytest.mark.parametrize(("name", "step"), [("vllm_v1", 0.003), ("vllm_v1", 1.0), ("mc_sf", 0.02)])
def test_times_are_those_of_a_run_that_knows_everything(name, step):
    table = requests()
    run = OnlineRun(SYSTEM, make_policy(name), most=50)
    times, finished = play(run, table, step)
    known = table.replace(predicted_output_len=table.output_len) if name == "mc_sf" else table
    expected = simulate(SYSTEM, known, name)
    assert [times[i][0] for i in range(len(table))] == expected.requests["first_token_time"].tolist()
    assert [finished[i] for i in range(len(table))] == expected.requests["finish_time"].tolist()
    assert [len(times[i]) for i in range(len(table))] == table.output_len.tolist()
    assert run.worker["total_evicted"] == expected.worker[0]["total_evicted"]
    assert (run.worker["total_evicted"] > 0) == (name == "vllm_v1")
    assert run.due == math.inf


def test_a_request_that_the_engines_api_still_has_is_due():
    """Entered at 1 s, it reaches the queue 8 ms later; the clock must come back then."""

    class Slow(AffineBatchTime):
        api_time = 0.008

    run = OnlineRun(replace(SYSTEM, batch_time=Slow(constant=0.01)), make_policy("vllm_v1"), most=5)
    assert run.advance(1.0) == []
    run.add(1.0, 10, 1)
    assert run.advance(1.001) == []
    assert run.due == 1.008
    (tokens,) = run.advance(1.009)
    assert tokens.time == pytest.approx(1.018)
    assert run.due == math.inf


class Patient(Policy):
    """Admits everything, half a second after the first arrival."""

    info = PolicyInfo(name="patient", summary="waits")

    def schedule(self, view):
        waiting = view.waiting
        if view.num_active == 0 and view.clock < waiting.arrival_time.min() + 0.5:
            return Decision(wait_until=float(waiting.arrival_time.min() + 0.5))
        return Decision(admit=waiting.request_id.tolist())


def test_a_policy_in_python_that_waits():
    run = OnlineRun(SYSTEM, Patient(), most=5)
    assert run.advance(1.0) == []
    assert run.due == math.inf
    run.add(1.0, 10, 2)
    assert run.advance(1.2) == []
    assert run.due == 1.5
    run.add(1.3, 10, 1)
    assert run.advance(1.4) == []
    assert run.due == 1.5
    first, second = run.advance(1.52)
    assert first.time == pytest.approx(1.5 + 0.01 + 20e-4)
    assert first.request_id.tolist() == [0, 1]
    assert first.finished.tolist() == [1]
    assert second.time == pytest.approx(first.time + 0.011)
    assert second.finished.tolist() == [0]


def test_requests_that_cannot_be_served():
    run = OnlineRun(SYSTEM, make_policy("fcfs"), most=1)
    with pytest.raises(WorkloadError, match="can never be served"):
        run.add(0.0, 300, 101)
    run.add(0.0, 300, 100)
    with pytest.raises(ConfigError, match="1 requests have been served"):
        run.add(0.1, 1, 1)
    with pytest.raises(ConfigError, match="2 workers"):
        OnlineRun(SYSTEM.replicate(2), make_policy("fcfs"), most=1)
    with pytest.raises(ConfigError, match="sessions = closed: the caller of this run decides"):
        OnlineRun(replace(SYSTEM, sessions="closed"), make_policy("fcfs"), most=1)
