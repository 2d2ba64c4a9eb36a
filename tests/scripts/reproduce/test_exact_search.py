"""The exact search of the MC-SF reproduction against brute force, the integer program and the bounds."""

import numpy as np
import pytest
from hypothesis import given, settings

from helpers.amount import number, some
from kvgym.errors import ConfigError
from kvgym.theory.hindsight.slotted.instance import slotted_requests
from kvgym.theory.hindsight.slotted.prices import price_bound
from kvgym.theory.hindsight.slotted.program import solve
from kvgym.theory.hindsight.slotted.replay import replay
from kvgym.theory.hindsight.slotted.search import Goal, local_search
from kvgym.theory.hindsight.slotted.volume import earliest_completions, lp_9
from kvgym.workloads import mcsf_instance
from oracles.slotted_instances import brute_force, small, table_of


@pytest.fixture(scope="module")
def exact_search(reproduce):
    return reproduce("papers.mc_sf.exact_search").exact_search


def test_program_and_exact_search_agree_on_instances_of_section_5_1(exact_search):
    for seed in some(range(8), 3):
        table, memory = mcsf_instance(1 + seed % 2, seed)
        table = table.select(slice(0, 2 + seed % 5))
        requests = slotted_requests(table, memory)
        bad = np.arange(len(table)) * 60 + 60  # a bad schedule, so that the program must find a better one
        solved = solve(requests, Goal.TOTAL, bad, 0, seconds=60)
        assert solved.optimal, solved.status
        optimum = exact_search(requests)
        assert solved.reached == optimum.total
        for starts in (solved.schedule, optimum.starts):
            run = replay(table, memory, starts)
            assert (run.requests["finish_time"] - table.arrival_time).sum() == optimum.total


@settings(max_examples=number(60, 25), deadline=None)
@given(instance=small(4))
def test_search_is_exact_and_bounds_hold(exact_search, instance):
    table, memory = instance
    requests = slotted_requests(table, memory)
    optimum = exact_search(requests)
    assert optimum is not None
    if len(table) <= 3:
        assert optimum.total == brute_force(table, memory, int(requests.output.sum()))[0]
    assert Goal.TOTAL.reached_by(requests, optimum.starts) == optimum.total
    found = local_search(requests, rng=np.random.default_rng(0), tries=300)
    assert Goal.TOTAL.reached_by(requests, requests.check(found)) >= optimum.total
    assert price_bound(requests, found, chains=False, steps=200).bound <= optimum.total
    assert price_bound(requests, found, steps=200).bound <= optimum.total
    assert (earliest_completions(requests) <= np.sort(optimum.starts + requests.output)).all()
    assert lp_9(requests.prompt, requests.output, memory) <= optimum.total + requests.arrival.sum() + 1e-9


def test_too_little_patience_gives_none_and_too_many_requests_are_refused(exact_search):
    table = table_of(*[(0, 1, 3 + i) for i in range(6)])
    assert exact_search(slotted_requests(table, 10), patience=10) is None
    with pytest.raises(ConfigError, match="1 to 14 requests, got 15"):
        exact_search(slotted_requests(table_of(*[(0, 1, 1)] * 15), 10))
