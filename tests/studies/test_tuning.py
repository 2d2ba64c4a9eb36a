"""Tuning: small searches by hand, disqualified trials, and the registry."""

import dataclasses
import json
import math
import sys

import polars as pl
import pytest

from kvgym.baselines.request_level import RequestLevel
from kvgym.errors import ConfigError, KVGymError
from kvgym.experiments.comparison import label_of
from kvgym.experiments.scenario import Scenario
from kvgym.policies.policy import POLICIES, make_policy, policy_defaults
from kvgym.studies.sweeping.plan import grid_points
from kvgym.studies.tuning.search_space import parse_space, plan_search, search_space_of
from kvgym.studies.tuning.tune import tune
from kvgym.utils.hyperparameters import declared


def scenario(output_len=2, kv_capacity=100, **changes):
    """Four requests at time 0 with prompts of 1; an iteration takes a second per request in it."""
    constant = {"kind": "independent", "prompt": {"kind": "constant", "value": 1}}
    source = {
        "name": "equal",
        "lengths": {**constant, "output": {"kind": "constant", "value": output_len}},
        "arrivals": {"kind": "all_at_once"},
        "num_requests": 4,
        "predictions": {"kind": "exact"},
    }
    batch_time = {"kind": "affine", "constant": 0.0, "per_decode_token": 1.0, "per_prefill_token": 1.0}
    fields = {"name": "equal", "summary": "equal requests", "batch_time": batch_time}
    return Scenario(**{**fields, "kv_capacity": kv_capacity, "workload": source, **changes})


def values(result):
    return {trial.spec: trial.value for trial in result.trials}


def test_by_hand():
    # One at a time they finish at 2, 4, 6, 8; in pairs at 4, 4, 8, 8; all together (16 by default) at 8.
    result = tune("request_level", scenario(), space={"batch": [4, 2, 1]}, seeds=2)
    assert values(result) == {
        "request_level": 8,
        "request_level:batch=4": 8,
        "request_level:batch=2": 6,
        "request_level:batch=1": 5,
    }
    assert [t.spec for t in result.ranking()] == [
        "request_level:batch=1", "request_level:batch=2", "request_level", "request_level:batch=4",
    ]  # fmt: skip
    assert result.seeds == (1000, 1001)
    assert result.best.values == (5, 5)
    assert result.ratio(result.best).value == 5 / 8
    assert make_policy(result.best.spec).hyperparameters() == {"batch": 1}
    assert result.hyperparameters == {"batch": 1}


def test_the_metric_defines_the_direction():
    # Equal rates are fairest: all together. Of equals the first, the default, wins.
    result = tune("request_level", scenario(), space={"batch": [1, 4]}, seeds=1, metric="jain_fairness")
    assert result.best is result.default
    assert result.best.value == pytest.approx(1)
    assert min(result.trials, key=lambda t: t.value).spec == "request_level:batch=1"


def test_fixed_hyperparameters_stay():
    small = Scenario(
        name="small", summary="", hardware="llama2-70b-a100-tp2",
        workload={"preset": "lmsys", "num_requests": 60},
    )  # fmt: skip
    result = tune("sarathi:order=spf,watermark=0.0", small, seeds=1)
    assert set(result.space) == {"token_budget", "max_batch_requests"}
    assert result.default.spec == "sarathi:order=spf,watermark=0.0"
    for trial in result.trials:
        assert make_policy(trial.spec).order == "spf"
        assert label_of(make_policy(trial.spec)) == trial.spec
    assert len(result.trials) == plan_search(result.policy).size  # the default is on the grid, once
    assert result.trials[0].hyperparameters == {"token_budget": 512, "max_batch_requests": 128}
    assert tune("sarathi:order=spf,watermark=0.0", small, seeds=1) == result
    assert tune(make_policy("sarathi", order="spf", watermark=0.0), small, seeds=[1000]) == result


