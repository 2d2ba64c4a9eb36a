"""The benchmarks time what users run."""

import numpy as np
import pytest

from kvgym import System, make_batch_time, make_workload, simulate


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_timed_run_is_a_run(benchmarks, workers, compiled):
    harness = benchmarks("harness")
    system = System(kv_capacity=16_492, batch_time=make_batch_time(harness.AFFINE))
    if workers is not None:
        system = system.replicate(workers)
    table = make_workload("lmsys", num_requests=20).sample(0)
    timing = harness.time_runs(system, table, "mc_sf", 2, compiled=compiled)
    result = simulate(system, table, "mc_sf")
    np.testing.assert_array_equal(timing.simulation.requests["finish_time"], result.requests["finish_time"])
    assert timing.iterations == result.worker["iteration"].sum()
    assert timing.set_up > 0
    assert timing.run > 0


@pytest.mark.parametrize("path", [None, "out.json"])
def test_results_are_written_where_asked_for(benchmarks, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    harness = benchmarks("harness")
    options = harness.command_line("Measure.").parse_args([] if path is None else ["--json", path])
    harness.write_json(options.json, {"a": 1})
    assert [p.read_text() for p in tmp_path.iterdir()] == ([] if path is None else ['{\n  "a": 1\n}\n'])
