"""Results in the format of vLLM's benchmark, by hand and against its explicit definitions."""

import json
import math

import numpy as np
import pytest

from kvgym import compute_metrics, load_scenario, make_batch_time, simulate
from kvgym.experiments.comparison import compare
from kvgym.metrics.catalogue import LATENCIES, SCALARS, metric_names
from kvgym.report.export.vllm_bench import NAMES, Setup, details, summary, write_comparison
from kvgym.simulator.observer import Observer
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import make_workload

UNIT = make_batch_time({"kind": "unit"})
SETUP = Setup("fcfs", "a100", 2, 0.5, 1.0)
LISTED = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
}  # fmt: skip
DETAILS = {"input_lens", "output_lens", "ttfts", "latencies", "start_times", "errors"}


def test_two_requests_by_hand():
    # Request 0 (arrives 2, o = 2): first token at 3, done at 4. Request 1 (arrives 3, o = 3): 4 and 6.
    table = RequestTable([2.0, 3.0], [3, 5], [2, 3], ttft_slo=[1.0, 0.5])
    result = simulate(System(kv_capacity=100, batch_time=UNIT), table, "fcfs")
    found = summary(compute_metrics(result), SETUP, date="20260131-235959")
    assert found["date"] == "20260131-235959"
    assert found["duration"] == 6  # from time 0, where our makespan is 4
    assert (found["completed"], found["failed"]) == (2, 0)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (8, 5)
    assert found["request_throughput"] == 2 / 6
    assert found["output_throughput"] == 5 / 6
    assert found["total_token_throughput"] == 13 / 6
    assert found["request_goodput"] == 1 / 6  # request 1 misses its target
    assert found["mean_e2el_ms"] == 2500
    assert found["std_e2el_ms"] == 500
    assert (
        found["median_ttft_ms"]
        == found["p99_ttft_ms"]
        == found["mean_tpot_ms"]
        == found["mean_itl_ms"]
        == 1000
    )
    assert found["std_itl_ms"] == 0
    families = {
        f"{s}_{n}_ms"
        for s in ("mean", "median", "std", "p90", "p95", "p99")
        for n in ("ttft", "tpot", "itl", "e2el")
    }
    assert found.keys() == LISTED | families
    assert details(result) == {
        "input_lens": [3, 5], "output_lens": [2, 3], "ttfts": [1, 1], "latencies": [2, 3], "start_times": [2, 3],
        "errors": ["", ""],
    }  # fmt: skip


class TokenTimes(Observer):
    """When the user gets each token, as a client of a server would see it; no evictions."""

    def __init__(self, table):
        self.times = [[] for _ in range(len(table))]
        self.left = table.prompt_len.copy()

    def ran(self, batch):
        for i, p, d in zip(batch.request_id, batch.prefill_tokens, batch.decode_tokens, strict=True):
            self.left[i] -= p
            if d or (p and self.left[i] == 0):
                self.times[i].append(float(batch.row["end_time"]))


def test_against_explicit_definitions():
    rng = np.random.default_rng(0)
    n = 200
    table = RequestTable.from_columns(
        arrival_time=np.cumsum(rng.exponential(0.05, n)),
        prompt_len=rng.integers(1, 60, n),
        output_len=rng.integers(1, 40, n),
    )
    affine = make_batch_time(
        {"kind": "affine", "constant": 0.01, "per_context_token": 1e-5, "per_prefill_token": 1e-4}
    )
    seen = TokenTimes(table)
    result = simulate(
        System(kv_capacity=20_000, batch_time=affine), table, "sarathi:token_budget=32", observer=seen
    )
    assert result.worker[0]["total_evicted"] == 0
    found = summary(compute_metrics(result), Setup("x", "y", n, math.nan, None))
    ttfts = [t[0] - a for t, a in zip(seen.times, table.arrival_time, strict=True)]
    e2els = [t[-1] - a for t, a in zip(seen.times, table.arrival_time, strict=True)]
    itls = np.concatenate([np.diff(t) for t in seen.times])
    tpots = [
        (e - f) / (o - 1) for e, f, o in zip(e2els, ttfts, table.output_len.tolist(), strict=True) if o > 1
    ]
    for name, values, precision in (
        ("ttft", ttfts, 1e-9), ("tpot", tpots, 1e-9), ("e2el", e2els, 1e-9), ("itl", itls, 2e-3),
    ):  # fmt: skip
        assert found[f"mean_{name}_ms"] == pytest.approx(np.mean(values) * 1000, rel=1e-9)
        assert found[f"median_{name}_ms"] == pytest.approx(np.median(values) * 1000, rel=precision)
        assert found[f"std_{name}_ms"] == pytest.approx(np.std(values) * 1000, rel=precision)
        for p in (90, 95, 99):
            assert found[f"p{p}_{name}_ms"] == pytest.approx(np.percentile(values, p) * 1000, rel=precision)
    assert found["duration"] == max(t[-1] for t in seen.times)
    assert found["request_rate"] is None
    assert found["request_goodput"] is None


