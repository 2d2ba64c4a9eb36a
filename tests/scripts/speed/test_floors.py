"""The C programs under the benchmark of the engine play what the engine plays, to the last bit."""

import numpy as np
import pytest

from kvgym import System, make_batch_time, make_workload


@pytest.fixture(scope="module")
def floors(benchmarks):
    """Return the benchmark."""
    return benchmarks("floors")


@pytest.fixture(scope="module")
def library(floors, tmp_path_factory):
    """Return the C programs, compiled."""
    if floors.compiler() is None:
        pytest.skip("no C compiler")
    return floors.build(tmp_path_factory.mktemp("floors"))


@pytest.fixture(scope="module")
def instance(benchmarks):
    """Return a memory so small that many are evicted, and requests that fit."""
    table = make_workload("lmsys", num_requests=300).sample(3)
    short = table.prompt_len + table.output_len < 1_000
    system = System(kv_capacity=1_000, batch_time=make_batch_time(benchmarks("harness").AFFINE))
    return system, table.select(short)


@pytest.mark.parametrize("rule", ["mc_sf", "sarathi", "fcfs"])
@pytest.mark.parametrize("detail", ["finish", "events", "tokens"])
def test_they_record_what_the_engine_does(benchmarks, floors, library, instance, rule, detail):
    system, table = instance
    simulation, run = benchmarks("harness").prepare(system, table, rule, True)
    run()
    floor = floors.open_floor(library, system, table, rule, detail)
    assert floor.play() == simulation.workers["iteration"].sum()
    assert floors.differences(simulation, floor) == []
    assert not np.isnan(floor.records["finish"]).any()
    if rule != "mc_sf":
        assert simulation.workers["total_evicted"].sum() > 50
    floor.close()


def test_what_differs_is_named(benchmarks, floors, library, instance):
    system, table = instance
    simulation, run = benchmarks("harness").prepare(system, table, "fcfs", True)
    run()
    floor = floors.open_floor(library, system, table, "fcfs", "tokens")
    floor.play()
    floor.records["gap"][7] += 1e-9
    floor.records["gap_counts"][0] += 1
    assert floors.differences(simulation, floor) == ["max_token_gap", "gap_counts"]
    floor.close()


def test_without_a_compiler_it_says_what_is_missing(floors, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(SystemExit, match="needs a C compiler, and there is no no-such-compiler"):
        floors.build(tmp_path)
