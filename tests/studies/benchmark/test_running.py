import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvgym.baselines.first_come import FCFS
from kvgym.cli.commands.learning.benchmark import benchmark
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.runs import Played, Player, RunRecord
from kvgym.policies.policy import Decision, Policy, PolicyInfo
from kvgym.simulator.view import simulation_of
from kvgym.studies.benchmark.entries import Entry, load_entry
from kvgym.studies.benchmark.leaderboard import leaderboard, read_results
from kvgym.studies.benchmark.running import BenchmarkResult, planned_run, run_benchmark, value_of
from kvgym.studies.benchmark.scoring import scores_of
from kvgym.studies.benchmark.tasks import load_suite


def test_the_plain_rule_scores_nothing_and_gives_the_frozen_values(tmp_path):
    result = run_benchmark([load_entry("fcfs")], tasks=["hidden-kinds"], jobs=1)
    np.testing.assert_allclose(
        result.values["hidden-kinds"][0], load_suite().task("hidden-kinds").plain_values, rtol=1e-9
    )
    np.testing.assert_allclose(result.scores()["hidden-kinds"], 0, atol=1e-8)
    result.save(tmp_path / "fcfs.json")
    assert BenchmarkResult.load(tmp_path / "fcfs.json") == result


def test_evolved_and_numpy_agents_give_the_same_bits_in_every_number_of_processes():
    agents = [load_entry(name) for name in ("ranked_latency", "ppo_noisy")]
    one, two = (run_benchmark(agents, tasks=["applications"], jobs=jobs) for jobs in (1, 2))
    assert one.values == two.values
    assert not one.errors


def test_an_entry_that_lacks_information_counts_as_the_plain_rule():
    class Prompts(FCFS):
        """Needs what no server of the suite knows."""

        info = replace(FCFS.info, name="prompts", needs=frozenset({"features"}))

    result = run_benchmark([Entry("prompts", Prompts())], tasks=["hidden-kinds"], jobs=1)
    assert "scored as fcfs: policy 'prompts' needs features" in result.errors["hidden-kinds"]
    np.testing.assert_array_equal(result.scores()["hidden-kinds"], 0)


def test_a_run_that_fails_has_the_lowest_score():
    task, played = (
        load_suite().task("hidden-kinds"),
        Played(RunRecord("x", 0, {}, "no progress", False, 0.0), 9),
    )
    value, why = value_of(task, played)
    assert why == "no progress"
    np.testing.assert_array_equal(scores_of([value], [2.0], [1.0]), [-1])


def test_entries_by_name_class_and_agent():
    assert isinstance(load_entry("kvgym.baselines.first_come:FCFS").made, FCFS)
    assert load_entry("round_robin").role == load_entry("routing").role == "router"
    assert load_entry("ranked_latency").role == "scheduler"
    assert load_entry("clairvoyant").clairvoyant
    with pytest.raises(ConfigError, match="not a class derived from kvgym"):
        load_entry("kvgym.baselines.first_come:fcfs_kernel")
    assert load_entry("hpa:target=6").role == "autoscaler"
    with pytest.raises(ConfigError, match="for a router, and the entry is no router"):
        run_benchmark([load_entry("fcfs")], tasks=["routing-unequal"])
    with pytest.raises(ConfigError, match="got several kinds"):
        run_benchmark([load_entry("fcfs"), load_entry("round_robin")])


