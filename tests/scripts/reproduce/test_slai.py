"""The SLAI experiments: figures from runs and from its formulas."""

import math

import numpy as np
import pytest
from reproduce.formulas.tile_capacity import request_time
from scipy.optimize import linprog

from kvgym import simulate
from kvgym.experiments.scenario import load_scenario
from kvgym.workloads.table import RequestTable


@pytest.fixture
def quick(reproduce):
    """A small scale, and the plan that goes with it."""
    scale = reproduce("harness.scale").Scale(quick=True, seeds=2)
    return scale, reproduce("papers.slai.setting").plan_of(scale)


@pytest.mark.parametrize("policy", ["sarathi", "vllm", "slai:low_offset=5"])
def test_gaps_by_request_are_those_of_the_simulator(reproduce, quick, policy):
    token_gaps = reproduce("papers.slai.gaps").token_gaps
    runner = reproduce("papers.slai.measurements").Runner(load_scenario("slai-5"), quick[1])
    table = runner.sample(4.0, 0)
    owner, gap = token_gaps(runner.system, table, policy, (0.0, np.inf))
    result = simulate(runner.system, table, policy)
    assert len(gap) == result.gap_counts.sum() == table.output_len.sum()
    largest = np.zeros(len(table))
    np.maximum.at(largest, owner, gap)
    assert largest == pytest.approx(result.requests["max_token_gap"])
    inside, _ = token_gaps(runner.system, table, policy, (20.0, 30.0))
    assert 0 < len(inside) < len(owner)


def test_rate_at_a_bound_is_interpolated_at_the_first_crossing(reproduce, quick):
    measurements = reproduce("papers.slai.measurements")
    data = measurements.Measurements(load_scenario("slai-5"), ["sarathi"], (0.5, 3.0), quick[0], 10)
    assert data.seeds == 2
    low, high = (data.values("sarathi", rate, "ttft_median") for rate in (0.5, 3.0))
    assert (low < high).all()
    found = data.rate_at("sarathi", 0.5 * (low[0] + high[0]))
    assert found[0] == pytest.approx(1.75)
    assert data.at("sarathi", found, "ttft_median")[0] == pytest.approx(0.5 * (low[0] + high[0]))
    assert np.isnan(data.rate_at("sarathi", 1e9)).all()


def test_no_distribution_has_the_printed_deviation(reproduce):
    """The least deviation with a median and a P90 by linear programs over a grid of values, one for each mean."""
    least = reproduce("papers.slai.lengths").least_deviation(415, 834)
    values = np.unique([*np.arange(0, 1201, 20.0), 415, 834, (5 * 415 + 834) / 6])
    found = math.inf
    for mean in np.unique([*np.linspace(420, 600, 37), (5 * 415 + 834) / 6]):
        program = linprog(
            (values - mean) ** 2,
            A_ub=[-(values <= 415).astype(float), -(values >= 834).astype(float)],
            b_ub=[-0.5, -0.1],
            A_eq=[np.ones_like(values), values],
            b_eq=[1.0, mean],
        )
        found = min(found, program.fun) if program.success else found
    assert least == pytest.approx(math.sqrt(found), rel=1e-6)
    assert least > 101


@pytest.mark.parametrize("budget", [100, 512, 2048])
def test_chunks_of_a_prompt_alone_take_what_the_engine_takes(reproduce, budget):
    parameters = reproduce("papers.slai.parameters")
    system = load_scenario("slai-5").make_system()
    table = RequestTable([0.0], [2048], [1])
    result = simulate(system, table, f"sarathi:token_budget={budget}", log=True)
    times = parameters.chunk_times(system.batch_time, 2048, budget)
    assert result.requests["first_token_time"][0] == pytest.approx(sum(times), rel=1e-12)
    seconds = result.log["end_time"] - result.log["start_time"]
    assert seconds[: len(times)] == pytest.approx(times)


def test_a_mixed_batch_takes_what_the_engine_takes(reproduce):
    parameters = reproduce("papers.slai.parameters")
    system = load_scenario("slai-5").make_system()
    # Three prompts of 100 tokens decode their first token while the fourth's first chunk fills the budget of 400.
    table = RequestTable([0, 0, 0, 0.001], [100, 100, 100, 2000], [5] * 4)
    result = simulate(system, table, "sarathi:token_budget=400", log=True)
    second = result.log[1]
    assert (second["num_decodes"], second["prefill_tokens"]) == (3, 397)
    expected = parameters.mixed_time(system.batch_time, 3, 100, 400)
    assert second["end_time"] - second["start_time"] == pytest.approx(expected, rel=1e-9)


