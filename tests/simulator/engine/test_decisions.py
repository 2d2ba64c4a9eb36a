"""Refused decisions change nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.runs.runs_by_hand import Make, log_of, queue, rows, run
from kvgym.batch_time import UnitBatchTime
from kvgym.errors import InvalidDecisionError, WorkloadError
from kvgym.policies.policy import Decision
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

# ---------------------------------------------------------------- invalid decisions


BAD = {
    "admits an unknown id": (Decision(admit=[99]), "request 99"),
    "admits a negative id": (Decision(admit=[-1]), "request -1"),
    "admits what has not arrived": (Decision(admit=[6]), "request 6.*not here yet"),
    "admits what has finished": (Decision(admit=[0]), "request 0.*finished"),
    "admits what is active": (Decision(admit=[1]), "request 1.*active"),
    "admits twice": (Decision(admit=[5, 5], tokens={5: 1}), "request 5.*twice"),
    "admits what it evicts": (Decision(evict=[1], admit=[1]), "request 1"),
    "evicts what waits": (Decision(evict=[4]), "request 4.*waiting"),
    "evicts what has finished": (Decision(evict=[0]), "request 0.*finished"),
    "evicts an unknown id": (Decision(evict=[77]), "request 77.*unknown"),
    "evicts twice": (Decision(evict=[1, 1]), "request 1.*twice"),
    "evicts twice, others between": (Decision(evict=[1, 2, 1]), "request 1.*twice"),
    "gives tokens to a waiting request": (Decision(tokens={4: 1}), "request 4"),
    "gives tokens to an unknown request": (Decision(tokens={55: 1}), "request 55"),
    "gives a decode two tokens": (Decision(tokens={1: 2}), r"request 1.* 2 tokens.*0 … 1"),
    "gives -1 token": (Decision(tokens={1: -1}), "request 1.*-1"),
    "gives a first chunk of -1": (Decision(admit=[5], tokens={5: -1}), "request 5.*-1"),
    "gives negative tokens": (Decision(tokens={1: -3}), "request 1.*-3"),
    "gives a negative chunk": (Decision(tokens={2: -2}), "request 2.*-2"),
    "gives too long a chunk": (Decision(tokens={2: 4}), r"request 2.* 4 tokens.*0 … 3"),
    "gives too long a first chunk": (Decision(admit=[5], tokens={5: 9}), r"request 5.* 9 tokens.*0 … 4"),
    "does not fit": (Decision(admit=[3, 4]), r"request 4.*needs 23 KV tokens, kv_capacity is 20.*\[3, 4\]"),
    "does not fit, paused": (
        Decision(admit=[3, 4, 5], tokens={1: 0, 2: 0}),
        r"request 5.*needs 23 KV tokens, kv_capacity is 20",
    ),
    "waits until the past": (Decision(wait_until=1), "waits until 1"),
    "waits until now": (Decision(wait_until=2), "waits until 2"),
    "waits until never": (Decision(wait_until=math.nan), "waits until nan"),
    "waits and does not fit": (Decision(wait_until=9, admit=[0]), "request 0.*finished"),
}


def scene(make: Make) -> Simulation:
    """0 finished, 1 decoding (4 KV), 2 prefilling (2 KV, 3 left), 3 4 5 waiting, 6 in the future; t = 2, M = 20."""
    simulation = make([(0, 1, 1), (0, 2, 9), (0, 5, 2), (1, 7, 1), (1, 3, 2), (2, 4, 2), (9, 1, 1)])
    run(simulation, Decision(admit=[0, 1, 2], tokens={2: 1}), Decision(tokens={2: 1}))
    assert rows(simulation.view.active) == {1: (4, 0, 2), 2: (2, 3, 0)}
    assert queue(simulation) == [3, 4, 5]
    return simulation


def snapshot(simulation: Simulation) -> list[bytes]:
    active = simulation.active.copy()
    active["planned"] = 0
    tables = (
        simulation.workers,
        simulation.requests,
        simulation.gap_counts,
        simulation.gap_sums,
        log_of(simulation),
    )
    return [active.tobytes(), *(table.tobytes() for table in tables)]


@pytest.mark.parametrize("case", BAD)
def test_invalid_decisions_change_nothing(make: Make, case: str) -> None:
    decision, message = BAD[case]
    simulation = scene(make)
    before = snapshot(simulation)
    for _ in range(2):  # and again: nothing is left over from the refused one
        with pytest.raises(InvalidDecisionError, match=message) as error:
            simulation.step(decision)
        assert "policy 'by_hand'" in str(error.value)
        assert "iteration 2" in str(error.value)
        assert snapshot(simulation) == before
    run(simulation, Decision(evict=[2], admit=[4, 3], tokens={3: 2}))
    assert rows(simulation.view.active) == {1: (5, 0, 3), 4: (4, 0, 1), 3: (2, 5, 0)}
    assert queue(simulation) == [2, 5]


def test_fits_exactly(make: Make) -> None:
    # 1: 5, 2: 2+3+1, 3: 7+1, together 19; 4 begins with one token of its prompt.
    simulation = scene(make)
    run(simulation, Decision(admit=[3, 4], tokens={4: 1}))
    assert log_of(simulation)["kv_tokens"][-1] == 20
    with pytest.raises(InvalidDecisionError, match="needs 21"):
        scene(make).step(Decision(admit=[3, 4], tokens={4: 2}))


def test_more_than_can_ever_be_active(make: Make) -> None:
    simulation = make([(0, 1, 1)] * 9, M=3)
    with pytest.raises(InvalidDecisionError, match=r"more requests than can ever be active \(3\)"):
        simulation.step(Decision(admit=[0, 1, 2, 3]))
    run(simulation, Decision(admit=[0, 1, 2], tokens={0: 0, 1: 0, 2: 0}))
    with pytest.raises(InvalidDecisionError, match="4 requests active; at most 3"):
        simulation.step(Decision(admit=[3], tokens=dict.fromkeys(range(4), 0)))
    run(simulation, Decision(evict=[2], admit=[3], tokens={0: 1, 1: 0, 3: 0}))
    assert simulation.view.active.request_id.tolist() == [1, 3]


@pytest.mark.parametrize(
    "decision",
    [
        Decision(admit=[4.7]),  # type: ignore[list-item]
        Decision(admit=["4"]),  # type: ignore[list-item]
        Decision(admit=[2**40]),
        Decision(evict=[1.5]),  # type: ignore[list-item]
        Decision(tokens={2: 1.5}),  # type: ignore[dict-item]
        Decision(tokens={2: 2**40}),
        Decision(tokens={2: -(2**40)}),
    ],
    ids=str,
)
def test_fractions_are_refused_not_rounded(make: Make, decision: Decision) -> None:
    simulation = scene(make)
    before = snapshot(simulation)
    with pytest.raises(InvalidDecisionError, match="policy 'by_hand'"):
        simulation.step(decision)
    assert snapshot(simulation) == before


def test_numpy_integers_are_accepted(make: Make) -> None:
    simulation = scene(make)
    ids = np.array([3, 4])
    run(simulation, Decision(admit=ids[1:], evict=np.array([2]), tokens={np.int64(4): np.int32(2)}))  # type: ignore[arg-type]
    assert rows(simulation.view.active) == {1: (5, 0, 3), 4: (2, 1, 0)}


def test_requests_longer_than_the_memory_are_refused_at_once() -> None:
    table = RequestTable([0, 0], [3, 15], [3, 6])
    with pytest.raises(WorkloadError, match=r"1 of 2 requests.*kv_capacity = 20.*request 1, 15 \+ 6 = 21"):
        Simulation(System(kv_capacity=20, batch_time=UnitBatchTime()), table)
