"""Traces of runs: by hand, against the format, and invariants of any run."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.amount import number
from helpers.runs.random_runs import RandomPolicy, rules_of, systems, tables
from kvgym import make_batch_time, simulate
from kvgym.errors import InvalidDecisionError, LivelockError
from kvgym.policies.policy import Decision, Policy, PolicyInfo
from kvgym.report.export.chrome_trace import COUNTERS, ChromeTrace
from kvgym.report.export.trace_file import TraceFile
from kvgym.simulator.system import System, Worker
from kvgym.simulator.view import simulation_of
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable
from oracles.chrome_trace_format import load

UNIT = make_batch_time({"kind": "unit"})
SECOND = 10**9
STATES = {"queued", "prefill", "decode", "paused", "evicted", "transfer"}


def trace(path, system, table, policy, **options):
    """Run and return the result and the events."""
    with TraceFile(path) as file:
        result = simulate(
            system, table, policy, log=True, observer=ChromeTrace(file, system, table), **options
        )
    return result, load(path)["traceEvents"]


def slices(events, worker=0, unit=SECOND):
    """By track name: (name, start, end) in the order of the file."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = defaultdict(list)
    for e in events:
        if e["ph"] == "X" and e["pid"] == worker + 1:
            name = names[e["pid"], e["tid"]]
            key = name if name == "batches" else e["tid"]
            found[key].append((e["name"], e["ts"] / unit, (e["ts"] + e["dur"]) / unit))
    return dict(found)


def counter(events, name, worker=0):
    """Values of a counter by nanosecond."""
    return {
        e["ts"]: e["args"][COUNTERS[name]]
        for e in events
        if e["ph"] == "C" and e["name"] == name and e["pid"] == worker + 1
    }


def value_at(values, moment):
    times = sorted(values)
    k = np.searchsorted(times, moment, side="right") - 1
    return values[times[k]] if k >= 0 else 0


def test_two_requests_by_hand(tmp_path):
    # As in tests/simulator/test_observer.py: request 1 comes at 0.5, is admitted at 1 and evicted from 2 to 3.
    table = RequestTable([0, 0.5], [3, 3], [3, 2])
    _, events = trace(tmp_path / "run.json", System(kv_capacity=9, batch_time=UNIT), table, "fcfs")
    assert slices(events) == {
        "batches": [
            ("prefill", 0, 1),
            ("prefill and decode", 1, 2),
            ("decode", 2, 3),
            ("prefill", 3, 4),
            ("decode", 4, 5),
        ],
        2: [("request 0", 0, 3), ("prefill", 0, 1), ("decode", 1, 3)],
        3: [
            ("request 1", 0.5, 5),
            ("queued", 0.5, 1),
            ("prefill", 1, 2),
            ("evicted", 2, 3),
            ("prefill", 3, 4),
            ("decode", 4, 5),
        ],
    }
    (mark,) = (e for e in events if e["ph"] == "i")
    assert (mark["name"], mark["ts"], mark["tid"], mark["args"]) == ("evicted", 2 * SECOND, 3, {"request": 1})
    about = {e["name"]: e["args"] for e in events if e["ph"] == "X" and e["name"].startswith("request")}
    assert about["request 1"] == {
        "request": 1,
        "prompt_len": 3,
        "output_len": 2,
        "evictions": 1,
        "finished": True,
    }
    tokens = [e["args"]["tokens"] for e in events if e["name"] == "decode" and "tokens" in e["args"]]
    assert tokens == [2, 1]
    seconds = {t / SECOND: v for t, v in counter(events, "KV").items()}
    assert seconds == {0: 4, 1: 9, 2: 6, 3: 4, 4: 5, 5: 0}
    assert {t / SECOND: v for t, v in counter(events, "waiting").items()} == {0: 0, 0.5: 1, 1: 0, 2: 1, 3: 0}
    assert {t / SECOND: v for t, v in counter(events, "active").items()} == {0: 1, 1: 2, 2: 1, 5: 0}
    batch = next(e for e in events if e["name"] == "prefill and decode")
    assert batch["args"] == {
        "prefill_tokens": 3, "num_prefills": 1, "num_decodes": 1, "num_active": 2, "kv_tokens": 9,
    }  # fmt: skip


def test_the_prefix_cache_has_a_counter(tmp_path):
    # A prompt of 4 in units of 2 runs from 0 to 1 and stays cached; the same prompt at 2 computes its last unit again.
    hashes = BlockHashes.from_rows([[0, 1], [0, 1]], [4, 4], 2)
    table = RequestTable([0, 2], [4, 4], [1, 1], hashes=hashes)
    system = System(kv_capacity=12, batch_time=UNIT, block_size=2, prefix_cache="computed")
    _, events = trace(tmp_path / "run.json", system, table, "fcfs")
    assert {t / SECOND: v for t, v in counter(events, "cached").items()} == {0: 0, 2: 2}
    assert [
        e["args"]["hit_tokens"] for e in events if e["name"] == "prefill" and "hit_tokens" in e["args"]
    ] == [0, 2]


