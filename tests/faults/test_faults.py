"""Faults around kvgym: full disks, closed pipes, Ctrl-C, bugs; docs/results.md describes the effects."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from kvgym.batch_time.models.unit import UnitBatchTime
from kvgym.cli import app
from kvgym.compiling import cache as code_cache
from kvgym.errors import ConfigError
from kvgym.policies.runner import simulate
from kvgym.simulator.recording.progress import listening
from kvgym.simulator.system import System
from kvgym.utils.files import alone_in
from kvgym.workloads.table import RequestTable

SMALL = (
    "compare",
    "-n",
    "20",
    "--seeds",
    "3",
    "-p",
    "fcfs,mc_sf",
    "--no-report",
    "--no-progress",
    "--jobs",
    "1",
    "-o",
    "out",
)


def command(arguments, **options):
    """Start a command line in a separate process."""
    code = "from kvgym.cli.app import main; main()"
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], **{"stdout": pipe, "stderr": pipe, **options}
    )


def finished(process):
    """Wait for a process; return exit status, standard output and error."""
    out, err = process.communicate(timeout=120)
    return process.returncode, (out or b"").decode("ascii", "replace"), err.decode("utf-8", "replace")


@pytest.fixture
def forked(tmp_path, monkeypatch):
    """Return a function that forks, sets up a fault and runs a command line; returns exit status and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, fault=lambda: None):
        with open("stderr.txt", "w") as errors:
            pid = os.fork()
            if not pid:  # the copy must never continue with the tests
                try:
                    os.dup2(errors.fileno(), 2)
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                    app.failures.console.out.file, app.failures.console.err.file = sys.stdout, sys.stderr
                    fault()
                    sys.argv = ["kvgym", *arguments]
                    app.main()
                    os._exit(0)
                except SystemExit as stop:
                    os._exit(stop.code if isinstance(stop.code, int) else 0)
                finally:
                    os._exit(99)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return status, (tmp_path / "stderr.txt").read_text()

    return run


