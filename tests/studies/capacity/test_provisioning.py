"""Numbers of workers: theory, simulation, costs and windows, on small loads."""

import itertools
import json
import math

import numpy as np
import polars as pl
import pytest

from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.load.loads import Load
from kvgym.experiments.scenario import load_scenario
from kvgym.studies.capacity.estimates import SOUND
from kvgym.studies.capacity.outcome_tables import fleet_table
from kvgym.studies.capacity.provisioned import Provisioning, WorkersPlan
from kvgym.studies.capacity.provisioning import _loads, provision
from kvgym.studies.capacity.windows import WindowPlan, WindowSummary, cut

HEAVY = load_scenario("a100-llama3-8b").override(
    workload={"preset": "stab-1-1", "num_requests": 300, "rate": 9.0}
)
TARGETS = "ttft_p99<2,tbt_p99<0.3"


@pytest.fixture(scope="module")
def found():
    return provision(
        HEAVY, TARGETS, ["work_conserving_fcfs"], routers=["round_robin", "join_shortest_queue"],
        prices={"llama3-8b-a100-tp1": 2.0},
    )  # fmt: skip


@pytest.fixture
def scenario(azure_trace):
    source = {"name": "t", "lengths": {"kind": "trace", "path": str(azure_trace)}}
    return load_scenario("a100-llama3-8b").override(workload=source)


def test_theory_and_simulation(found):
    (own,) = found.workers
    sound = own.find(*SOUND)
    assert found.rate == 9
    assert sound.workers == math.ceil(9 / sound.service)
    for plan in found.plans:
        assert plan.by_theory == sound.workers
        assert plan.by_targets == math.ceil(9 / own.target_rate)
        assert plan.simulated >= 1
        assert plan.values["ttft_p99"] < 2
        held = {p.workers: p.verdict.held for _, p in found.probes if p.entry.router_label == plan.router}
        assert held[plan.simulated]
        assert not held.get(plan.simulated - 1, False)
        assert (not plan.one_fewer) == (plan.simulated == 1)
    assert [plan.router for plan in found.plans] == ["round_robin", "join_shortest_queue"]


def test_costs(found):
    plan = found.plans[0]
    assert plan.cost_per_hour == 2.0 * plan.simulated
    tokens = 9.0 * found.mean_output * 3600
    assert found.cost_per_million_tokens(plan) == pytest.approx(plan.cost_per_hour / tokens * 1e6)


def test_a_smaller_token_budget_needs_fewer_workers():
    """Long prompts delay the tokens of others, so that most budgets miss the target for gaps."""
    qwen = build_scenario("vllm-v1", hardware="model=qwen3-32b,gpu=h100,tp=2", workload="stab-1-1", rate=4.0,
                          num_requests=200)  # fmt: skip
    plain = provision(qwen, "ttft_p99<2,tbt_p99<0.06", ["vllm_v1"])
    (note,) = (note for note in plain.notes if note.startswith("Tokens per iteration"))
    assert note.endswith("Others were not tried, and may need fewer workers: --tune-budgets.")
    tuned = provision(qwen, "ttft_p99<2,tbt_p99<0.06", ["vllm_v1"], tune_budgets=True)
    (given,) = plain.plans
    own, best = tuned.plans
    assert own == given
    assert best.policy.startswith("vllm_v1:max_num_batched_tokens=")
    assert best.simulated == 1 < own.simulated
    assert any(
        note.endswith("Of 512 to 8,192 the best by the capacity of one worker.") for note in tuned.notes
    )
    fixed = provision(
        qwen, "ttft_p99<2,tbt_p99<0.06", ["vllm_v1:max_num_batched_tokens=512"], tune_budgets=True
    )
    assert len(fixed.plans) == 1


def test_files(found, tmp_path):
    folder = found.save(tmp_path)
    summary = json.loads((folder / "provision.json").read_text())
    assert summary["plans"][0]["cost_per_hour"] == found.plans[0].cost_per_hour
    assert summary["plans"][0]["windows"] is None
    assert len(pl.read_csv(folder / "estimates.csv")) == 8
    assert set(pl.read_parquet(folder / "probes.parquet")["router"]) == {"round_robin", "join_shortest_queue"}
    assert not (folder / "windows.csv").exists()
    assert json.loads((folder / "config.json").read_text())["scenario"]["workload"]["num_requests"] == 300


