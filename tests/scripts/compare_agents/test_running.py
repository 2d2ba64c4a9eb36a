"""Running and storing: finished runs are not repeated, and an interruption loses at most one job."""

import json
from dataclasses import dataclass

import pytest
from compare_agents.benchmark import Outcome
from compare_agents.contestants import Contestant, Given
from compare_agents.contests import Contest, Seeds
from compare_agents.running import run_contests
from compare_agents.store import Store

from helpers.comparing_runs import small
from kvgym.errors import ConfigError

PLAYED = []


@dataclass(frozen=True)
class Noted(Contestant):
    """Notes that it has played."""

    value: float = 1.0
    stops: bool = False

    def description(self):
        return {"noted": self.label, "value": self.value}

    def play(self, benchmark):
        if self.stops:
            raise KeyboardInterrupt
        PLAYED.append(self.label)
        return Outcome(self.label, (self.value,) * len(benchmark.seeds))


def contests(*contestants, task="latency"):
    """Return a contest per contestant, each on a scenario of its own."""
    return [
        Contest(
            task,
            {"rate": str(k)},
            Seeds(2, 1).benchmark(small(rate=10.0 + k), "e2e_latency_mean"),
            (contestant,),
        )
        for k, contestant in enumerate(contestants)
    ]


@pytest.fixture(autouse=True)
def _nothing_played():
    PLAYED.clear()


def test_an_interrupted_comparison_goes_on(tmp_path):
    path = tmp_path / "figures" / "all.json"
    with pytest.raises(KeyboardInterrupt):
        run_contests(
            contests(Noted("x", "a"), Noted("x", "b", stops=True), Noted("x", "c")),
            Store(),
            path=path,
            jobs=1,
        )
    assert PLAYED == ["a"]
    assert len(Store.load(path).rows()) == 1
    whole = contests(Noted("x", "a"), Noted("x", "b"), Noted("x", "c"))
    run_contests(whole, Store.load(path), path=path, jobs=1)
    assert PLAYED == ["a", "b", "c"]
    run_contests(whole, Store.load(path), path=path, jobs=1)
    assert PLAYED == ["a", "b", "c"]
    assert [row.entries[0].label for row in Store.load(path).rows()] == ["a", "b", "c"]
    changed = contests(Noted("x", "a"), Noted("x", "b", 2.0), Noted("x", "c"))
    run_contests(changed, Store.load(path), path=path, jobs=1)
    assert PLAYED == ["a", "b", "c", "b"]
    assert [row.entries[0].outcome.values[0] for row in Store.load(path).rows()] == [1.0, 2.0, 1.0]


def test_other_tasks_stay(tmp_path):
    path = tmp_path / "all.json"
    run_contests(contests(Noted("x", "a")), Store(), path=path, jobs=1)
    run_contests(contests(Noted("x", "b"), task="slo"), Store.load(path), path=path, jobs=1)
    assert [row.task for row in Store.load(path).rows()] == ["latency", "slo"]
    run_contests(contests(Noted("x", "c")), Store.load(path), path=path, jobs=1)
    assert {row.task: row.entries[0].label for row in Store.load(path).rows()} == {"latency": "c", "slo": "b"}


def test_processes_find_the_same(tmp_path):
    contestants = [Given("scheduler", "fcfs", "fcfs"), Given("scheduler", "vllm", "vllm")]
    outcomes = []
    for processes in (1, 2):
        store = Store()
        run_contests(contests(*contestants), store, jobs=processes)
        outcomes.append(store.runs)
    assert outcomes[0] == outcomes[1]
    assert all(len(outcome.values) == 2 for outcome in outcomes[0].values())


def test_progress_counts_jobs():
    lines = []
    run_contests(contests(Noted("x", "a"), Noted("x", "b")), Store(), jobs=1, progress=lines.append)
    assert lines[0] == "2 contests, 2 runs to do in 2 jobs"
    assert [text.split(":")[0] for text in lines[1:]] == ["1/2 latency", "2/2 latency"]


@pytest.mark.parametrize("content", ["[1]", "{}", "not JSON", '{"format": "other", "runs": {}}'])
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ConfigError, match=r"compare_agents wrote .*; choose another file"):
        Store.load(tmp_path / "x.json")


def test_the_file_is_plain_json(tmp_path):
    store = Store(runs={"k": Outcome("fcfs", (1.5, 2.25)), "l": Outcome("vllm", error="livelock")})
    store.save(tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text())["runs"]["k"]["values"] == [1.5, 2.25]
    assert Store.load(tmp_path / "x.json") == store
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