def test_failures_are_disqualified():
    # 24 tokens hold two requests of 11: a margin of 0.8 admits two, 0.9 one, and 0.3 or 0.5 more, for ever.
    unit = {"kind": "unit"}
    crowded = scenario(output_len=10, kv_capacity=24, batch_time=unit)
    result = tune("alpha_greedy", crowded, space={"alpha": [0.5, 0.9, 0.8]}, seeds=2)
    assert result.best.spec == "alpha_greedy:alpha=0.8"
    assert result.best.value == 15  # two at 10, two at 20
    assert result.trials[2].value == 25
    assert "no progress" in result.default.error
    assert result.default.error.startswith("seed 1000")
    assert math.isnan(result.default.value)
    assert math.isnan(result.ratio(result.best).value)
    assert any("2 of 4 trials failed; the first, alpha_greedy:" in note for note in result.notes)
    with pytest.raises(
        KVGymError, match=r"alpha_greedy: every trial failed; the first, alpha_greedy: seed 1"
    ):
        tune("alpha_greedy", crowded, space={"alpha": [0.5]}, seeds=1)


def test_latencies_are_compared_between_runs_that_finish_equally_many():
    # The last iteration to begin by 3.5 s ends at 4 for pairs, which have finished, and for all together, which
    # have not; threes begin at 3 and finish at 6.
    short = scenario(system={"horizon": 3.5})
    result = tune("request_level", short, space={"batch": [2, 3]}, seeds=1)
    assert values(result) == pytest.approx(
        {"request_level": math.nan, "request_level:batch=2": 4, "request_level:batch=3": 6}, nan_ok=True
    )
    assert result.best.spec == "request_level:batch=3"
    assert "the run has no e2e_latency_mean" in result.default.error
    assert "finished 2 requests, another trial 3" in result.trials[1].error
    assert any("left more requests unfinished" in note for note in result.notes)
    unfinished = tune("request_level", short, space={"batch": [2, 3]}, seeds=1, metric="finished")
    assert not any(t.error for t in unfinished.trials)


def test_bounds_by_hand():
    # As in test_by_hand, mean latencies 8, 8, 6, 5 for default, 4, 2, 1; first tokens at 4 (twice), 3 and 4, and
    # with one at a time at 1, 3, 5, 7. Token throughput is 1/s for all, largest latency 8.
    batches = {"batch": [4, 2, 1]}
    result = tune(
        "request_level", scenario(), space=batches, seeds=2, subject_to="e2e_latency_mean<=6,unfinished<1"
    )
    assert [t.spec for t in result.ranking()] == ["request_level:batch=1", "request_level:batch=2"]
    assert result.subject_to == ("e2e_latency_mean<=6", "unfinished<1")
    assert result.trials[2].others == {"e2e_latency_mean": 6, "unfinished": 0}
    assert result.default.error == "misses e2e_latency_mean<=6 (8)"
    assert result.default.excess == pytest.approx(1 / 3)
    assert result.default.value == 8
    assert any("2 of 4 trials missed a bound; the first, request_level" in note for note in result.notes)
    assert math.isnan(result.ratio(result.best).value)
    # All serve a token per second: of equals the first, unless a bound says otherwise.
    throughput = {"space": batches, "seeds": 1, "metric": "token_throughput"}
    assert tune("request_level", scenario(), **throughput).best.spec == "request_level"
    bounded = tune("request_level", scenario(), **throughput, subject_to=["e2e_latency_mean<5.5"])
    assert bounded.best.spec == "request_level:batch=1"
    with pytest.raises(
        KVGymError, match=r"no trial meets every bound; the closest, request_level:batch=1, misses"
    ):
        tune("request_level", scenario(), space=batches, seeds=1, subject_to="e2e_latency_mean<4")


def test_contradictory_values():
    # Fractions of a budget need random=True.
    result = tune("flow_control", scenario(), space={"budget": [0.5, 1], "random": [False, True]}, seeds=1)
    assert "whole number" in result.trials[1].error
    assert len(result.ranking()) == 4


