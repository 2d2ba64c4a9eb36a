import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.execution_works import (
    DieOnce,
    SlowAfter,
    Square,
    raise_two_parted,
    refuse_three,
    slow_after_first,
    where,
)  # fmt: skip
from helpers.processes import gone
from kvgym.errors import ConfigError, KVGymError
from kvgym.utils.execution import cores, make_executor, processes
from kvgym.utils.execution.executor import InProcess
from kvgym.utils.execution.processes import Growing, Processes

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("jobs", [1, 2, None])
def test_results_do_not_depend_on_the_executor(jobs):
    with make_executor(Square(), jobs) as executor:
        assert [square for square, _ in executor.map(range(20))] == [k * k for k in range(20)]
        assert [square for square, _ in executor.map([7])] == [49]
        assert executor.map([]) == []


def test_the_work_keeps_its_state_between_tasks_of_a_process():
    with make_executor(Square(), 1) as executor:
        assert [calls for _, calls in executor.map([1, 2, 3])] == [1, 2, 3]
        assert [calls for _, calls in executor.map([1])] == [4]
    with make_executor(Square(), 2) as executor:
        calls = [calls for _, calls in executor.map(range(30))]
        assert sum(c == 1 for c in calls) <= 2
        assert max(calls) >= 15


def test_the_requested_number_of_worker_processes_is_used():
    with make_executor(where, 2) as executor:
        pids = {pid for _, pid in executor.map(range(20))}
    assert os.getpid() not in pids
    assert len(pids) == 2
    with make_executor(where, 1) as executor:
        assert {pid for _, pid in executor.map(range(3))} == {os.getpid()}


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_a_task_is_raised(jobs):
    with make_executor(refuse_three, jobs) as executor, pytest.raises(ConfigError, match="three is refused"):
        executor.map(range(6))


def test_an_error_that_cannot_be_pickled_keeps_its_message():
    with Processes(raise_two_parted, 1) as executor, pytest.raises(KVGymError, match="leak in task 4"):
        executor.map([4])


@pytest.mark.parametrize("jobs", [-1, 1.5, True, "2"])
def test_wrong_numbers_of_processes_are_named(jobs):
    with pytest.raises(ConfigError, match=r"jobs = .*; expected a whole number ≥ 0"):
        make_executor(where, jobs)


def test_zero_means_all_cores():
    executor = make_executor(where, 0)
    assert isinstance(executor, Processes)
    assert executor.jobs == cores()


def test_tasks_of_dead_processes_run_again(tmp_path):
    with Processes(DieOnce(tmp_path, at=(3, 11)), 2) as executor:
        streamed = list(executor.stream(range(20)))
    assert sorted(streamed) == [(k, k + 1) for k in range(20)]
    again = {k: len(list(tmp_path.glob(f"{k}-*"))) for k in range(20)}
    assert again[3] >= 2
    assert again[11] >= 2


def stream_into(done, stream):
    for place, result in stream:
        done[place] = result


def test_a_task_that_always_kills_its_process_is_an_error(tmp_path):
    done = {}
    with Processes(DieOnce(tmp_path, at=(5,), always=True), 1) as executor:
        stream = executor.stream(range(30))
        with pytest.raises(KVGymError, match=r"3 worker processes died while running .*too little memory"):
            stream_into(done, stream)
    assert set(range(5)) <= set(done)  # earlier results were yielded
    assert len(list(tmp_path.glob("5-*"))) == 3


def test_no_more_tasks_start_after_the_stream_is_closed():
    started = time.perf_counter()
    with Processes(SlowAfter(0.2), 1) as executor:
        stream = executor.stream(range(1000))
        next(stream)
        stream.close()
    assert time.perf_counter() - started < 60


def read_one_and_raise(executor, folder):
    with executor:
        for _ in executor.stream([(folder, number) for number in range(6)]):
            while not list(folder.iterdir()):
                time.sleep(0.02)
            raise RuntimeError("of the reader")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads processes in /proc")
def test_closing_stops_running_tasks(tmp_path):
    started = time.perf_counter()
    executor = Processes(slow_after_first, 2)
    with pytest.raises(RuntimeError, match="of the reader"):
        read_one_and_raise(executor, tmp_path)
    assert time.perf_counter() - started < 60
    assert all(gone(int(p.name.removeprefix("pid-"))) for p in tmp_path.iterdir())
    assert executor.map([(tmp_path, 0)]) == [0]  # it starts new processes
    executor.close()
    executor.close()


def test_only_long_work_moves_to_worker_processes(monkeypatch):
    executor = Growing(where, 2)
    assert {pid for _, pid in executor.map(range(5))} == {os.getpid()}
    monkeypatch.setattr(processes, "START", 0.05)
    with Growing(where, 2) as executor:
        found = executor.map(range(30))
        assert [task for task, _ in found] == list(range(30))
        pids = [pid for _, pid in found]
        assert pids[:2] == [os.getpid()] * 2
        assert set(pids[2:]).isdisjoint({os.getpid()})
        assert {pid for _, pid in executor.map(range(5))}.isdisjoint({os.getpid()})  # and stays there
    assert isinstance(Growing(where, 1)._here, InProcess)
    assert {pid for _, pid in Growing(where, 1).map(range(3))} == {os.getpid()}


PARENT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from helpers.execution_works import leave_pid
from kvgym.utils.execution import make_executor

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with make_executor(leave_pid, 2) as executor:
        for place, _ in executor.stream([(folder, k) for k in range(100_000)]):
            print(place, flush=True)
"""


def begin(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(tests=str(TESTS)))
    pids = tmp_path / "pids"
    pids.mkdir()
    process = subprocess.Popen([sys.executable, str(script), str(pids)], stdout=subprocess.PIPE, text=True)
    for _ in range(10):
        assert process.stdout.readline()
    return process, [int(p.name.removeprefix("pid-")) for p in pids.iterdir()]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads processes in /proc")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_a_parent_that_is_killed_or_interrupted(tmp_path, sent):
    process, pids = begin(tmp_path)
    assert pids
    process.send_signal(sent)
    process.wait(60)
    process.stdout.close()
    assert all(gone(pid) for pid in pids)


def test_a_script_without_a_main_guard_gets_the_hint(tmp_path):
    script = tmp_path / "unguarded.py"
    text = PARENT.format(tests=str(TESTS)).replace('if __name__ == "__main__":', "if True:")
    script.write_text(text)
    run = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True)
    assert run.returncode != 0
    assert 'under if __name__ == "__main__":' in run.stderr
