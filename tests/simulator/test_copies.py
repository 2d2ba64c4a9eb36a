"""Copies of runs have their own memory, in any process, and do not depend on the original."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest

from helpers.runs.clusters import UNIT, workload
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import prepare_run, result_of, simulate
from kvgym.simulator.system import System, Worker

SYSTEM = System.cluster([Worker(40, UNIT), Worker(60, UNIT), Worker(50, UNIT)])
TABLE = workload(2, n=30, rate=2.0)
HOW = {"deepcopy": copy.deepcopy, "pickle": lambda run: pickle.loads(pickle.dumps(run))}


def running(router, compiled=True):
    """Return a half-finished run of a cluster, and the records that it will end with."""
    run, _ = prepare_run(SYSTEM, TABLE, make_policy("fcfs"), router, compiled=compiled)
    assert not run.run(budget=25)
    expected = simulate(SYSTEM, TABLE, "fcfs", router=router, compiled=compiled).requests
    return run, expected


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("router", ["round_robin", "join_shortest_queue"])
@pytest.mark.parametrize("how", HOW)
def test_a_copy_continues_independently(how, router, compiled):
    run, expected = running(router, compiled)
    before = run.requests.copy()
    twin = HOW[how](run)
    assert twin.run()
    assert twin.requests.tobytes() == expected.tobytes()
    assert run.requests.tobytes() == before.tobytes()
    assert run.run()
    assert run.requests.tobytes() == expected.tobytes()


def test_a_copy_outlives_the_run():
    run, expected = running("join_shortest_queue")
    twin = copy.deepcopy(run)
    del run
    gc.collect()
    kept = [np.full(1000 + 13 * k, 0xAB, np.uint8) for k in range(300)]
    assert twin.run()
    assert twin.requests.tobytes() == expected.tobytes()
    assert len(kept) == 300


def test_the_result_of_an_abandoned_run_moves_its_records():
    system = System(60, UNIT, horizon=9.0)
    policy = make_policy("fcfs")
    run, _ = prepare_run(system, TABLE, policy)
    run.run()
    assert run.worker["num_active"] > 0
    kept = result_of(run, policy)
    assert not np.shares_memory(kept.requests, run.requests)
    taken = result_of(run, policy, given_up=True)
    assert np.shares_memory(taken.requests, run.requests)
    assert taken.requests.tobytes() == kept.requests.tobytes()
    assert simulate(system, TABLE, "fcfs").requests.tobytes() == kept.requests.tobytes()


@pytest.mark.parametrize("system", [System(60, UNIT), SYSTEM], ids=["worker", "cluster"])
def test_a_run_that_is_finished_with_leaves_no_memory_behind(system):
    gc.disable()  # there is no cycle to be found
    try:
        run, _ = prepare_run(system, TABLE, make_policy("fcfs"))
        run.run()
        assert run.view.clock > 0
        seen = weakref.ref(run)
        del run
        assert seen() is None
    finally:
        gc.enable()


def test_another_process_continues(tmp_path):
    run, expected = running("join_shortest_queue")
    (tmp_path / "run.pkl").write_bytes(pickle.dumps(run))
    code = (
        "import pickle\nrun = pickle.load(open('run.pkl', 'rb'))\nassert run.run()\n"
        "print(run.requests.tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected.tobytes().hex()
