"""kvgym's policies inside vLLM's own scheduler, if its wheel has been unpacked before."""

import sys

import pytest
from conformance.integration import compare, compare_own, draw
from conformance.integration_engine import Engine
from conformance.wheel import default_cache


@pytest.fixture(scope="module")
def engine():
    folder, before = default_cache() / "vllm-0.33.0", list(sys.meta_path)
    if not folder.is_dir():
        pytest.skip("python scripts/conformance integration downloads the wheel")
    yield Engine(folder, "0.33.0")
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]


def test_workloads_are_drawn_by_seed():
    assert draw(3) == draw(3) != draw(4)
    workload = draw(3)
    room = [workload.case.blocks * workload.case.block_size - prompt for prompt in workload.case.prompt]
    assert all(0 < low <= high <= r for low, high, r in zip(workload.low, workload.high, room, strict=True))
    assert len(workload.table()) == len(workload.extras()) == len(room)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["fcfs", "mc_sf", "sarathi:token_budget=16", "ranked"])
def test_schedules_are_those_of_the_simulator(engine, policy):
    count, differences = compare(engine, policy, range(5))
    assert not differences
    assert count.equal == 5


@pytest.mark.long
def test_vllm_v1_inside_vllm_is_its_own_rule(engine):
    count, differences = compare_own(engine, range(10))
    assert not differences
    assert count.equal == 10