def test_a_run_without_finished_requests():
    table = RequestTable([0.0, 9.0], [3, 3], [5, 5])
    result = simulate(System(kv_capacity=100, batch_time=UNIT, horizon=2.0), table, "fcfs")
    found = summary(compute_metrics(result), SETUP)
    assert (found["completed"], found["failed"], found["request_throughput"]) == (0, 2, 0)
    assert found["mean_ttft_ms"] is None
    assert found["request_goodput"] is None
    assert details(result)["ttfts"] == [0, 0]
    assert all(details(result)["errors"])
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("arrivals", "rate", "burstiness"),
    [
        ({"kind": "poisson", "rate": 4.0}, 4, 1),
        ({"kind": "gamma", "rate": 4.0, "burstiness": 0.5}, 4, 0.5),
        ({"kind": "deterministic", "rate": 4.0}, 4, None),
        ({"kind": "all_at_once"}, "inf", None),
    ],
)
def test_setup_describes_the_traffic(arrivals, rate, burstiness):
    scenario = load_scenario("a100-llama2-70b").override(
        workload={**make_workload("lmsys").spec.model_dump(), "arrivals": arrivals, "num_requests": 5}
    )
    workload = scenario.make_workload()
    table = workload.sample(0)
    setup = Setup.of(scenario, workload, table, "fcfs", 0)
    result = simulate(scenario.make_system(), table, "fcfs")
    found = summary(compute_metrics(result), setup)
    assert (found["request_rate"], found["burstiness"], found["model_id"]) == (
        rate,
        burstiness,
        "llama2-70b-a100-tp2",
    )
    assert (found["policy"], found["scenario"], found["seed"]) == ("fcfs", "a100-llama2-70b", 0)


def test_a_file_for_every_policy_and_seed(tmp_path):
    scenario = load_scenario("a100-llama2-70b").override(
        workload={**make_workload("lmsys").spec.model_dump(), "num_requests": 20}
    )
    comparison = compare(scenario, ["mc_sf", "alpha_beta:alpha=0.2,beta=0.1"], seeds=[3, 5])
    paths = write_comparison(comparison, tmp_path / "vllm")
    assert sorted(p.name for p in (tmp_path / "vllm").iterdir()) == sorted(p.name for p in paths)
    assert [p.name for p in paths] == [
        "mc_sf-seed3.json", "mc_sf-seed5.json", "alpha_beta-alpha-0.2-beta-0.1-seed3.json",
        "alpha_beta-alpha-0.2-beta-0.1-seed5.json",
    ]  # fmt: skip
    content = json.loads(paths[1].read_text())
    result = simulate(scenario.make_system(), scenario.make_workload().sample(5), "mc_sf", seed=5)
    metrics = compute_metrics(result)
    assert content["p99_ttft_ms"] == 1000 * metrics["ttft_p99"]
    assert content["num_prompts"] == content["completed"] == 20
    assert not DETAILS & content.keys()


def test_failed_runs_have_no_file(tmp_path):
    scenario = load_scenario("mc-sf-model-1")
    comparison = compare(scenario, ["alpha_greedy", "mc_sf"], seeds=1)
    errors = comparison.errors()
    names = [p.name for p in write_comparison(comparison, tmp_path)]
    assert names == [f"{p}-seed0.json" for p in ("alpha_greedy", "mc_sf") if p not in errors]


def test_names_refer_to_existing_metrics():
    assert NAMES.keys() <= {*LATENCIES, *SCALARS}
    assert {"ttft_std", "duration", "input_tokens"} <= {*metric_names()}
