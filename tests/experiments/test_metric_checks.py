"""Registered metrics, their checks, and the example of docs/own-metric.md."""

import importlib.util
import json
import math
import re
import sys
from pathlib import Path

import pytest

import kvgym
from kvgym.cli.console import heading
from kvgym.errors import ConfigError, ContractError, UnknownNameError
from kvgym.experiments import check_metric
from kvgym.experiments.identity import setting_key
from kvgym.experiments.runs import Player
from kvgym.experiments.scenario import load_scenario
from kvgym.metrics.catalogue import METRICS, STANDARD_METRICS, metric_info, metric_names
from kvgym.studies.tuning.optuna_search import counts_finished_only

ROOT = Path(__file__).parents[2]
NAME = "acme_normalized_latency"


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Remove what a test registers."""
    monkeypatch.setattr(METRICS, "_items", dict(METRICS._items))


@pytest.fixture
def example(monkeypatch):
    """The example of the page, imported as a module of another package."""
    spec = importlib.util.spec_from_file_location(
        "acme_metrics", ROOT / "scripts" / "examples" / "acme_metrics.py"
    )
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "acme_metrics", module)
    spec.loader.exec_module(module)
    return module


def test_the_example_of_the_page_passes_its_checks(example):
    (check,) = re.findall(
        r"(?<! -->\n)```python\n(.*?)```", (ROOT / "docs" / "own-metric.md").read_text("utf-8"), re.DOTALL
    )
    assert "check_metric" in check
    exec(check, {})


def test_it_is_a_metric_like_others(example, tmp_path):
    assert metric_names() == (*STANDARD_METRICS, NAME)
    assert metric_info(NAME).unit == "s"
    assert heading(NAME) == "acme normalized latency (s)"
    assert counts_finished_only(NAME)
    scenario = load_scenario("mc-sf-model-2")
    before = setting_key(scenario)
    found = kvgym.compare(scenario, ["mc_sf", "fcfs"], seeds=2, folder=tmp_path)
    assert all(found.values("fcfs", NAME) > 0)
    found.save(tmp_path)
    assert NAME in json.loads((tmp_path / "summary.json").read_text())["policies"]["fcfs"]
    tuned = kvgym.tune(
        "mc_sf", scenario, metric=NAME, also=["evictions"], seeds=1, space={"protection": [0.1]}
    )
    assert tuned.best.value > 0
    assert list(tuned.best.others) == ["evictions"]
    assert kvgym.studies.parse_targets(f"{NAME}<100ms")[0].bound == 0.1
    del METRICS._items[NAME]
    assert setting_key(scenario) != before


def test_sweeps_and_reports_have_it(example, tmp_path):
    plan = {
        "scenario": "mc-sf-model-2",
        "fields": {"kv_capacity": [60, 80]},
        "policies": ["fcfs"],
        "seeds": 1,
    }
    result = kvgym.sweep({**plan, "metrics": [NAME]})
    assert result.values(0, "fcfs", NAME)[0] > 0
    comparison = kvgym.compare("mc-sf-model-2", ["fcfs"], seeds=1)
    page = kvgym.write_report(comparison, tmp_path / "report.html").read_text("utf-8")
    assert "mean end-to-end latency per output token" in page


def test_its_value_by_hand(example):
    """Requests of 2 and 4 tokens arrive at 0 and 1 and start at once: 2 / 2 and 4 / 4 batches of a second per token."""
    system = kvgym.System(kv_capacity=100, batch_time=kvgym.make_batch_time({"kind": "unit"}))
    table = kvgym.RequestTable([0, 1], [3, 3], [2, 4])
    result = kvgym.simulate(system, table, "fcfs")
    assert METRICS[NAME].value(result) == 1.0
    assert kvgym.compute_metrics(result, [NAME]) == {NAME: 1.0}
    assert kvgym.compute_metrics(result)[NAME] == 1.0


def test_environments_report_the_standard_metrics(example):
    import gymnasium as gym

    env = gym.make("kvgym/AdmitCount-v0", scenario="mc-sf-model-1", num_requests=3)
    env.reset(seed=0)
    ended = False
    while not ended:
        _, _, terminated, truncated, info = env.step(env.unwrapped.action_space.n - 1)
        ended = terminated or truncated
    assert len(info["metrics"]) == len(STANDARD_METRICS) == len(env.unwrapped.metric_names)
    assert NAME in env.unwrapped.metrics()


def mean_clock(result):
    return float(result.worker["clock"].mean())


def test_a_metric_that_fails_fails_its_run_alone():
    kvgym.register_metric("acme_broken", "raises")(lambda result: 1 / 0)
    with pytest.warns(RuntimeWarning, match="runs failed"):
        found = kvgym.compare("mc-sf-model-1", ["fcfs"], seeds=1)
    assert "metric" in found.errors()["fcfs"]
    assert "ZeroDivisionError" in found.errors()["fcfs"]
    assert math.isnan(found.values("fcfs", "e2e_latency_mean")[0])


def test_workers_need_a_metric_of_a_module():
    kvgym.register_metric("acme_local", "defined here")(lambda result: 1.0)
    with pytest.raises(ConfigError, match=r"'acme_local' is defined inside a function.*jobs = 1"):
        Player().__getstate__()
    del METRICS._items["acme_local"]
    kvgym.register_metric("acme_clock", "mean clock")(mean_clock)
    player = Player()
    state = player.__getstate__()
    del METRICS._items["acme_clock"]
    Player.__new__(Player).__setstate__(state)
    assert METRICS["acme_clock"].measure is mean_clock


def test_a_cell_can_be_run_again():
    for unit in ("s", "ms"):
        kvgym.register_metric("acme_clock", "mean clock", unit=unit)(mean_clock)
    assert metric_info("acme_clock").unit == "ms"
    with pytest.raises(ConfigError, match="already registered"):
        kvgym.register_metric("acme_clock", "another")(lambda result: 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "ttft_p99"}, "no standard metric has"),
        ({"name": "acme cost"}, "expected an identifier"),
        ({"summary": "two\nlines"}, "summary = .*expected one line"),
        ({"unit": ""}, "unit = ''; expected one line"),
        ({"lower_is_better": "yes"}, "lower_is_better = 'yes'; valid: True, False, None"),
        ({"finished_only": None}, "finished_only = None; valid: True, False"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        kvgym.register_metric(**{"name": "acme_cost", "summary": "cost", **arguments})


def changes(result):
    result.requests["finish_time"][0] += 1
    return 0.0


def counter(result):
    counter.calls = getattr(counter, "calls", 0) + 1
    return counter.calls


def infinite(result):
    return math.inf


def text(result):
    return "1"


def nothing(result):
    return float(result.requests["finish_time"].mean())  # NaN where a request has not finished


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (changes, "a run with evictions: it changes the result"),
        (counter, "and 2 when computed again|and 2.0 when computed again"),
        (infinite, "returned inf; expected a finite number"),
        (text, "returned '1'; expected a finite number"),
        (lambda result: 0.0, "cannot be sent to other processes"),
    ],
)
def test_checks_find_mistakes(measure, message):
    kvgym.register_metric("acme_wrong", "wrong")(measure)
    with pytest.raises(ContractError, match=message):
        check_metric("acme_wrong")


def test_checks_pass_metrics_without_a_value():
    kvgym.register_metric("acme_nan", "may have no value")(nothing)
    check_metric("acme_nan")
    with pytest.raises(UnknownNameError, match="unknown metric 'acme_other'"):
        check_metric("acme_other")