def test_workers_that_come_and_go():
    day = HEAVY.override(
        workload={
            "preset": "stab-1-1",
            "num_requests": 300,
            "arrivals": {"kind": "sinusoid", "rate": 9.0, "amplitude": 0.9, "period": 33.0, "phase": -1.57},
        },
        router="join_shortest_queue",
    )
    options = {"prices": 2.0, "startup": 1.0, "hindsight": True}
    found = provision(day, TARGETS, ["work_conserving_fcfs"], autoscalers=["foresight", "wva_v1", "hpa:target=0.01"],
                      **options)  # fmt: skip
    fixed, known, step, many, plan = found.fleets
    assert fixed.rule == "best fixed"
    assert fixed.workers == pytest.approx(found.plans[0].simulated)
    assert fixed.values["ttft_p99"] == pytest.approx(found.plans[0].values["ttft_p99"])
    assert known.rule.startswith("foresight:share=")
    assert (step.rule, many.rule, plan.rule) == ("wva_v1", "hpa:target=0.01", "plan in hindsight")
    assert [p.reference for p in found.fleets] == [False, True, False, False, True]
    assert many.gpu_hours > fixed.gpu_hours > plan.gpu_hours  # "many" has its weight set, and is run as it is
    assert known.gpu_hours >= plan.gpu_hours
    for p in found.fleets:
        assert math.isnan(p.gpu_hours) or (p.values["ttft_p99"] < 2 and p.cost == 2 * p.gpu_hours)
    assert [row["rule"] for row in found.summary()["fleets"]] == [p.rule for p in found.fleets]
    assert fleet_table(found).rows[0].cells[2] == "0%"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"autoscalers": ["fixed"]}, "the best fixed size is always there"),
        ({"autoscalers": ["hpa", "hpa"]}, "expected all different"),
        ({"hindsight": True}, "give --autoscaler"),
        ({"startup": 5.0}, "give --autoscaler"),
    ],
)
def test_wrong_fleets(options, message):
    with pytest.raises(ConfigError, match=message):
        provision(HEAVY, TARGETS, ["vllm_v1"], **options)


def test_other_rates():
    result = provision(HEAVY, TARGETS, ["vllm_v1"], prices=2.0, curve=(0.25, 3.0))
    (plan,) = result.plans
    assert [(p.plan, p.rate) for p in result.points] == [(plan, result.rate / 4), (plan, result.rate * 3)]
    half, double = (p.workers for p in result.points)
    assert half <= plan.simulated <= double
    assert half < double
    again = provision(Load(HEAVY).at(result.rate / 4), TARGETS, ["vllm_v1"]).plans[0]
    assert again.simulated == half
    for point in result.points:
        assert point.cost_per_hour == 2 * point.workers
        tokens = point.rate * result.mean_output * 3600 / 1e6
        assert result.cost_per_million_tokens(point) == pytest.approx(point.cost_per_hour / tokens)
    assert [row["workers"] for row in result.summary()["rates"]] == [half, double]


@pytest.mark.parametrize(
    ("prices", "answers"),
    [
        ((8.0, 2.0), ["a: 1 worker, 8 per hour, 2.22 per million output tokens",
                      "b: 4 workers, 8 per hour, 2.22 per million output tokens"]),
        ((None, None), ["a: 1 worker", "b: 4 workers"]),
        ((1000.5, 0.1), ["b: 4 workers, 0.4 per hour, 0.111 per million output tokens",
                         "a: 1 worker, 1,000.50 per hour, 277.92 per million output tokens"]),
    ],
)  # fmt: skip
def test_answers_are_sorted_by_cost(prices, answers):
    def plan(name, count, price):
        return WorkersPlan("", name, "round_robin", 1, 1, 1, count, (), {}, price, ())

    plans = (plan("b", 4, prices[1]), plan("a", 1, prices[0]))
    result = Provisioning(HEAVY, (), 1.0, 10, 1000.0, (), plans, (), (), ())
    assert result.answers() == answers


def test_a_plan_without_a_number_is_the_last_answer():
    plans = tuple(WorkersPlan("", name, router, 1, 1, 1, count, (), {}, None, ())
                  for name, router, count in (("a", "x", None), ("a", "y", 3)))  # fmt: skip
    result = Provisioning(HEAVY, (), 1.0, 10, 1000.0, (), plans, (), (), ())
    assert result.answers() == [
        "a via y: 3 workers", "a via x: no number of workers that was tried meets the targets"
    ]  # fmt: skip


def test_processes_give_equal_bits():
    def outcome(jobs):
        result = provision(HEAVY, TARGETS, ["vllm_v1"], jobs=jobs)
        probes = [{k: str(v) for k, v in p.row().items() if k != "wall_time"} for _, p in result.probes]
        return result.plans, [w.rows() for w in result.workers], probes

    assert outcome(1) == outcome(2)


def test_windows_of_a_trace(scenario, tmp_path):
    result = provision(scenario, "ttft_p99<1", ["vllm_v1"], hardware=["llama3-8b-a100-tp1"], window=5.0)
    (plan,) = result.plans
    windows = result.windows_of(plan)
    assert len(windows) > 2
    assert sum(w.num_requests for w in windows) == result.num_requests == 200
    assert windows[0].start == 0
    assert all(a.end == b.start for a, b in itertools.pairwise(windows))
    assert all(w.rate == pytest.approx(w.num_requests / (w.end - w.start)) for w in windows)
    assert all(w.judged == (w.num_requests >= 20) for w in windows)
    profile = result.window_summary(plan)
    assert profile.mean <= profile.p95 <= profile.peak == max(w.workers for w in windows)
    assert len(pl.read_csv(result.save(tmp_path) / "windows.csv")) == len(windows)


