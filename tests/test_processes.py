"""The plugin that every test runs with: nothing that a test starts outlives it, and no test stands still."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.processes import gone

TESTS = """
import multiprocessing
import os
import subprocess
import time
from pathlib import Path

import pytest

def start():
    process = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    with open("pids", "a") as pids:
        print(process.pid, process.stdout.readline(), file=pids)
    return process

def test_leaves_processes():
    start()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    with open("pids", "a") as pids:
        print(child.pid, file=pids)

def test_leaves_a_copy_of_itself():
    pid = os.fork()
    if not pid:
        time.sleep(600)
        os._exit(0)
    with open("pids", "a") as pids:
        print(pid, file=pids)

def test_leaves_what_its_process_has_started():
    process = start()
    process.kill()
    process.wait()

def test_fails_beside_a_process():
    with start():
        raise ValueError

def test_waits_without_end():
    with start() as process:
        process.communicate()

@pytest.fixture(scope="module")
def kept():
    return start()

def test_starts_a_fixture(kept):
    pass

def test_uses_a_fixture(kept):
    assert kept.poll() is None
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads processes in /proc")
def test_processes_end_with_the_test_that_starts_them_and_tests_end(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    code = "import sys, pytest; from helpers import processes; processes.LIMIT = 2.0; "
    code += "sys.exit(pytest.main(['test_some.py', '-q', '-p', 'helpers.processes']))"
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "2 failed, 5 passed" in done.stdout, done.stdout + done.stderr
    assert "the test took longer than 2 s" in done.stdout
    assert time.monotonic() - began < 300
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 12
    assert all(gone(pid) for pid in pids)
