"""Invariants of every run under any policy, checked at every boundary on random workloads and systems."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.amount import number
from helpers.runs.random_runs import RandomPolicy, systems, tables
from helpers.selection import EACH_FAMILY
from kvgym.errors import LivelockError
from kvgym.policies.contract.invariants import InvariantChecker
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@settings(COMMON, max_examples=number(120, 40))
@given(tables(), systems(), st.integers(0, 2**32 - 1), st.booleans())
def test_any_feasible_decisions(table: RequestTable, system: System, seed: int, compiled: bool) -> None:
    checker = InvariantChecker(
        RandomPolicy(seed, table), dataclasses.replace(system, stall_limit=5000), table
    )
    checker.check(simulate(checker.system, table, checker, log=True, compiled=compiled))


@settings(COMMON, max_examples=number(25, 8))
@given(tables(), systems(), st.integers(0, 1000))
@EACH_FAMILY
def test_registered_policies(name: str, table: RequestTable, system: System, seed: int) -> None:
    checker = InvariantChecker(make_policy(name), system, table)
    explained = rf"policy '{name}', iteration \d+, t = \S+ s: .*(no progress|never end|admitted no request)"
    try:
        result = simulate(system, table, checker, seed=seed, log=True)
    except LivelockError:
        with pytest.raises(LivelockError, match=explained):
            simulate(system, table, name, seed=seed)
        return
    checker.check(result)
    direct = simulate(system, table, name, seed=seed, log=True)
    assert direct.requests.tobytes() == result.requests.tobytes()
    np.testing.assert_array_equal(direct.log, result.log)