def test_hardware_is_compared(scenario):
    kinds = ["llama3-8b-a100-tp1", "llama2-7b-a100-tp1"]
    result = provision(scenario, "ttft_p99<1", ["vllm_v1"], hardware=kinds)
    assert [plan.hardware for plan in result.plans] == kinds
    assert {own.kv_capacity for own in result.workers} == {131000, 117648}


def test_hardware_is_compared_with_one_engine_if_possible(scenario):
    def engines(engine):
        base = scenario.override(hardware="llama2-70b-a100-tp2", engine=engine)
        loads = _loads(base, ["llama2-70b-a100-tp2", "llama3-8b-a100-tp1"], None)
        return [load.scenario.engine for load in loads]

    assert engines("none") == ["none", "none"]
    assert engines("vllm-2024") == ["vllm-2024", "vllm-2024"]
    assert engines("vllm-2023") == ["vllm-2023", "early-2024"]  # the default of each
    assert engines({"base_ms": 3.0}) == [{"base_ms": 3.0}] * 2


def test_no_number_of_workers_suffices_below_the_maximum():
    result = provision(HEAVY.override(workload={"preset": "stab-1-1", "num_requests": 300, "rate": 300.0}),
                       "ttft_p99<1", ["vllm_v1"], most_workers=2)  # fmt: skip
    (plan,) = result.plans
    assert plan.simulated is None
    assert plan.cost_per_hour is None
    assert plan.notes == ("no number up to 2 meets the targets.",)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("tbt_p99<0.001", r"it is 0\.0\d+ s at least"),
        ("ttft_p99<0.000001", r"it is 0\.\d+ s at least"),
        ("e2e_latency_mean<0.1", "s at least"),
        ("makespan<1", "s at least"),
        ("request_throughput>1000", "1/s at most"),
    ],
)
def test_unreachable_targets_are_reported_before_anything_runs(scenario, target, says):
    runs = []
    with pytest.raises(
        ConfigError, match=f"^no number of workers meets {target.replace('0.000001', '1e-06')}: .*{says}"
    ):
        provision(scenario, target, ["vllm_v1"], progress=runs.append)
    assert not runs


def test_slow_hardware_is_excluded_with_the_reason(scenario):
    kinds = ["llama3-8b-a100-tp1", "llama2-70b-a100-tp2"]
    result = provision(scenario, "tbt_p50<0.05", ["vllm_v1"], hardware=kinds)
    assert [plan.hardware for plan in result.plans] == kinds[:1]
    (note,) = [note for note in result.notes if "no number of workers" in note]
    assert note.startswith("llama2-70b-a100-tp2: no number of workers meets tbt_p50<0.05")


def test_windows_by_hand():
    times = np.array([10.0, 11, 19, 25, 34])
    assert cut(times, 10) == [(0, 10), (10, 24)]
    assert cut(times, 8) == [(0, 8), (8, 16), (16, 24)]
    assert cut(times, 9) == [(0, 9), (9, 18), (18, 24)]
    with pytest.raises(ConfigError, match="seconds > 0"):
        cut(times, 0)
    with pytest.raises(ConfigError, match="the trace is 24 s long"):
        cut(times, 24)


def window(start, end, theory, simulated, judged=True):
    return WindowPlan("a", "fcfs", "r", start, end, 50, 1.0, theory, judged, simulated)


def test_profiles_by_hand():
    windows = [window(0, 10, 1, 2), window(10, 20, 1, 4), window(20, 40, 3, None, judged=False)]
    assert WindowSummary.of(windows) == WindowSummary(peak=4, p95=4, mean=(20 + 40 + 60) / 40)
    assert WindowSummary.of([]) is None
    assert WindowSummary.of([*windows, window(40, 50, 1, None)]) is None


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"prices": {"h100": 1}}, UnknownNameError, "with a price"),
        ({"prices": {"llama3-8b-a100-tp1": -1}}, ConfigError, "expected a number ≥ 0"),
        ({"prices": "cheap"}, ConfigError, "expected a number ≥ 0"),
        ({"hardware": []}, ConfigError, "at least one name"),
        ({"hardware": ["nope"]}, UnknownNameError, "nope"),
        ({"routers": ["round_robin", "round_robin"]}, ConfigError, "all different"),
        ({"window": 10.0}, ConfigError, "windows need a trace"),
        ({"most_workers": 0}, ConfigError, "most workers 0"),
        ({"targets": ()}, ConfigError, "no targets"),
        ({"scenario": "agent-sessions"}, ConfigError, "theory needs the same arrivals for every schedule"),
        ({"scenario": "a100-llama3-8b-disaggregated"}, ConfigError, "groups of workers"),
    ],
)
def test_errors(changes, error, says):
    with pytest.raises(error, match=says):
        provision(**{"scenario": HEAVY, "targets": TARGETS, "policies": ["vllm_v1"], **changes})
