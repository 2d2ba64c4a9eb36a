"""``kvgym bound`` and ``kvgym compare --bound``."""

import json
import time

import pytest

from helpers.amount import number
from kvgym.cli import progress
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import BOUND_EFFORT, compare
from kvgym.experiments.runs import Player
from kvgym.experiments.scenario import load_scenario
from kvgym.report import content, plots
from kvgym.report.html import render
from kvgym.theory.hindsight import bounds
from kvgym.theory.hindsight.bounds import unbeatable


def test_bound_shows_both_ends(kvgym):
    out = kvgym.output("bound", "-n", 30, "-p", "mc_sf")
    assert "no less than" in out
    assert "no more than" in out
    assert "30 requests" in out


def test_bound_as_json(kvgym, azure_trace):
    out = kvgym.output(
        f"bound --trace {azure_trace} --hardware llama3-8b-a100-tp1 -n 50 --json --metrics e2e_latency_mean,makespan"
    )
    found = json.loads(out)
    assert found["requests"] == 50
    assert list(found["bounds"]) == ["e2e_latency_mean", "makespan"]
    for interval in found["bounds"].values():
        assert 0 < interval["lower"] <= interval["upper"]
        assert 0 <= interval["gap"] < 1


def test_bound_shows_progress(kvgym, monkeypatch):
    seen = []
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress.Steps, "update", lambda self, text, *_: seen.append(text))
    kvgym("bound", "-n", 5, "-p", "fcfs", "--metrics", "makespan")
    assert seen == ["run of clairvoyant", "run of fcfs", "bound on makespan"]


def test_bounds_that_are_found_within_a_limit_are_shown(kvgym, monkeypatch):
    find = bounds.bound

    def slow(table, system, metric, **options):
        if metric == "makespan":
            time.sleep(30)
        return find(table, system, metric, **options)

    monkeypatch.setattr(bounds, "bound", slow)
    small = ("bound", "-n", 5, "--no-progress", "--json", "--metrics")
    code, out, err = kvgym(*small, "ttft_mean,makespan,e2e_latency_mean", "--time-limit", "8s")
    assert code == 0
    assert list(json.loads(out)["bounds"]) == ["ttft_mean"]
    assert "note: not found within the time limit: makespan, e2e_latency_mean" in err
    code, out, err = kvgym(*small, "makespan", "--time-limit", "1ms")
    assert (code, out) == (2, "")
    assert "--time-limit 0.001: no bound was found in that time" in err


def test_metrics_without_bounds_are_an_error(kvgym):
    err = kvgym.error("bound", "-n", 5, "--metrics", "tbt_p99")
    assert "no bound on metric 'tbt_p99'; there is one on: e2e_latency_mean" in err


@pytest.mark.parametrize("command", ["bound", "compare"])
@pytest.mark.parametrize("metrics", ["", ","])
def test_metrics_must_be_named(kvgym, command, metrics):
    err = kvgym.error(command, "-n", 5, "--metrics", metrics)
    assert f"--metrics {metrics!r} names no metric" in err


def test_clairvoyant_policies_are_marked_outside_comparisons(kvgym):
    for command in (
        ("run", "-p", "clairvoyant", "-n", 5),
        ("sweep", "rate=1,2", "num_requests=5", "-p", "clairvoyant,fcfs", "--seeds", 1, "--no-report"),
        ("tune", "-p", "clairvoyant", "-n", 5, "--seeds", 1, "--trials", 1),
        ("capacity", "-n", 20, "-p", "clairvoyant", "--seeds", 1, "--no-report"),
    ):
        out = kvgym.output(*command, "-o", command[0])
        assert "knows the true lengths" in " ".join(out.split()), command


def test_compare_with_a_bound(kvgym, tmp_path):
    out = kvgym.output("compare -n 40 --seeds 2 -p fcfs,mc_sf --bound -o res --no-report")
    assert "clairvoyant*" in out
    assert "× optimum" in out
    assert "no scheduler below" in out
    summary = json.loads((tmp_path / "res" / "summary.json").read_text())
    assert summary["clairvoyant"] == ["clairvoyant"]
    assert set(summary["bound"]["by_seed"]) == {"0", "1"}
    assert all(times >= 1 for times in summary["bound"]["at_most"].values())


@pytest.fixture(scope="module")
def compared():
    scenario = build_scenario("a100-llama2-70b", num_requests=60)
    return compare(scenario, ["clairvoyant", "fcfs", "mc_sf"], seeds=2, bound=True)


def test_clairvoyant_policies_are_never_the_best(compared):
    assert compared.policies == ("clairvoyant", "fcfs", "mc_sf")
    assert compared.clairvoyant == {"clairvoyant"}
    assert compared.reference("e2e_latency_mean") == "fcfs"
    assert content.lead(compared).partition(": ")[2].startswith(("mc_sf", "fcfs"))
    rows = {row["policy"]: row["cells"] for row in content.main_table(compared, "fcfs")["rows"]}
    assert not any(cell["best"] for cell in rows["clairvoyant"])
    assert content.marks(compared)["clairvoyant"][0] == "clairvoyant"
    assert rows["mc_sf"][2]["text"].startswith("≤ ")


def test_bounds_use_the_drawn_memory(kvgym):
    """Each seed of Arrival Model 1 has its own memory: the bound of another memory would be invalid."""
    found = compare("mc-sf-model-1", ["mc_sf"], seeds=number(6, 2), bound=True)
    model = load_scenario("mc-sf-model-1")
    assert len({model.of_seed(seed).make_system().kv_capacity for seed in range(3)}) == 3
    for seed, own in enumerate(found.bounds):
        system, table = Player().requests(model, seed)
        assert own == unbeatable(table, system, "e2e_latency_mean", effort=BOUND_EFFORT)
        out = kvgym.output("bound -s mc-sf-model-1 --seed", seed, "--metrics", "makespan", "--json")
        lower = json.loads(out)["bounds"]["makespan"]["lower"]
        assert lower == unbeatable(table, system, "makespan").value


def test_the_report_shows_the_bound(compared):
    (panel,) = plots.latency_bars(compared).panels
    assert panel.rules == [("x", compared.bound().value, "")]
    assert panel.y.quantity.names[0] == "clairvoyant *"
    page = render(compared)
    assert "a lower bound for any scheduler" in page
    assert "times the optimum" in page


def test_without_bounds_none_are_shown():
    plain = compare(build_scenario("a100-llama2-70b", num_requests=20), ["fcfs", "mc_sf"], seeds=1)
    assert plain.bounds == ()
    assert plain.at_most("fcfs") != plain.at_most("fcfs")
    assert "optimum" not in render(plain)