def test_memory_over_time_is_what_the_log_says(reproduce, quick):
    memory = reproduce("papers.slai.memory")
    assert memory.with_watermark("vllm", 0.01) == "vllm:watermark=0.01"
    assert memory.with_watermark("slai:offset=5", 0.04) == "slai:offset=5,watermark=0.04"
    course = memory.Course(load_scenario("slai-5"), quick[1])
    use = course.use("slai:low_offset=5")
    result = simulate(course.system, course.sample(1.6, 0), "slai:low_offset=5", log=True)
    assert len(use) == memory.POINTS
    assert use[0] == 0
    time = quick[1].duration * 0.5
    row = result.log[np.searchsorted(result.log["start_time"], time, side="right") - 1]
    expected = row["kv_tokens"] / course.system.kv_capacity
    assert use[memory.POINTS // 2] == pytest.approx(expected, abs=1e-4)


def test_buckets_of_prompts_hold_every_request(reproduce, quick):
    prompts = reproduce("papers.slai.prompts")
    runner = prompts.ByPrompt(load_scenario("slai-5"), quick[1])
    found = np.array(runner.buckets(0))
    table = runner.sample(1.6, 0)
    assert found.shape == (len(prompts.SHOWN), len(prompts.LABELS), 6)
    assert (found[:, :, 0].sum(axis=1) == len(table)).all()
    assert found[0, prompts.LAST, 0] == (table.prompt_len >= 5000).sum()
    assert (found[:, :, 1] <= found[:, :, 0]).all()
    records = simulate(runner.system, table, prompts.SHOWN[1]).requests
    mean = (records["first_token_time"] - table.arrival_time).mean()
    assert (found[1, :, 3] * found[1, :, 0]).sum() / len(table) == pytest.approx(mean)


def test_stability_runs_meet_the_assumptions(reproduce):
    setup = reproduce("papers.slai.stability").Stability(60.0)
    table = setup.sample(2.0, 0)
    assert (table.prompt_len % 256 == 0).all()
    assert setup.system.batch_time.overhead == 0
    assert setup.system.kv_capacity >= 128 * (table.prompt_len + table.output_len).max()
    # Theorem 2 at 0.9 of the rate: n > 127 T^max / (0.1 T̄^R), and no smaller one.
    worst = reproduce("papers.slai.stability").worst_request_time(8192 + 255, 8192, [setup.node])
    assert (
        (setup.cycle - 1) <= 127 * worst / (0.1 * setup.mean) * (1 + 1e-9) < setup.cycle + 1e-6 * setup.cycle
    )
    for nodes in (1, 2):
        count, work, arrived, arrived_work = setup.pending(("rad", 0.9, nodes, 0))
        table = setup.sample(0.9 * nodes / setup.mean, 0)
        times = request_time(table.prompt_len, table.output_len, setup.node)
        assert count[0] == work[0] == 0
        assert arrived[-1] == len(table)
        assert arrived_work[-1] == pytest.approx(times.sum())
        assert 0 < count[-1] < len(table)
        assert count[-1] * times.min() < work[-1] < min(count[-1] * times.max(), times.sum())


def test_separate_nodes_are_distinguished(reproduce, quick):
    principles = reproduce("papers.slai.principles")
    runner = principles.Principles(quick[1])
    table = runner.lengths("short prompts", 0)
    assert np.median(table.prompt_len) == pytest.approx(200, rel=0.1)
    assert np.median(table.output_len) == pytest.approx(800, rel=0.1)
    apart, alike = (runner.pair((policy, "short prompts", 0)) for policy in ("dist_serve", "sarathi"))
    assert apart[3] < 0.3 < 0.9 < apart[4] <= 1
    assert min(alike[3:]) > 0.9


def test_scenarios_are_the_papers():
    for name, share in (("slai-5", 0.05), ("slai-50", 0.5), ("slai-95", 0.95)):
        scenario = load_scenario(name)
        system = scenario.make_system()
        assert system.first_token == "uncounted"
        assert system.progress_on_evict == "recompute"
        table = scenario.make_workload().sample(0)
        assert table.prompt_len.max() + 1 <= (table.prompt_len + table.output_len).max() <= 8192
        assert (table.priority == 1).mean() == pytest.approx(share, abs=0.03)
        assert set(np.unique(table.tbt_slo)) == {0.1, 0.5}


def test_fullest_batch_takes_the_strict_objective():
    from kvgym.batch_time.hardware.kv_capacity import kv_capacity
    from kvgym.batch_time.hardware.shapes import GPU

    scenario = load_scenario("slai-5")
    system = scenario.make_system()
    gpu = GPU.model_validate(scenario.batch_time["gpu"])
    assert system.kv_capacity == kv_capacity(gpu, scenario.batch_time["model"])
    table = scenario.make_workload().sample(0)
    context = (table.prompt_len + table.output_len / 2) @ table.output_len / table.output_len.sum()
    decodes = int(system.kv_capacity / context)
    chunk = 512 - decodes
    fullest = system.batch_time(
        num_prefills=1,
        prefill_tokens=chunk,
        prefill_squares=chunk * chunk,
        num_decodes=decodes,
        decode_context=system.kv_capacity,
    )
    assert decodes == 82
    assert fullest == pytest.approx(0.1, abs=5e-4)