def test_tracks_are_reused(tmp_path):
    table = RequestTable([0, 5, 5, 9], [3] * 4, [2] * 4)
    _, events = trace(tmp_path / "run.json", System(kv_capacity=50, batch_time=UNIT), table, "fcfs")
    outer = {k: [s[0] for s in v if s[0].startswith("request")] for k, v in slices(events).items()}
    assert outer == {"batches": [], 2: ["request 0", "request 1", "request 3"], 3: ["request 2"]}


class Patient(Policy):
    """Waits once with all requests admitted, then pauses the first for one batch, then runs all."""

    info = PolicyInfo(name="patient", summary="")

    def reset(self, system):
        self.rounds = iter([Decision(admit=[0, 1], wait_until=2.5), Decision(tokens={0: 0, 1: 2})])

    def schedule(self, view):
        return next(self.rounds, Decision())


def test_waiting_and_pausing_by_hand(tmp_path):
    table = RequestTable([0, 0], [2, 3], [1, 1])
    _, events = trace(tmp_path / "run.json.gz", System(kv_capacity=20, batch_time=UNIT), table, Patient())
    assert slices(events) == {
        "batches": [("wait", 0, 2.5), ("prefill", 2.5, 3.5), ("prefill", 3.5, 4.5)],
        2: [("request 0", 0, 4.5), ("paused", 0, 3.5), ("prefill", 3.5, 4.5)],
        3: [("request 1", 0, 4.5), ("paused", 0, 2.5), ("prefill", 2.5, 4.5)],
    }


def test_prefill_and_decode_workers_by_hand(tmp_path):
    workers = [Worker(20, UNIT, "prefill"), Worker(20, UNIT, "decode")]
    system = System.cluster(workers, transfer_latency=0.25, transfer_time=0.5)
    table = RequestTable([0], [3], [3])
    _, events = trace(tmp_path / "run.json", system, table, "fcfs")
    assert slices(events, 0) == {"batches": [("prefill", 0, 1)], 3: [("request 0", 0, 1), ("prefill", 0, 1)]}
    assert slices(events, 1) == {
        "batches": [("decode", 3.25, 4.25), ("decode", 4.25, 5.25)],
        3: [("request 0", 1, 5.25), ("transfer", 1, 3.25), ("decode", 3.25, 5.25)],
    }
    arrow = [
        (e["ph"], e["pid"], e["tid"], e["ts"] / SECOND)
        for e in events
        if e["name"] == "transfer" and e["ph"] in "sf"
    ]
    assert arrow == [("s", 1, 3, 0), ("f", 2, 3, 1)]
    titles = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert titles == ["worker 0 (prefill, 20 KV tokens)", "worker 1 (decode, 20 KV tokens)"]
    assert {t / SECOND: v for t, v in counter(events, "waiting", 1).items()} == {3.25: 0}


def test_a_horizon_cuts_slices(tmp_path):
    workers = [Worker(20, UNIT, "prefill"), Worker(20, UNIT, "decode")]
    system = System.cluster(workers, transfer_latency=9.0, horizon=5.0)
    table = RequestTable([0, 4.5, 6], [3] * 3, [3] * 3)
    _, events = trace(tmp_path / "run.json", system, table, "fcfs")
    assert slices(events, 1) == {3: [("request 0", 1, 5.5), ("transfer", 1, 5.5)]}
    assert slices(events, 0)[3][2:] == [("request 1", 4.5, 5.5), ("prefill", 4.5, 5.5)]
    finished = [e["args"]["finished"] for e in events if e["ph"] == "X" and e["name"].startswith("request")]
    assert finished == [False] * 3


def test_a_run_that_fails_leaves_what_happened(tmp_path):
    class Wrong(Policy):
        info = PolicyInfo(name="wrong", summary="")

        def schedule(self, view):
            if simulation_of(view).current == 1:
                return Decision(evict=[0])
            return Decision(admit=view.waiting.request_id.tolist(), tokens={0: 2})

    table = RequestTable([0, 0.5], [3, 3], [2, 2])
    system = System(kv_capacity=30, batch_time=UNIT).replicate(2)
    with pytest.raises(InvalidDecisionError):
        trace(tmp_path / "run.json", system, table, Wrong())
    events = load(tmp_path / "run.json")["traceEvents"]
    assert slices(events) == {
        "batches": [("prefill", 0, 0.5)],
        3: [("request 0", 0, 0.5), ("prefill", 0, 0.5)],
    }
    assert next(e for e in events if e["ph"] == "X")["args"]["cut"] is True


def test_equal_runs_make_equal_files(tmp_path):
    table = RequestTable([0, 0.5], [3, 3], [3, 2])
    for name in ("one.json.gz", "two.json.gz"):
        trace(tmp_path / name, System(kv_capacity=9, batch_time=UNIT), table, "fcfs")
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def nanoseconds(times):
    return [round(float(t) * 1e9) for t in times]


