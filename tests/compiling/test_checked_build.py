"""The checked build: accesses out of bounds are errors that name the culprit, and results are the same."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers import amount, out_of_bounds
from kvgym import simulate
from kvgym.compiling import checked_build as debug
from kvgym.errors import OutOfBoundsError

TESTS = Path(__file__).resolve().parents[1]

CHECKED = """
import json
from helpers import out_of_bounds
from kvgym import simulate
from kvgym.compiling import cache as code_cache
from kvgym.compiling import checked_build as debug

assert debug.CHECKED
run = simulate(out_of_bounds.one(), out_of_bounds.table(), "fcfs", log=True)
print(json.dumps({
    "policies": out_of_bounds.run_all(cluster=%s),
    "damaged": out_of_bounds.damaged_everywhere(),
    "step": out_of_bounds.step_after_damage(),
    "requests": run.requests.tobytes().hex(),
    "log": run.log.tobytes().hex(),
    "cache": str(code_cache.cache_dir()),
}))
"""


@pytest.fixture(scope="module")
def checked():
    """What a process of the checked build reported."""
    done = subprocess.run(
        [sys.executable, "-c", CHECKED % amount.LONG],
        env=debug.checked_environment(),
        cwd=TESTS,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("policy", "function", "mark"),
    [
        ("writes_far", "writes_far", "WRITES"),
        ("reads_before", "reads_before", "READS"),
        ("by_helper", "own_helper", "HELPER"),
        ("by_plain_helper", "users_helper", "PLAIN"),
    ],
)
def test_a_policy_out_of_bounds_is_named_with_the_line(checked, policy, function, mark):
    source = Path(out_of_bounds.__file__)
    [line] = [k for k, text in enumerate(source.read_text().splitlines(), 1) if text.endswith(f"# {mark}")]
    assert checked["policies"][policy] == (
        f"policy {policy!r}, iteration 0, t = 0 s: index is out of bounds in {function} ({source}:{line}); "
        "the run cannot go on"
    )


@pytest.mark.long
def test_a_policy_out_of_bounds_is_named_in_a_cluster(checked):
    message = checked["policies"]["cluster"]
    assert message.startswith("policy 'writes_far', worker 0, iteration 0")
    assert "index is out of bounds in writes_far" in message


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        ("run", {"tracker", "workers", "requests", "active", "queued", "evict", "log"}),
        ("environments", {"settings", "observations", "masks", "actions", "outcomes"}),
        ("policy of a worker", {"params", "state", "reals", "profile"}),
        ("cluster", {"workers", "active"}),
        ("observer", {"flat", "mask"}),
    ],
)
def test_a_write_beside_a_table_names_the_table(checked, owner, expected):
    found = checked["damaged"][owner]
    assert expected <= {place.split()[0] for place in found}
    for place, message in found.items():
        name, side = place.split()
        assert f"right {side} the table {name!r}" in message, place


def test_guard_bytes_are_between_the_tables_of_an_environment(checked):
    block = checked["damaged"]["block"]
    names = list(dict.fromkeys(place.split()[0] for place in block))
    assert len(names) > 15
    assert "right before the table 'problem'" in block["problem before"]
    for name in names[1:]:
        assert "right behind the table" in block[f"{name} before"]  # the one before it
        assert block[f"{name} behind"].startswith("tester, environment 1: ")
        assert f"right behind the table {name!r}" in block[f"{name} behind"]


def test_a_step_reports_overwritten_memory(checked):
    assert checked["step"].startswith(
        "environment with admit_count: compiled code wrote to memory right behind"
    )
    assert "'requests'" in checked["step"]


def test_results_are_the_same(checked):
    run = simulate(out_of_bounds.one(), out_of_bounds.table(), "fcfs", log=True)
    assert checked["requests"] == run.requests.tobytes().hex()
    assert checked["log"] == run.log.tobytes().hex()


def test_the_checked_build_has_its_own_cache_folder(checked):
    from kvgym.compiling.cache import cache_dir

    assert (Path(checked["cache"]) == cache_dir()) == debug.CHECKED


# ------------------------------------------------------------ within a process


def test_in_the_normal_build_nothing_is_wrapped(monkeypatch):
    monkeypatch.setattr(debug, "CHECKED", False)
    array = np.zeros(3)
    assert debug.guarded(array) is array
    assert debug.watched(len, str, print) is len


@pytest.fixture
def on(monkeypatch):
    """Guard memory in this process, too."""
    monkeypatch.setattr(debug, "CHECKED", True)
    monkeypatch.setattr(debug, "GUARD_SIZE", 64)


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 5)])
@pytest.mark.parametrize("kind", ["u1", "f8", [("a", "i4"), ("b", "f8")]])
def test_guarded_arrays_behave_like_other_arrays(on, shape, kind):
    array = np.zeros(shape, kind)
    array.reshape(-1).view("u1")[:] = 3
    found = debug.guarded(array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert type(found) is np.ndarray
    assert found.flags.c_contiguous
    assert found.flags.writeable
    assert found.ctypes.data % 64 == 0
    debug.check("tester", {"it": found, "a view": found[:1], "a copy": found.copy()})


def test_a_write_beside_a_view_is_detected(on):
    found = debug.guarded(np.zeros((2, 3)))
    out_of_bounds.ctypes.memset(found.ctypes.data + found.nbytes, 0, 1)
    with pytest.raises(OutOfBoundsError, match=r"tester: .* right behind the table 'part'"):
        debug.check("tester", {"part": found[1]})
    debug.check("tester", {"a copy": found.copy()})


def test_other_errors_propagate(on):
    def fail():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        debug.watched(fail, str, print)()
    checks = []
    assert debug.watched(lambda x: x + 1, lambda: "me", checks.append)(2) == 3
    assert checks == ["me"]


def test_the_environment_variable_is_passed_on():
    assert debug.checked_environment()["KVGYM_DEBUG"] == "1"
