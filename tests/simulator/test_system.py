"""Descriptions of workers and clusters: invalid ones, and requests that fit."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from kvgym import RequestTable, System, simulate
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import ConfigError, WorkloadError
from kvgym.simulator.system import Worker

UNIT = UnitBatchTime()


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ([], "at least one Worker"),
        (["prefill"], "at least one prefill worker, then at least one decode worker"),
        (["decode"], "at least one prefill worker"),
        (["decode", "prefill"], "at least one prefill worker, then"),
        (["mixed", "prefill", "decode"], "either mixed workers"),
        (["both"], "valid: mixed, prefill, decode"),
    ],
)
def test_invalid_roles(roles: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        System.cluster([Worker(9, UNIT, role) for role in roles])


def test_a_cluster_has_the_memory_of_its_smallest_worker() -> None:
    system = System.cluster([Worker(12, UNIT), Worker(7, AffineBatchTime(1.0))])
    assert system.kv_capacity == 7
    assert system.batch_time is UNIT
    with pytest.raises(ConfigError, match=r"kv_capacity = 9, but the workers have 7"):
        dataclasses.replace(system, kv_capacity=9)
    for count in (0, True, 1.5):
        with pytest.raises(ConfigError, match="replicas"):
            System(9, UNIT).replicate(count)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="2 workers cannot be replicated"):
        system.replicate(2)


def test_requests_must_fit_wherever_they_may_go() -> None:
    # Request 0 holds 11 + 1 tokens on the prefill worker and 31 on the decode worker; alone it takes 20 rounds.
    system = System.cluster([Worker(12, UNIT, "prefill"), Worker(40, UNIT, "decode")])
    assert system.kv_capacity == 40
    table = RequestTable([0, 1], [11, 3], [20, 9])
    assert simulate(system, table, "dist_serve").requests["finish_time"].tolist() == [20, 10]
    for prompt, output, words in ((12, 2, r"kv_capacity = 12 .* 12 \+ 1 = 13"), (11, 30, "kv_capacity = 40")):
        wrong = table.replace(prompt_len=[prompt, 3], output_len=[output, 9])
        with pytest.raises(WorkloadError, match=words):
            simulate(system, wrong, "dist_serve")


def test_copies_hold_the_attributes_alone() -> None:
    system = System.cluster([Worker(64, UNIT), Worker(32, UNIT)], block_size=16)
    assert system.usable_capacities.tolist() == [64, 32]
    assert len(system.all_workers) == 2
    for twin in (pickle.loads(pickle.dumps(system)), copy.copy(system), copy.deepcopy(system)):
        assert vars(twin).keys() == {field.name for field in dataclasses.fields(System)}
        assert twin.usable_capacities.tolist() == [64, 32]
        with pytest.raises(ValueError, match="read-only"):
            twin.usable_capacities[0] = 5
    assert dataclasses.replace(system, block_size=32).usable_capacities.tolist() == [64, 32]
    assert dataclasses.replace(system, block_size=20).usable_capacities.tolist() == [60, 20]
