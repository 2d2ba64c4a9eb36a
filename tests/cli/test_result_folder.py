"""Result folders: failed commands leave nothing, replaced files are named, and searches resume."""

import json
import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvgym.cli import result_folder
from kvgym.cli.manifest import MANIFEST
from kvgym.errors import ConfigError
from kvgym.experiments import journal
from kvgym.utils.execution.threads import call_in_thread
from kvgym.utils.files import alone_in

LARGE = ("-n", 10, "--kv-capacity", 30, "--no-progress")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "-p", "fcfs", *LARGE),
        ("compare", "-p", "fcfs", "--seeds", 1, *LARGE),
        ("tune", "-p", "alpha_greedy", "--grid", "alpha=0.1/0.2", "--seeds", 1, *LARGE),
        ("tune", "-p", "fcfs,alpha_greedy", "--seeds", 1, *LARGE),
        ("capacity", "-n", 5, "-p", "fcfs", "--no-progress"),
        ("capacity", "provision", "-n", 5, "-p", "fcfs", "--no-progress"),
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


def test_a_sweep_stopped_before_its_first_run_leaves_nothing(kvgym, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(journal.Journal, "add", stop)
    code, _, err = kvgym("sweep rate=5,10 num_requests=5 -p fcfs --seeds 1 --no-progress -o s")
    assert code == 130
    assert "kept" not in err
    assert not list(tmp_path.iterdir())


def test_replaced_results_are_named(kvgym, tmp_path):
    small = ("-n", 5, "--no-progress", "-o", "same")
    assert "replaced" not in kvgym("run", "-p", "fcfs", *small)[2]
    (tmp_path / "same" / "mine.txt").touch()
    err = kvgym("compare", "-p", "fcfs", "--seeds", 1, "--no-report", *small)[2]
    first = (
        "note: replaced in same: requests.csv, summary.json, of: kvgym run -p fcfs -n 5 --no-progress -o same"
    )
    assert err.strip() == first
    (tmp_path / "same" / "config.json").write_text("no JSON")
    (tmp_path / "same" / "summary.json").write_text("[]")
    code, out, err = kvgym("run", "-p", "fcfs", *small, "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["finished"] == 5  # the note is not part of the output
    assert err.startswith("note: replaced in same: runs.csv")
    assert "of: kvgym compare -p fcfs --seeds 1 --no-report" in err
    assert (tmp_path / "same" / "mine.txt").exists()


SMALL = ("-n", 5, "--no-progress", "-o", "same")

FOREIGN = (
    ".env.tmpl", ".npmrc.tmp", ".probe", ".lock", "config.json", "summary.json", "requests.csv", "windows.csv",
    "best.json", "capacity.json", "estimates.csv", "report.html", "validation.png", "unfinished.jsonl", "runs.parquet",
)  # fmt: skip


def test_files_not_written_by_kvgym_stay(kvgym, tmp_path, monkeypatch):
    folder = tmp_path / "same"
    folder.mkdir()
    for name in FOREIGN:
        (folder / name).write_text(f"my {name}")
    monkeypatch.setattr("kvgym.experiments.result_files.has_pyarrow", lambda: False)
    code, _, err = kvgym("run", "-p", "fcfs", *SMALL)
    assert code == 0
    moved = {"summary.json", "requests.csv"}
    assert err.splitlines() == [
        f"note: same/{name} was not written by kvgym; it is now same/{name}.old" for name in sorted(moved)
    ]
    assert (
        kvgym("server", "validate", "same/requests.csv", "-p", "fcfs", "-o", "same")[0] == 0
    )  # an input file with the name of a result
    (folder / "unfinished.jsonl").rename(folder / "kept")
    assert kvgym("compare", "-p", "fcfs", "--seeds", 1, *SMALL)[0] == 0
    texts = [path.read_text() for path in folder.iterdir() if path.suffix not in (".png", ".parquet")]
    texts += [
        (folder / name).read_bytes().decode("utf-8", "replace")
        for name in ("validation.png.old", "runs.parquet")
    ]
    assert {f"my {name}" for name in FOREIGN} <= set(texts)


@pytest.mark.parametrize(
    "manifest",
    ["", "{", "[]", "null", "[" * 10**5, '{"files": ["mine.txt"]}', '{"command": 1, "files": ["mine.txt"]}', "\0"]
    + [
        json.dumps({"command": "kvgym", "files": ["mine.txt", name]})
        for name in (
            "../outside", "/etc/passwd", "a/../../outside", "..", ".", "", "a\\b", "c:x", "./mine.txt", 5, None,
            ["mine.txt"], "a\nb", ".kvgym-lock",
        )
    ],
)  # fmt: skip
def test_a_damaged_manifest_lists_nothing(kvgym, tmp_path, manifest):
    folder = tmp_path / "same"
    folder.mkdir()
    for path in (folder / "mine.txt", tmp_path / "outside"):
        path.write_text("mine")
    (folder / MANIFEST).write_text(manifest)
    assert "replaced" not in kvgym("run", "-p", "fcfs", *SMALL)[2]
    assert [path.read_text() for path in (folder / "mine.txt", tmp_path / "outside")] == ["mine", "mine"]
    assert json.loads((folder / MANIFEST).read_text())["files"] == ["requests.csv", "summary.json"]


def test_listed_files_are_removed_but_never_through_links(kvgym, tmp_path):
    folder, other = tmp_path / "same", tmp_path / "other"
    names = ("a.txt", "in/b.txt", "linked/c.txt", "link", "folder", "given.json")
    for path in (folder / "in", folder / "folder", other):
        path.mkdir(parents=True, exist_ok=True)
    (folder / "linked").symlink_to(other)
    (folder / "link").symlink_to(other / "c.txt")
    for path in (folder / "a.txt", folder / "in" / "b.txt", other / "c.txt"):
        path.write_text("x")
    (folder / MANIFEST).write_text(json.dumps({"command": "kvgym x", "files": names}))
    err = kvgym("run", "-p", "fcfs", *SMALL)[2]
    assert err.strip() == "note: replaced in same: a.txt, in/b.txt, of: kvgym x"
    assert {path.name for path in folder.iterdir()} == {
        "in", "linked", "link", "folder", "requests.csv", "summary.json", MANIFEST
    }  # fmt: skip
    assert (other / "c.txt").exists()


def test_links_in_a_result_folder_are_renamed(kvgym, tmp_path):
    folder, precious, other = tmp_path / "same", tmp_path / "precious", tmp_path / "other"
    precious.write_text("mine")
    for place in (folder, other):
        place.mkdir()
    for name in ("report.html", "runs.csv", "summary.json", "config.json", MANIFEST, ".probe"):
        (folder / name).symlink_to(precious)
    (folder / "vllm-bench").symlink_to(other)
    os.mkfifo(folder / "runs.parquet")
    compare = ("compare", "-p", "fcfs", "--seeds", 1, "--format", "vllm-bench")
    code, _, err = kvgym(*compare, *SMALL)
    assert code == 0
    assert precious.read_text() == "mine"
    assert not list(other.iterdir())
    assert "note: same/report.html was not written by kvgym; it is now same/report.html.old" in err
    assert (folder / "report.html.old").is_symlink()
    assert (folder / "report.html").read_text().startswith("<!")
    assert [path.name for path in (folder / "vllm-bench").iterdir()] == ["fcfs-seed0.json"]
    assert "was not written" not in kvgym(*compare, *SMALL)[2]


def test_an_input_file_stays_or_is_renamed(kvgym, tmp_path):
    assert kvgym("run", "-p", "fcfs", *SMALL)[0] == 0
    before = (tmp_path / "same" / "requests.csv").read_bytes()
    err = kvgym("compare", "-p", "fcfs", "--trace", "same/requests.csv", "--no-progress", "-o", "same")[2]
    assert "replaced in same: summary.json, of" in err
    assert (tmp_path / "same" / "requests.csv").read_bytes() == before
    assert kvgym("run", "-p", "fcfs", "--trace", "same/requests.csv", "--no-progress", "-o", "same")[0] == 0
    assert (tmp_path / "same" / "requests.csv.old").read_bytes() == before


@pytest.mark.parametrize(
    "command",
    [
        ("run", "-p", "fcfs", "-n", 5),
        ("compare", "-p", "fcfs", "--seeds", 1, "-n", 5, "--format", "vllm-bench"),
        ("capacity", "-p", "fcfs", "--seeds", 1, "-n", 20, "--tolerance", 0.5),
        ("sweep", "rate=5", "num_requests=5", "-p", "fcfs", "--seeds", 1),
        ("tune", "-p", "fcfs", "--seeds", 1, "-n", 5),
    ],
    ids=lambda command: command[0],
)
def test_a_folder_is_locked_until_all_results_are_written(kvgym, tmp_path, monkeypatch, command):
    written = []
    replace = os.replace

    def checked(source, target):
        if "same" in str(target):
            with pytest.raises(ConfigError, match="works on it"):
                call_in_thread(lambda: alone_in(tmp_path / "same").__enter__())
            written.append(target.name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", checked)
    assert kvgym(*command, "--no-progress", "-o", "same")[0] == 0
    found = {path.name for path in (tmp_path / "same").rglob("*") if path.is_file()}
    assert found - {"runs.jsonl"} == set(written)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    with alone_in(tmp_path / "same"):
        pass


def test_a_command_in_a_locked_folder_changes_nothing(kvgym, tmp_path):
    with ThreadPoolExecutor(1) as other:
        (tmp_path / "same").mkdir()
        lock = alone_in(tmp_path / "same")
        other.submit(lock.__enter__).result()
        code, _, err = kvgym("run", "-p", "fcfs", *SMALL)
        other.submit(lock.__exit__, None, None, None).result()
    assert code == 2
    assert "works on it; wait until that has ended" in err
    assert not list((tmp_path / "same").iterdir())


def test_default_folders_of_one_second_differ(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = [result_folder.default_folder("run", "x") for _ in range(3)]
    assert len({*found}) == 3
    assert all(folder.is_dir() for folder in found)


def test_a_foreign_plan_file_is_not_replaced(kvgym, tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "plan.json").write_text("mine")
    sweep = ("sweep", "rate=5", "num_requests=5", "-p", "fcfs", "--seeds", 1, "--no-progress", "-o", "s")
    for more in ((), ("--resume",)):
        err = kvgym.error(*sweep, *more)
        assert "plan.json" in err
        assert (tmp_path / "s" / "plan.json").read_text() == "mine"


def stop_after(monkeypatch, count):
    """Stop a search as by Ctrl-C after a number of runs; returns the keys of all saved runs."""
    add, seen = journal.Journal.add, []

    def counted(self, key, played):
        add(self, key, played)
        seen.append(key)
        if len(seen) == count:
            raise KeyboardInterrupt

    monkeypatch.setattr(journal.Journal, "add", counted)
    return seen


SEARCHES = {
    "capacity": ("capacity", "-n", 60, "--seeds", 2, "-p", "fcfs", "--tolerance", 0.5, "--no-report"),
    "provision": ("capacity", "provision", "-n", 60, "-p", "fcfs", "--slo", "ttft_p99<200ms", "--no-report"),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_stopped_searches_resume(kvgym, tmp_path, monkeypatch, name):
    command = (*SEARCHES[name], "--jobs", 1, "--no-progress")
    result = f"{name}.json"
    seen = stop_after(monkeypatch, 0)
    assert kvgym(*command, "-o", "whole")[0] == 0
    total, stop = len(seen), len(seen) // 2
    assert not (tmp_path / "whole" / "unfinished.jsonl").exists()
    seen = stop_after(monkeypatch, stop)
    code, _, err = kvgym(*command, "-o", "again")
    assert code == 130
    assert "stopped; completed runs are kept: run the same command with --out again to resume" in err
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
    from kvgym.experiments.identity import run_keys
    from kvgym.experiments.marks import backlog_growth
    from kvgym.policies.policy import make_policy
    from kvgym.studies.capacity.estimates import batch_figures

    keys = {
        run_keys("s", make_policy("fcfs"), None, [0], measure)[0]
        for measure in (None, batch_figures, backlog_growth)
    }
    assert len(keys) == 3


def test_the_folder_of_a_command_is_released_with_it(kvgym, tmp_path):
    kvgym("run", "-p", "fcfs", "-n", 5, "--no-progress", "-o", "one")
    assert list(result_folder._folders) == [result_folder.Path("one")]
    kvgym("list", "policies")
    assert not result_folder._folders


def stop(*_, **__):
    raise KeyboardInterrupt


def test_a_stopped_report_shows_how_to_get_it(kvgym, tmp_path, monkeypatch):
    small = ("-p", "fcfs", "--seeds", 1, "--no-progress")
    with monkeypatch.context() as patched:
        patched.setattr("kvgym.studies.reports.write_sweep_report", stop)
        code, _, err = kvgym("sweep", "rate=5,10", "num_requests=5", *small, "-o", "my sweep")
        assert code == 130
        assert "stopped before report.html was written; the other results are in my sweep" in err
        (again,) = re.findall(r"to get it: kvgym (.*) \(nothing is run again\)", err)
        patched.setattr("kvgym.report.write_report", stop)
        code, _, err = kvgym("compare", "-n", 5, *small, "-o", "one")
        assert code == 130
        assert "report.html was written; the other results are in one; to get it: run the same command" in err
    assert (tmp_path / "my sweep" / "summary.json").exists()
    assert (tmp_path / "one" / "summary.json").exists()
    out = kvgym.output(*shlex.split(again))
    assert "2 runs, 2 of them known already" in out
    assert (tmp_path / "my sweep" / "report.html").exists()


def test_a_sweep_stopped_at_its_tables_keeps_the_runs(kvgym, monkeypatch):
    monkeypatch.setattr("kvgym.studies.sweeping.sweep.SweepResult.save", stop)
    code, _, err = kvgym("sweep rate=5 num_requests=5 -p fcfs --seeds 1 --no-progress -o s")
    assert code == 130
    assert "interrupted; completed runs are kept; resume with: kvgym sweep --resume --out s" in err