def check(events, result, table):
    """What must hold of the trace of any run."""
    r, log = result.requests, result.log
    end_of_run = nanoseconds([max(result.worker["clock"])])[0]
    batches, stays, states = defaultdict(list), defaultdict(list), defaultdict(list)
    for e in events:
        if e["ph"] != "X":
            continue
        span = e["ts"], e["ts"] + e["dur"]
        if e["name"].startswith("request"):
            stays[e["args"]["request"]].append((*span, e["pid"], e["tid"]))
        elif "request" in e["args"]:
            assert e["name"] in STATES
            states[e["args"]["request"]].append(
                (*span, e["pid"], e["tid"], e["name"], e["args"].get("tokens"))
            )
        elif e["name"] != "wait":
            batches[e["pid"]].append(span)
    arrival, finish = nanoseconds(table.arrival_time), r["finish_time"]
    for i in range(len(table)):
        done = not math.isnan(finish[i])
        end = round(float(finish[i]) * 1e9) if done else end_of_run
        parts = sorted(states[i])
        if not parts:
            assert np.isnan(r["start_time"][i])
            continue
        # One after another, without a gap, from arrival to finish, each inside of a stay.
        assert parts[0][0] == arrival[i]
        assert parts[-1][1] == end
        assert all(one[1] == two[0] for one, two in itertools.pairwise(parts))
        for start, stop, pid, tid, name, _ in parts:
            assert any(a <= start and stop <= b and (pid, tid) == (p, t) for a, b, p, t in stays[i])
            if name in ("prefill", "decode"):
                assert covered(start, stop, batches[pid])
        decoded = sum(tokens for *_, name, tokens in parts if name == "decode")
        prefilled = sum(tokens for *_, name, tokens in parts if name == "prefill")
        if done and not r["num_evictions"][i]:
            assert prefilled == table.prompt_len[i]
            assert decoded == table.output_len[i] - (result.system.first_token == "counted")
        queued = sum(b - a for a, b, *_, name, _ in parts if name == "queued" and a == arrival[i])
        if not math.isnan(r["start_time"][i]):
            assert queued == round(float(r["start_time"][i]) * 1e9) - arrival[i]
    assert sum(len(spans) for spans in batches.values()) == len(log)
    marks = defaultdict(int)
    for e in events:
        if e["ph"] == "i":
            marks[e["args"]["request"]] += 1
    assert [marks[i] for i in range(len(table))] == r["num_evictions"].tolist()
    joined = Counter(
        (pid, a) for parts in states.values() for a, _, pid, _, name, _ in parts if name == "queued"
    )
    for k in range(len(result.worker)):
        kv, active, waiting = (counter(events, name, k) for name in ("KV", "active", "waiting"))
        for row in log[log["worker"] == k]:
            start = round(float(row["start_time"]) * 1e9)
            assert value_at(kv, start) == row["kv_tokens"]
            assert value_at(active, start) == row["num_active"]
            # A transfer that arrives a rounding error after the decision arrives at the same nanosecond.
            assert 0 <= value_at(waiting, start) - row["num_waiting"] <= joined[k + 1, start]
            inside = [t for t in (*kv, *active) if start < t < round(float(row["end_time"]) * 1e9)]
            assert not inside


def covered(start, stop, spans):
    for a, b in sorted(spans):
        if a <= start < b:
            start = b
        if start >= stop:
            return True
    return False


@settings(deadline=None, max_examples=number(60, 20))
@given(tables(), systems(), st.integers(0, 2**16), st.sampled_from(["random", "sarathi", "fcfs"]))
def test_any_run(tmp_path_factory, table, system, seed, name):
    policy = RandomPolicy(seed, table) if name == "random" else name
    system = replace(system, stall_limit=5000)
    path = tmp_path_factory.mktemp("trace") / "run.json"
    try:
        result, events = trace(path, system, table, policy, seed=seed)
    except LivelockError as error:
        result, events = error.result, load(path)["traceEvents"]
    check(events, result, table)


@settings(
    deadline=None, max_examples=number(40, 20), derandomize=True
)  # transfers may fall on a nanosecond of a decision
@given(tables(), systems(), st.integers(0, 2**16), st.booleans(), st.booleans())
def test_any_run_of_a_cluster(tmp_path_factory, table, system, seed, apart, compiled):
    kinds = ["prefill", "prefill", "decode", "decode"] if apart else ["mixed"] * 3
    workers = [Worker(system.kv_capacity, system.batch_time, kind) for kind in kinds]
    rules = rules_of(system)
    rules |= {"stall_limit": 5000, "transfer_latency": 0.2, "transfer_time": 0.01} if apart else {}
    cluster = System.cluster(workers, **rules)
    path = tmp_path_factory.mktemp("trace") / "run.json.gz"
    try:
        result, events = trace(
            path, cluster, table, "fcfs" if compiled else RandomPolicy(seed, table), seed=seed
        )
    except LivelockError:
        load(path)
        return
    check(events, result, table)
