"""Following a run: the events that an observer gets, and no effect on the run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.amount import number
from helpers.runs.clusters import assert_equal
from helpers.runs.random_runs import RandomPolicy, rules_of, systems, tables
from helpers.selection import EACH_FAMILY
from kvgym import make_batch_time, simulate
from kvgym.errors import InvalidDecisionError, LivelockError
from kvgym.policies.contract.cases import requests, with_common_prefixes
from kvgym.policies.policy import Decision, Policy, PolicyInfo
from kvgym.simulator.observer import Observer
from kvgym.simulator.system import System, Worker
from kvgym.simulator.tables import FUTURE
from kvgym.simulator.view import simulation_of
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.forecasts import Forecasts
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

UNIT = make_batch_time({"kind": "unit"})


class Notes(Observer):
    """Records its events."""

    def __init__(self):
        self.heard, self.batches = [], []

    def joined(self, time, worker, request_id):
        self.heard.append(("joined", time, worker, request_id))

    def decided(self, time, worker, admitted, evicted):
        self.heard.append(("decided", time, worker, admitted.tolist(), evicted.tolist()))

    def ran(self, batch):
        self.batches.append(batch)
        did = [
            (i, p, d)
            for i, p, d in zip(
                batch.request_id.tolist(),
                batch.prefill_tokens.tolist(),
                batch.decode_tokens.tolist(),
                strict=True,
            )
        ]
        self.heard.append(("ran", float(batch.row["end_time"]), int(batch.row["worker"]), did))

    def waited(self, time, worker, active, kv_tokens):
        self.heard.append(("waited", time, worker, active.tolist(), kv_tokens))

    def ended(self, time):
        self.heard.append(("ended", time))


def test_two_requests_by_hand():
    # M = 9, see test_metrics: both start at 0 and hold 8; the next round needs 10, so request 1 is evicted at 1.
    table = RequestTable([0, 0.5], [3, 3], [3, 2])
    notes = Notes()
    simulate(System(kv_capacity=9, batch_time=UNIT), table, "fcfs", observer=notes)
    assert notes.heard == [
        ("joined", 0, 0, 0),
        ("decided", 0, 0, [0], []),
        ("joined", 0.5, 0, 1),
        ("ran", 1, 0, [(0, 3, 0)]),
        ("decided", 1, 0, [1], []),  # 5 + 4 tokens
        ("ran", 2, 0, [(0, 0, 1), (1, 3, 0)]),
        ("decided", 2, 0, [], [1]),  # 6 + 5 do not fit
        ("ran", 3, 0, [(0, 0, 1)]),
        ("decided", 3, 0, [1], []),
        ("ran", 4, 0, [(1, 3, 0)]),
        ("decided", 4, 0, [], []),
        ("ran", 5, 0, [(1, 0, 1)]),
        ("ended", 5),
    ]
    assert [batch.finished.tolist() for batch in notes.batches] == [[], [], [0], [], [1]]
    assert [batch.kv_tokens for batch in notes.batches] == [4, 9, 0, 4, 0]


class Patient(Policy):
    """Admits all and waits a moment, then pauses the first request for one batch, then runs all."""

    info = PolicyInfo(name="patient", summary="")

    def reset(self, system):
        self.rounds = iter([Decision(admit=[0, 1], wait_until=2.5), Decision(tokens={0: 0, 1: 2})])

    def schedule(self, view):
        return next(self.rounds, Decision())


def test_waits_pauses_and_chunks_by_hand():
    table = RequestTable([0, 0, 9], [2, 3, 4], [1, 1, 1])
    notes = Notes()
    with pytest.raises(LivelockError):  # request 2 is never admitted
        simulate(System(kv_capacity=20, batch_time=UNIT, stall_limit=3), table, Patient(), observer=notes)
    assert notes.heard[:9] == [
        ("joined", 0, 0, 0),
        ("joined", 0, 0, 1),
        ("decided", 0, 0, [0, 1], []),
        ("waited", 0, 0, [0, 1], 0),
        ("decided", 2.5, 0, [], []),
        ("ran", 3.5, 0, [(0, 0, 0), (1, 2, 0)]),
        ("decided", 3.5, 0, [], []),
        ("ran", 4.5, 0, [(0, 2, 0), (1, 1, 0)]),
        ("joined", 9, 0, 2),
    ]
    assert notes.heard[-1][0] == "ended"


def test_a_refused_decision_is_not_reported():
    class Wrong(Policy):
        info = PolicyInfo(name="wrong", summary="")

        def schedule(self, view):
            return Decision(admit=[0, 0])

    table = RequestTable([1], [2], [1])
    notes = Notes()
    with pytest.raises(InvalidDecisionError) as caught:
        simulate(System(kv_capacity=20, batch_time=UNIT), table, Wrong(), observer=notes)
    assert notes.heard == [("joined", 1, 0, 0), ("ended", 1)]
    assert caught.value.result.log is None


def test_a_transfer_by_hand():
    workers = [Worker(20, UNIT, "prefill"), Worker(20, UNIT, "decode")]
    system = System.cluster(workers, transfer_latency=0.25, transfer_time=0.5)
    table = RequestTable([0], [3], [3])
    notes = Notes()
    simulate(system, table, "fcfs", observer=notes)
    # The prefill writes 3 + 1 tokens; their transfer takes 0.25 + 4 · 0.5 s.
    assert notes.heard == [
        ("joined", 0, 0, 0),
        ("decided", 0, 0, [0], []),
        ("ran", 1, 0, [(0, 3, 0)]),
        ("joined", 3.25, 1, 0),
        ("decided", 3.25, 1, [0], []),
        ("ran", 4.25, 1, [(0, 0, 1)]),
        ("decided", 4.25, 1, [], []),
        ("ran", 5.25, 1, [(0, 0, 1)]),
        ("ended", 5.25),
    ]
    (transfer,) = notes.batches[0].transfers
    assert (transfer.request_id, transfer.worker, transfer.ready_time) == (0, 1, 3.25)


def test_the_end_of_a_transfer_that_comes_too_late():
    workers = [Worker(20, UNIT, "prefill"), Worker(20, UNIT, "decode")]
    system = System.cluster(workers, transfer_latency=9.0, horizon=5.0)
    table = RequestTable([0, 4.5], [3, 3], [3, 3])
    notes = Notes()
    simulate(system, table, "fcfs", observer=notes)
    ready = [t.ready_time for batch in notes.batches for t in batch.transfers]
    assert ready[0] == 10
    assert math.isnan(ready[1])  # its prefill ends after the horizon: no worker takes it
    assert notes.batches[1].transfers[0].worker is None
    assert notes.heard[-1] == ("ended", 5.5)


@pytest.mark.parametrize("rule", ["computed", "scheduled"])
def test_what_a_prefix_cache_gives_is_not_prefilled(rule):
    # Units of 2. Request 0 fills two, and request 1 finds both; request 2, with the prompt of request 0, computes the
    # second one, as one token must be computed.
    hashes = BlockHashes.from_rows([[0, 1], [0, 1, 2], [0, 1]], [4, 5, 4], 2)
    table = RequestTable([0, 1.5, 9], [4, 5, 4], [1, 1, 1], hashes=hashes)
    system = System(kv_capacity=12, batch_time=UNIT, block_size=2, prefix_cache=rule)
    notes = Notes()
    result = simulate(system, table, "fcfs", observer=notes, log=True)
    assert [h[3] for h in notes.heard if h[0] == "ran"] == [[(0, 4, 0)], [(1, 1, 0)], [(2, 2, 0)]]
    check(notes.heard, notes.batches, result, table)


def check(heard, batches, result, table):
    """Check that reported events are in order and add up to the records and the log."""
    times = [h[1] for h in heard if h[0] != "ran"]
    assert times == sorted(times)
    assert [batch.row for batch in batches] == list(result.log)
    evicted, admitted = np.zeros(len(table), int), np.zeros(len(table), int)
    for what in heard:
        if what[0] == "decided":
            np.add.at(admitted, what[3], 1)
            np.add.at(evicted, what[4], 1)
    assert evicted.tolist() == result.requests["num_evictions"].tolist()
    assert admitted.tolist() == result.requests["num_admissions"].tolist()
    joined = [h for h in heard if h[0] == "joined"]
    assert sorted({h[3] for h in joined}) == np.flatnonzero(result.requests["status"] != FUTURE).tolist()
    for batch in batches:
        row = batch.row
        assert (batch.prefill_tokens >= 0).all()
        assert set(batch.decode_tokens.tolist()) <= {0, 1}
        assert batch.prefill_tokens.sum() == row["prefill_tokens"]
        assert (batch.prefill_tokens > 0).sum() == row["num_prefills"]
        assert batch.decode_tokens.sum() == row["num_decodes"]
        assert len(batch.request_id) == row["num_active"]
        assert len(batch.finished) == row["num_finished"]
        assert batch.num_active == row["num_active"] - row["num_finished"] - len(batch.transfers)
        done = result.requests["finish_time"][batch.finished]
        assert (done == row["end_time"]).all()


@settings(deadline=None, max_examples=number(60, 20))
@given(tables(), systems(), st.integers(0, 2**16), st.sampled_from(["random", "sarathi", "vllm_v1", "fcfs"]))
def test_reported_events_add_up(table, system, seed, name):
    policy = RandomPolicy(seed, table) if name == "random" else name
    if name == "random":
        system = replace(system, stall_limit=5000)
    notes = Notes()
    try:
        plain = simulate(system, table, policy, seed=seed, log=True)
    except LivelockError as error:
        with pytest.raises(LivelockError) as caught:
            simulate(system, table, policy, seed=seed, log=True, observer=notes)
        plain, watched = error.result, caught.value.result
    else:
        watched = simulate(system, table, policy, seed=seed, log=True, observer=notes)
    assert_equal(plain, watched)
    check(notes.heard, notes.batches, plain, table)


def test_reported_events_with_a_prefix_cache_and_evictions_add_up():
    table = with_common_prefixes(requests(3, 40), 4, 1)
    for rule, progress in (("computed", "recompute"), ("computed", "kept"), ("scheduled", "recompute")):
        system = System(60, UNIT, block_size=2, prefix_cache=rule, progress_on_evict=progress)
        notes = Notes()
        result = simulate(system, table, "fcfs", log=True, observer=notes)
        assert result.worker["total_hit_resumed"].sum() > 0 or progress == "kept"
        check(notes.heard, notes.batches, result, table)


@settings(deadline=None, max_examples=number(40, 20))
@given(tables(), systems(), st.integers(0, 2**16), st.sampled_from(["mixed", "apart"]), st.booleans())
def test_reported_events_of_a_cluster_add_up(table, system, seed, roles, compiled):
    kinds = ["prefill", "decode", "decode"] if roles == "apart" else ["mixed"] * 2
    own = rules_of(system)
    workers = [Worker(system.kv_capacity, system.batch_time, kind) for kind in kinds]
    cluster = System.cluster(
        workers, **{**own, "transfer_latency": 0.2, "transfer_time": 0.01, "horizon": 25.0}
    )
    policy = "fcfs" if compiled else RandomPolicy(seed, table)
    notes = Notes()
    try:
        plain = simulate(cluster, table, policy, seed=seed, log=True)
    except LivelockError:
        return
    assert_equal(plain, simulate(cluster, table, policy, seed=seed, log=True, observer=notes))
    check(notes.heard, notes.batches, plain, table)


@EACH_FAMILY
def test_observers_do_not_affect_policies(name):
    rng = np.random.default_rng(1)
    n = 25
    output = rng.integers(1, 9, n)
    table = RequestTable.from_columns(
        arrival_time=np.cumsum(rng.exponential(1.5, n)),
        prompt_len=rng.integers(1, 11, n),
        output_len=output,
        predicted_output_len=output,
        predicted_low=output,
        predicted_high=output + 1,
        class_id=rng.integers(0, 2, n),
        ttft_slo=np.full(n, 9.0),
        tbt_slo=np.full(n, 3.0),
        client_id=np.arange(n) % 3,
        forecasts=Forecasts.from_rows(
            [[k] * 10 for k in output.tolist()], renewed=[[k] * 9 for k in output.tolist()], every=1
        ),
        classes=(ClassStatistics("short", 0.2, 5.0, 3.0), ClassStatistics("long", 0.2, 5.0, 6.0)),
    )
    system = System(kv_capacity=90, batch_time=UNIT, stall_limit=300)
    try:
        plain = simulate(system, table, name, log=True)
    except LivelockError:
        return
    assert_equal(plain, simulate(system, table, name, log=True, observer=Notes()))


def test_batches_that_an_error_cuts_short():
    class Stuck(Policy):
        """Runs chunks on worker 0, and makes an invalid decision on worker 1 meanwhile."""

        info = PolicyInfo(name="stuck", summary="")

        def schedule(self, view):
            if simulation_of(view).current == 1:
                return Decision(evict=[0])
            return Decision(admit=view.waiting.request_id.tolist(), tokens={0: 2})

    table = RequestTable([0, 0.5], [3, 3], [2, 2])
    notes = Notes()
    with pytest.raises(InvalidDecisionError):
        simulate(System(kv_capacity=30, batch_time=UNIT).replicate(2), table, Stuck(), observer=notes)
    (batch,) = notes.batches
    assert batch.cut
    assert (batch.row["start_time"], batch.row["end_time"], batch.row["prefill_tokens"]) == (0, 0.5, 2)
    assert batch.prefill_tokens.tolist() == [2]
    assert notes.heard[-1] == ("ended", 0.5)


class Writing(Observer):
    """Writes into what it gets."""

    def __init__(self):
        self.refused = 0

    def began(self, requests):
        self.write(requests["output_len"])
        self.write(requests)

    def ran(self, batch):
        self.write(batch.row)

    def write(self, table):
        try:
            if table.dtype.names:
                table["end_time" if "end_time" in table.dtype.names else "prompt_len"] = 1e9
            else:
                table[:] = 1
        except ValueError:
            self.refused += 1


@pytest.mark.parametrize("workers", [1, 2])
def test_observers_cannot_change_the_run(workers):
    system = System(200, UNIT).replicate(workers)
    table = RequestTable([0, 1], [3, 4], [2, 5])
    plain = simulate(system, table, "fcfs", log=True)
    observer = Writing()
    observed = simulate(system, table, "fcfs", log=True, observer=observer)
    assert observed.log.tobytes() == plain.log.tobytes()
    assert observer.refused == 2 + len(plain.log)
