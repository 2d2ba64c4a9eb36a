"""Samples of a run: which requests hold memory when, in bounded memory, without a change to the run."""

import numpy as np
import pytest

from kvgym import RequestTable, System, make_batch_time, simulate

UNIT = make_batch_time({"kind": "unit"})


def run(samples, *, compiled=True, count=3, policy="fcfs", **system):
    table = RequestTable([float(k) for k in range(count)], [2] * count, [3] * count)
    made = System(kv_capacity=20, batch_time=UNIT, **system)
    return simulate(made, table, policy, log=True, samples=samples, compiled=compiled)


@pytest.mark.parametrize("compiled", [True, False])
def test_by_hand(compiled):
    # One arrives at 0, 1 and 2; each runs three slots, with 2 + 1 tokens after the first of them.
    found = run(64, compiled=compiled).samples
    assert found.time.tolist() == [0, 1, 2, 3, 4]
    held = [dict(zip(*(column.tolist() for column in found.at(k)), strict=True)) for k in range(5)]
    assert held == [{}, {0: 3}, {0: 4, 1: 3}, {1: 4, 2: 3}, {2: 4}]
    assert found.start.tolist() == [0, 0, 1, 3, 5, 6]


def test_there_are_never_more_and_they_are_evenly_spaced():
    every, few = run(1000, count=90).samples, run(8, count=90).samples
    assert len(every.time) > 80
    assert 4 <= len(few.time) <= 8
    places = np.searchsorted(every.time, few.time)
    assert set(np.diff(places)) == {16}
    for k, place in enumerate(places):
        assert few.at(k)[1].tolist() == every.at(place)[1].tolist()


@pytest.mark.parametrize("policy", ["fcfs", "vllm_v1"])
def test_the_run_is_the_same(policy):
    sampled, plain = run(8, count=40, policy=policy), run(0, count=40, policy=policy)
    assert sampled.requests.tobytes() == plain.requests.tobytes()
    assert sampled.log.tobytes() == plain.log.tobytes()
    assert plain.samples is None


def test_a_cluster_has_the_requests_of_all_its_workers():
    system = System(kv_capacity=20, batch_time=UNIT).replicate(2)
    table = RequestTable([0.0, 0.0], [2, 2], [3, 3])
    found = simulate(system, table, "fcfs", samples=64).samples
    assert any(found.at(k)[0].tolist() == [0, 1] for k in range(len(found.time)))