def test_the_command_writes_results_and_the_table(tmp_path, capsys):
    benchmark(["fcfs", "vllm_v1"], tasks=["hidden-kinds"], table=tmp_path, jobs=1, progress=False)
    assert "vllm_v1" in capsys.readouterr().out
    page = (tmp_path / "leaderboard.md").read_text()
    assert page == leaderboard(read_results(tmp_path))
    assert page.index("`vllm_v1`") < page.index("`fcfs`")
    content = json.loads((tmp_path / "fcfs.json").read_text())
    assert content["suite_hash"] == load_suite().hash_of("scheduler")
    assert content["versions"]["kvgym"]
    content["suite_hash"] = "0"
    (tmp_path / "fcfs.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="run it again"):
        leaderboard(read_results(tmp_path))


def test_an_entry_with_settings_by_task(tmp_path):
    path = tmp_path / "mine.yaml"
    (tmp_path / "own.json").write_text("{}")
    path.write_text("rule: fcfs\ntasks: {hidden-kinds: vllm_v1, applications: fcfs}\n")
    entry = load_entry(str(path))
    assert (entry.role, entry.below, entry.clairvoyant) == ("scheduler", "fcfs", False)
    both = run_benchmark([entry], tasks=["hidden-kinds", "applications"], jobs=1)
    alone = run_benchmark([load_entry("vllm_v1")], tasks=["hidden-kinds"], jobs=1)
    assert both.values["hidden-kinds"] == alone.values["hidden-kinds"]
    assert both.values["applications"][0] == pytest.approx(load_suite().task("applications").plain_values)
    assert both.settings == {"hidden-kinds": "vllm_v1", "applications": "fcfs"}
    for text, message in (
        ("rule: fcfs\ntasks: {hidden-kinds: hpa}\n", "hidden-kinds wants a scheduler, and hpa is none"),
        ("rule: fcfs\ntasks: {hidden-kinds: own.json}\n", "own.json"),
        ("rule: fcfs\n", "tasks"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_entry(str(path))
    path.write_text("rule: fcfs\ntasks: {other: fcfs}\n")
    with pytest.raises(UnknownNameError, match="hidden-kinds"):
        run_benchmark([load_entry(str(path))], jobs=1)


def test_autoscalers_play_fleets():
    """The frozen plain rule of a fleet is a constant size, and random sizes cost more."""
    task = load_suite().task("scale-cold")
    short = [load_entry(spec) for spec in (task.plain, "kvgym.studies.benchmark.players:RandomSizes")]
    player, scenario = Player(), task.scenario(load_suite().name)
    costs = []
    for entry in short:
        (played,) = player([planned_run(scenario, entry.on(task.name), task.seeds[0], "x")])
        costs.append(value_of(task, played)[0])
    assert costs[0] == pytest.approx(task.plain_values[0], rel=1e-9)
    assert costs[1] > costs[0]


class Peeking(Policy):
    """Admits the request that is really the shortest, and declares nothing."""

    info = PolicyInfo("peeking", "reads the true lengths")

    def schedule(self, view):
        ids = view.waiting.request_id
        order = ids[np.argsort(simulation_of(view).table.output_len[ids], kind="stable")]
        return Decision(admit=order[: int(view.num_active == 0)].tolist())


def test_a_policy_that_reads_what_it_does_not_declare_is_refused():
    with pytest.raises(ConfigError, match="Peeking': its decisions change with true lengths"):
        run_benchmark([Entry("mine:Peeking", Peeking())], tasks=["applications"], jobs=1)


@pytest.fixture(scope="module")
def stored():
    path = Path(__file__).parents[3] / "docs" / "benchmark" / "fcfs.json"
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "format is not"),
        ({"name": "<script>alert(1)</script>"}, "none of < >"),
        ({"name": "a | b"}, "none of < >"),
        ({"name": ""}, "at most 100 printable"),
        ({"name": None}, "name"),
        ({"specs": []}, "specs"),
        ({"specs": "fcfs"}, "specs"),
        ({"role": "king"}, "role"),
        ({"clairvoyant": "no"}, "clairvoyant"),
        ({"suite": "other"}, "unknown suite"),
        ({"suite_hash": "0"}, "run it again"),
        ({"values": {}}, "values"),
        ({"values": {"hidden-kinds": []}}, "1 trainings on 10 seeds"),
        ({"values": {"hidden-kinds": [[1.0]]}}, "1 trainings on 10 seeds"),
        ({"values": {"hidden-kinds": [[1.0] * 10] * 2}}, "1 trainings on 10 seeds"),
        ({"values": {"hidden-kinds": [[True] * 10]}}, "values"),
        ({"values": {"hidden-kinds": [[1e300] * 10]}}, "values"),
        ({"values": {"hidden-kinds": [[float("inf")] * 10]}}, "values"),
        ({"values": {"hidden-kinds": [[10**400] * 10]}}, "values"),
        ({"values": {"routing-unequal": [[1.0] * 10]}}, "no task 'routing-unequal' for schedulers"),
        ({"settings": ["hpa"]}, "settings"),
        ({"values": [1]}, "values"),
        ({"errors": {"hidden-kinds": 1}}, "errors"),
        ({"seconds": "9"}, "seconds"),
    ],
)
def test_damaged_results_are_named(tmp_path, stored, change: dict, message: str):
    path = tmp_path / "fcfs.json"
    path.write_text(json.dumps({**stored, **change}))
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        leaderboard(read_results(tmp_path))
    assert "fcfs.json" in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff\xfe", b"null", b'{"format": "kvgym-benchmark-result"}']
)
def test_other_files_are_named(tmp_path, content: bytes):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.json"):
        read_results(tmp_path)


def test_a_name_that_no_table_can_have_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match="choose another with --name"):
        run_benchmark([load_entry("fcfs")], name="<b>", tasks=["applications"], jobs=1)