def test_a_large_grid_is_sampled_without_replacement():
    space = {"batch": list(range(1, 101))}
    points = grid_points(space, 10)
    assert points == grid_points(space, 10)
    assert [p["batch"] for p in points] == sorted({p["batch"] for p in points})
    assert len(points) == 10
    assert [p["batch"] for p in grid_points(space)] == space["batch"]
    result = tune("request_level", scenario(), space=space, seeds=1, trials=10)
    assert {t.spec for t in result.trials[1:]} == {f"request_level:batch={p['batch']}" for p in points}
    assert "10 of the grid's 100 points, drawn at random (seed 0)." in result.notes
    two = grid_points({"overrun": ["ignore", "extend"], "protection": [0.1, 0.2]})
    assert [(p["overrun"], p["protection"]) for p in two] == [
        ("ignore", 0.1), ("ignore", 0.2), ("extend", 0.1), ("extend", 0.2),
    ]  # fmt: skip


def test_processes_change_nothing():
    seen = []
    space = {"alpha": [0.1, 0.3], "beta": [0.1, 0.5]}
    workload = {"preset": "lmsys", "num_requests": 150}
    small = Scenario(name="small", summary="", hardware="llama2-70b-a100-tp2", workload=workload)
    one, two = (
        tune("alpha_beta", small, space=space, seeds=2, jobs=w, progress=lambda *a: seen.append(a))
        for w in (1, 2)
    )
    assert one == two
    assert sorted(text for text, _, _ in seen[:10]) == sorted(text for text, _, _ in seen[10:])
    assert [done for _, done, _ in seen[:10]] == list(range(1, 11))
    assert {total for _, _, total in seen} == {10}


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_has_a_search_space(name):
    space = search_space_of(POLICIES[name])
    if not policy_defaults(POLICIES[name]):
        assert space == plan_search(name).space == {}
        return
    assert space, f"{name} declares no values that kvgym tune tries"
    assert set(space) <= set(policy_defaults(POLICIES[name]))
    plan = plan_search(name)
    assert 1 < plan.size <= 120
    for hyperparameter, given in space.items():
        for value in given:
            point = {hyperparameter: value}
            assert plan.make(point).hyperparameters() == point
            made = make_policy(plan.spec(point))
            assert {**plan.defaults, **made.hyperparameters()} == {**plan.defaults, **point}
            assert label_of(made) == plan.spec(point)


def test_nothing_to_search():
    result = tune("request_level:batch=2", scenario(), seeds=1)
    assert [t.spec for t in result.trials] == ["request_level:batch=2"]
    assert result.best.value == 6
    assert result.notes == ("request_level:batch=2 has nothing to search.",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"space": {"size": [1]}}, r"no hyperparameter 'size'; valid: batch=16"),
        ({"space": {"batch": []}}, "expected the values to search"),
        ({"space": {"batch": "1/2"}}, "expected the values to search"),
        ({"space": {"batch": [1, 1]}}, "a value is given twice"),
        ({"space": {"batch": [0, 1]}}, "batch = 0; expected a whole number"),
        ({"space": {"batch": ["8"]}}, "cannot be written"),
        ({"policy": "request_level:batch=2", "space": {"batch": [1]}}, "request_level:batch=2 fixes it"),
        ({"metric": "e2e_latency"}, "unknown metric 'e2e_latency'. Did you mean 'e2e_latency_"),
        (
            {"metric": "kv_utilisation"},
            "neither more nor less of it is better; choose one of e2e_latency_mean",
        ),
        ({"search": "random"}, "expected grid or optuna"),
        ({"subject_to": "ttft_p99>1"}, "less of ttft_p99 is better"),
        ({"subject_to": "latency<1"}, "unknown metric 'latency'"),
        ({"trials": 0}, "trials = 0; expected a whole number"),
        ({"jobs": -1}, "jobs = -1; expected a whole number"),
        ({"seeds": []}, "at least one"),
        ({"seeds": [3, 3]}, "expected different"),
        ({"policy": "a_min"}, "needs length_interval"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(ConfigError, match=message):
        tune(**{"policy": "request_level", "scenario": scenario(), **arguments})


def test_a_policy_without_a_search_space_needs_one(monkeypatch):
    untried = dataclasses.replace(declared(RequestLevel)["batch"], search=())
    monkeypatch.setattr(RequestLevel, "batch", untried)
    with pytest.raises(ConfigError, match=r"no default search space.*batch=16"):
        tune("request_level", scenario(), seeds=1)
    assert tune("request_level", scenario(), seeds=1, space={"batch": [1]}).best.value == 5


def test_saved_files(tmp_path):
    result = tune("request_level", scenario(), space={"batch": [1, 2]}, seeds=2)
    result.save(tmp_path / "new", command="kvgym tune")
    rows = pl.read_csv(tmp_path / "new" / "trials.csv")
    assert rows["spec"].to_list() == ["request_level", "request_level:batch=1", "request_level:batch=2"]
    assert rows["batch"].to_list() == [16, 1, 2]
    assert rows["e2e_latency_mean"].to_list() == [8, 5, 6]
    assert rows["seed_1001"].to_list() == [8, 5, 6]
    best = json.loads((tmp_path / "new" / "best.json").read_text())
    assert best["spec"] == "request_level:batch=1"
    assert best["value"] == {"value": 5, "low": 5, "high": 5, "n": 2}
    assert best["default"]["value"]["value"] == 8
    assert best["ratio_to_default"]["value"] == 0.625
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["space"] == {"batch": [1, 2]}
    assert config["seeds"] == [1000, 1001]
    assert config["command"] == "kvgym tune"
    assert Scenario(**config["scenario"]) == scenario()


def test_lists_are_written_as_in_specs():
    lists = plan_search("flow_control_classes", {"budgets": [[1, 2, 3], 4]})
    assert lists.space == {"budgets": ("1/2/3", 4)}
    assert lists.spec({"budgets": "1/2/3"}) == "flow_control_classes:budgets=1/2/3"


def test_optuna_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"needs optuna; pip install optuna \(or kvgym\[tune\]\)"):
        tune("request_level", scenario(), search="optuna")


