"""Folders of results: nothing is left of commands that fail, what is replaced is named, and searches go on."""

import json
import re
import shlex

import pytest

from kvgym.cli import result_folder
from kvgym.experiments import journal

LARGE = ("-n", 10, "--kv-capacity", 30, "--no-progress")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "fcfs", *LARGE),
        ("compare", "-p", "fcfs", "--seeds", 1, *LARGE),
        ("tune", "alpha_greedy", "--grid", "alpha=0.1/0.2", "--seeds", 1, *LARGE),
        ("tune", "fcfs,alpha_greedy", "--seeds", 1, *LARGE),
        ("capacity", "-n", 5, "-p", "fcfs", "--no-progress"),
        ("provision", "-n", 5, "-p", "fcfs", "--no-progress"),
        ("train", "range", "--ray", "auto"),
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("there", [False, True])
def test_a_command_that_fails_leaves_nothing(kvgym, tmp_path, command, there):
    if there:
        (tmp_path / "new" / "er").mkdir(parents=True)
        (tmp_path / "new" / "mine.txt").write_text("mine")
    assert kvgym(*command, "-o", "new/er/out")[0] != 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == (["er", "mine.txt", "new"] if there else [])
    assert kvgym(*command)[0] != 0  # the folder results/, too
    assert not (tmp_path / "results").exists()


def test_a_sweep_that_is_stopped_before_its_first_run_leaves_nothing(kvgym, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(journal.Journal, "add", stop)
    code, _, err = kvgym(
        "sweep", "rate=5,10", "num_requests=5", "-p", "fcfs", "--seeds", 1, "--no-progress", "-o", "s"
    )
    assert code == 130
    assert "kept" not in err
    assert not list(tmp_path.iterdir())


def test_what_was_there_is_named_when_it_is_replaced(kvgym, tmp_path):
    small = ("-n", 5, "--no-progress", "-o", "same")
    assert "replaced" not in kvgym("run", "fcfs", *small)[2]
    (tmp_path / "same" / "mine.txt").touch()
    err = kvgym("compare", "-p", "fcfs", "--seeds", 1, "--no-report", *small)[2]
    first = "note: replaced what was in same: requests.csv, summary.json, of: kvgym run fcfs -n 5 --no-progress -o same"
    assert err.strip() == first
    (tmp_path / "same" / "config.json").write_text("no JSON")
    (tmp_path / "same" / "summary.json").write_text("[]")
    code, out, err = kvgym("run", "fcfs", *small, "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["finished"] == 5  # the note is not among the results
    assert err.startswith("note: replaced what was in same: runs.csv")
    assert "of:" not in err
    assert (tmp_path / "same" / "mine.txt").exists()


def stop_after(monkeypatch, count):
    """Have Ctrl-C end what is run once so many runs have been kept; returns the keys of all that are."""
    add, seen = journal.Journal.add, []

    def counted(self, key, played):
        add(self, key, played)
        seen.append(key)
        if len(seen) == count:
            raise KeyboardInterrupt

    monkeypatch.setattr(journal.Journal, "add", counted)
    return seen


SEARCHES = {
    "capacity": ("capacity", "-n", 60, "--seeds", 2, "-p", "fcfs", "--tolerance", 0.5, "--no-figure"),
    "provision": ("provision", "-n", 60, "-p", "fcfs", "--slo", "ttft_p99<200ms"),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_go_on_where_they_stopped(kvgym, tmp_path, monkeypatch, name):
    command = (*SEARCHES[name], "--jobs", 1, "--no-progress")
    result = f"{name}.json"
    seen = stop_after(monkeypatch, 0)
    assert kvgym(*command, "-o", "whole")[0] == 0
    total, stop = len(seen), len(seen) // 2
    assert not (tmp_path / "whole" / "unfinished.jsonl").exists()
    seen = stop_after(monkeypatch, stop)
    code, _, err = kvgym(*command, "-o", "again")
    assert code == 130
    assert "stopped; what was run is kept: the same command with --out again goes on" in err
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["unfinished.jsonl"]
    assert kvgym(*command, "-o", "again")[0] == 0
    assert len(seen) == len(set(seen)) == total
    assert not (tmp_path / "again" / "unfinished.jsonl").exists()

    def outcome(folder):
        content = json.loads((tmp_path / folder / result).read_text())
        content.pop("simulated_seconds_of_work", None)
        for worker in content.get("workers", ()):
            worker.pop("wall_time")
        return content

    assert outcome("again") == outcome("whole")


def test_another_measure_is_another_run():
    from kvgym.experiments.capacity.estimates import batch_figures
    from kvgym.experiments.capacity.witness import backlog_growth
    from kvgym.experiments.identity import run_key
    from kvgym.policy import make_policy

    keys = {
        run_key("s", make_policy("fcfs"), None, 0, measure)
        for measure in (None, batch_figures, backlog_growth)
    }
    assert len(keys) == 3


def test_the_folder_of_a_command_is_forgotten_with_it(kvgym, tmp_path):
    kvgym("run", "fcfs", "-n", 5, "--no-progress", "-o", "one")
    assert list(result_folder._folders) == [result_folder.Path("one")]
    kvgym("list", "policies")
    assert not result_folder._folders


def stop(*_, **__):
    raise KeyboardInterrupt


def test_a_report_that_is_stopped_says_how_to_get_it(kvgym, tmp_path, monkeypatch):
    small = ("-p", "fcfs", "--seeds", 1, "--no-progress")
    with monkeypatch.context() as patched:
        patched.setattr("kvgym.report.write_sweep_report", stop)
        code, _, err = kvgym("sweep", "rate=5,10", "num_requests=5", *small, "-o", "my sweep")
        assert code == 130
        assert "stopped before report.html was written; the other results are in my sweep" in err
        (again,) = re.findall(r"to get it: kvgym (.*) \(nothing is run again\)", err)
        patched.setattr("kvgym.report.write_report", stop)
        code, _, err = kvgym("compare", "-n", 5, *small, "-o", "one")
        assert code == 130
        assert "report.html was written; the other results are in one; to get it: the same command" in err
    assert (tmp_path / "my sweep" / "summary.json").exists()
    assert (tmp_path / "one" / "summary.json").exists()
    code, out, _ = kvgym(*shlex.split(again))
    assert code == 0
    assert "2 runs, 2 of them known before" in out
    assert (tmp_path / "my sweep" / "report.html").exists()


def test_tables_of_a_sweep_that_are_stopped_leave_the_runs(kvgym, monkeypatch):
    monkeypatch.setattr("kvgym.experiments.sweeping.sweep.SweepResult.save", stop)
    code, _, err = kvgym(
        "sweep", "rate=5", "num_requests=5", "-p", "fcfs", "--seeds", 1, "--no-progress", "-o", "s"
    )
    assert code == 130
    assert "interrupted; what was run is kept: kvgym sweep --resume --out s" in err
