"""Values that kernels keep by slot follow the active set; a plan that runs all requests in full is dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.runs.runs_by_hand import Make, run
from kvgym.compiling.kernel import uncompiled
from kvgym.kernels import UNKNOWN, drop_full_plan, follow_slots, ranked_keep
from kvgym.policies.policy import Decision
from kvgym.simulator.policy_interface import PolicyDecision


def test_values_follow_their_requests(make: Make) -> None:
    """Of 0 to 4 the second is evicted and returns, and the first finishes: values of the others are kept."""
    simulation = make([(0, 1, 3)] + [(0, 1, 9)] * 5)
    state, values = np.zeros(8, np.int64), np.full(9, np.nan)

    def look() -> int:
        """Follow the slots, with ten times the id as the value of new ones, and return the first new slot."""
        view = simulation.view.rule_view(0)
        new = uncompiled(follow_slots)(view, state, 0, values, 3)
        for k in range(new, view.worker.num_active):
            values[3 + k] = 10 * view.active[k].request_id
        active = [int(view.active[k].request_id) for k in range(view.worker.num_active)]
        assert values[3 : 3 + len(active)].tolist() == [10 * i for i in active]
        assert state[: len(active) + 1].tolist() == [len(active), *active]
        return int(new)

    assert look() == 0
    run(simulation, Decision(admit=[0, 1, 2, 3]))
    assert look() == 0
    assert look() == 4
    run(simulation, Decision(admit=[4]))
    assert look() == 4
    run(simulation, Decision(evict=[1]))
    assert look() == 3  # 2, 3, 4: the first has finished in the same iteration
    run(simulation, Decision(admit=[5, 1], evict=[3]))
    assert look() == 2  # 2, 4 and, as new, 5 and 1
    run(simulation, Decision(evict=[2, 4, 5, 1]))
    assert look() == 0
    assert np.isnan(values[:3]).all()


@pytest.mark.parametrize(
    ("planned", "admitted", "explicit"),
    [
        ([UNKNOWN, UNKNOWN, 0], [UNKNOWN], 0),  # the third slot is evicted
        ([UNKNOWN, 0, UNKNOWN], [UNKNOWN], 1),
        ([UNKNOWN, UNKNOWN, 0], [2], 1),
    ],
)
def test_only_a_plan_in_which_all_run_in_full_is_dropped(
    make: Make, planned: list[int], admitted: list[int], explicit: int
) -> None:
    simulation = make([(0, 1, 9)] * 3 + [(0, 4, 9)])
    run(simulation, Decision(admit=[0, 1, 2]))
    tables = simulation.python_tables()
    decision = PolicyDecision(*(tables[name][0] for name in ("decision", "admit", "admit_tokens", "evict")))
    d = decision.record
    d.explicit, d.num_evict, d.num_admit = 1, 1, 1
    decision.evict[0], decision.admit[0], decision.admit_tokens[0] = 2, 3, admitted[0]
    for k, tokens in enumerate(planned):
        tables["active"][0][k].planned = tokens
    uncompiled(drop_full_plan)(simulation.view.rule_view(0), decision)
    assert d.explicit == explicit


@pytest.mark.parametrize("compiled", [True, False])
def test_the_first_of_a_list_are_kept(compiled: bool) -> None:
    keep: Any = ranked_keep if compiled else uncompiled(ranked_keep)
    rng = np.random.default_rng(0)
    for longest in [30] * 200 + [1000] * 20:  # long lists begin with a sample
        n = int(rng.integers(0, longest))
        most = int(rng.integers(0, n + 3))
        ranks = rng.integers(0, rng.integers(1, 20), longest + 10).astype(float)
        ranks[rng.random(longest + 10) < 0.1] = -np.inf
        items = rng.permutation(longest + 7)[:n]
        heap = np.concatenate([[-7, n], items, [-7]])
        keep(heap, 1, ranks, 3, most)
        expected = sorted(items.tolist(), key=lambda x: (ranks[3 + x], x))[:most]
        assert heap[1] == len(expected)
        assert sorted(heap[2 : 2 + heap[1]].tolist()) == sorted(expected)
        assert sorted(heap[2 : 2 + n].tolist()) == sorted(items.tolist())
        assert heap[0] == heap[-1] == -7