def test_optuna_finds_the_best():
    optuna = pytest.importorskip("optuna")
    before = optuna.logging.get_verbosity()
    space = {"protection": [0.0, 0.05], "overrun": ["ignore", "extend"]}
    arguments = {"space": space, "seeds": 1, "search": "optuna", "trials": 20}
    result = tune("mc_sf", scenario(), **arguments)
    assert len({t.spec for t in result.trials}) == len(result.trials) == 4  # small spaces are exhausted
    assert tune("mc_sf", scenario(), **arguments) == result
    batches = {"batch": list(range(1, 60))}
    searched = tune("request_level", scenario(), space=batches, seeds=1, search="optuna", trials=8)
    assert len(searched.trials) == 9
    assert searched.best.value <= searched.default.value
    assert optuna.logging.get_verbosity() == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("protection=0:0.3:0.05", (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)),
        ("protection=0.1:0.34:0.1", (0.1, 0.2, 0.3)),
        ("batch=2:8:3", (2, 5, 8)),
        ("overrun=ignore/extend", ("ignore", "extend")),
        ("low_offset=none/5/7.5", (None, 5, 7.5)),
        ("budgets=4/4/4|8/8/8", ("4/4/4", "8/8/8")),
        ("paying_first=true", (True,)),
    ],
)
def test_grid_syntax(text, expected):
    (found,) = parse_space([text]).values()
    assert found == expected
    assert [type(x) for x in found] == [type(x) for x in expected]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["protection"], "not name=values; write name=1/2/3, name=low:high:step"),
        (["=1"], "not name=values"),
        (["a=1//2"], "a value is missing"),
        (["a=0:1"], "0:1 is not low:high:step"),
        (["a=0:x:1"], "0:x:1 is not low:high:step"),
        (["a=0:1:0"], "step > 0"),
        (["a=1:0:1"], "low ≤ high"),
        (["a=0:inf:1"], "finite"),
        (["a=0:1:1e-9"], "more than 10,000 values"),
        (["a=1", "a=2"], "a is given twice"),
    ],
)
def test_grid_mistakes(texts, message):
    with pytest.raises(ConfigError, match=message):
        parse_space(texts)