def limit_files(size):
    """Return a fault: no file can grow beyond ``size`` bytes, as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_full_disk_leaves_files_intact_and_is_reported(forked, tmp_path):
    assert forked("run", "-p", "fcfs", "-n", "20", "-o", "out")[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    status, err = forked(
        "run", "-p", "fcfs", "-n", "400", "--no-progress", "-o", "out", fault=limit_files(4096)
    )
    assert status == 2
    assert err.strip() == "error: out/requests.csv: cannot be written: File too large"
    assert set(before) == {"requests.csv", "summary.json", ".kvgym-results.json"}
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_runs_before_the_disk_was_full_are_kept(forked, tmp_path):
    status, err = forked(*SMALL, fault=limit_files(9000))
    assert status == 2
    assert "unfinished.jsonl: cannot be written: File too large" in err
    kept = (tmp_path / "out" / "unfinished.jsonl").read_text().count("\n")
    assert 0 < kept < 6
    assert forked(*SMALL)[0] == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"runs.csv", "summary.json"}
    assert not (tmp_path / "out" / "unfinished.jsonl").exists()


def test_a_reader_that_goes_away_costs_no_results(tmp_path):
    process = command(SMALL, cwd=tmp_path)
    process.stdout.close()
    status, _, err = finished_without_output(process)
    assert status == 1
    assert not err
    assert (tmp_path / "out" / "summary.json").exists()


def finished_without_output(process):
    """Like :func:`finished`, with the output closed."""
    err = process.stderr.read().decode()
    process.stderr.close()
    return process.wait(120), "", err


def test_narrow_dumb_ascii_terminals(tmp_path):
    small = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TERM": "dumb", "COLUMNS": "12"}
    status, out, err = finished(
        command(("run", "-p", "fcfs", "-n", "5", "--no-progress"), cwd=tmp_path, env={**os.environ, **small})
    )
    assert (status, err) == (0, "")
    assert "makespan" in out
    assert "?" in out  # characters that ASCII lacks


def test_only_the_working_folder_can_be_written(tmp_path):
    code = "from kvgym.compiling.cache import cache_dir; print(cache_dir())"
    blocked = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "KVGYM_CACHE_DIR"), "/dev/null/none")
    names = ("TMPDIR", "TEMP", "TMP")
    env = {name: value for name, value in os.environ.items() if name not in blocked | dict.fromkeys(names)}
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, **blocked, "TMPDIR": "/none"},
        cwd=tmp_path,
        capture_output=True,
    )
    assert not found.returncode, found.stderr
    assert b"kvgym-" in found.stdout  # in the system's temporary folder


def test_no_place_for_compiled_code_is_one_line(monkeypatch):
    def nowhere():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setenv("KVGYM_CACHE_DIR", "/dev/null/none")
    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    with pytest.raises(
        ConfigError, match=r"tried /dev/null/none and .*; set KVGYM_CACHE_DIR to a writable folder"
    ):
        code_cache.cache_dir.__wrapped__()


def test_a_bug_in_kvgym_ends_in_one_line_and_a_report(forked, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("division by\nzero")

    monkeypatch.setattr("kvgym.experiments.changes.build_scenario", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status, err = forked("run", "-p", "fcfs", "-n", "5")
    assert status == 70
    (report,) = tmp_path.glob("kvgym-error-*.txt")
    assert err == (
        "error: this is a bug in kvgym (ZeroDivisionError: division by zero); please report it with "
        f"the file {report}\n"
    )
    text = report.read_text()
    assert "command: kvgym run -p fcfs -n 5" in text
    assert "Traceback (most recent call last)" in text
    assert "numba" in text
    status, err = forked("run", "-p", "fcfs", "-n", "5", "--verbose")
    assert "ZeroDivisionError: division by\nzero" in err


def test_verbose_shows_details_of_errors(forked, monkeypatch):
    error = ConfigError("wrong")
    error.details = "in line 3\nof the file"

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr("kvgym.experiments.changes.build_scenario", refuse)
    assert forked("run", "-p", "fcfs") == (2, "error: wrong (--verbose shows details)\n")
    assert forked("run", "-p", "fcfs", "--verbose") == (2, "in line 3\nof the file\nerror: wrong\n")
    assert forked("--verbose", "run", "-p", "fcfs")[1].startswith("in line 3")


def long_run():
    """Return a system and a request that keeps it busy for a minute."""
    table = RequestTable([0.0], [1], [10**8])
    return System(kv_capacity=10**9, batch_time=UnitBatchTime()), table


def test_ctrl_c_ends_a_long_compiled_run_with_a_partial_result():
    system, table = long_run()
    shares = []

    def hear(share):
        shares.append(share)
        if len(shares) == 2:
            threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt) as stopped, listening(hear):
        simulate(system, table, "fcfs")
    assert shares == [0.0] * len(shares)
    assert len(shares) < 6
    done = stopped.value.result
    assert not done.completed
    assert 0 < done.requests["num_output_tokens"][0] < 10**8


def test_one_process_at_a_time_works_in_a_folder(tmp_path):
    ready, go = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            with alone_in(tmp_path):
                os.write(go, b"x")
                signal.pause()
        finally:
            os._exit(0)
    os.read(ready, 1)
    with (
        pytest.raises(ConfigError, match=rf"process {pid} on .*, since .*, works on it; wait until"),
        alone_in(tmp_path),
    ):
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (tmp_path / ".kvgym-lock").exists()  # left by a dead process, so not a lock
    with alone_in(tmp_path):
        assert f"process {os.getpid()} " in (tmp_path / ".kvgym-lock").read_text()
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_bounds_at_once(forked):
    def wait_long():
        from kvgym.theory.hindsight import bounds

        signal.signal(signal.SIGINT, signal.default_int_handler)

        def long(*_, **__):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(60)

        bounds.bound = long

    began = time.monotonic()
    assert forked("bound", "-n", "5", "--no-progress", fault=wait_long) == (130, "")
    assert time.monotonic() - began < 50


def test_a_stopped_comparison_continues(forked, tmp_path):
    assert forked(*SMALL)[0] == 0
    whole = json.loads((tmp_path / "out" / "summary.json").read_text())
    again = (*SMALL[:-1], "again")

    def stop_at_the_third():
        from kvgym.experiments import journal

        add, seen = journal.Journal.add, []

        def counted(self, key, played):
            add(self, key, played)
            seen.append(key)
            if len(seen) == 3:
                raise KeyboardInterrupt

        journal.Journal.add = counted

    status, err = forked(*again, fault=stop_at_the_third)
    assert status == 130
    assert err == "stopped; completed runs are kept: run the same command with --out again to resume\n"
    assert (tmp_path / "again" / "unfinished.jsonl").read_text().count("\n") == 3
    assert forked(*again)[0] == 0
    assert json.loads((tmp_path / "again" / "summary.json").read_text()) == whole
