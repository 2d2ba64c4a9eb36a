"""The cache of compiled code: one process compiles while others wait; damaged code is compiled again."""

import functools
import itertools
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import filelock
import numba
import pytest

from helpers.selection import others_long
from kvgym.batch_time import UnitBatchTime
from kvgym.compiling import cache as code_cache
from kvgym.compiling.cache import Locator, compiled_once, silence
from kvgym.compiling.sources import key_of

PROCESSES = 3

TOGETHER = f"""
import pathlib, sys, time
from kvgym.batch_time import UnitBatchTime

started = pathlib.Path(sys.argv[1])
(started / sys.argv[2]).touch()
while len(list(started.iterdir())) < {PROCESSES}:
    time.sleep(0.005)
stats = UnitBatchTime.kernel.compiled.stats
print(sum(stats.cache_misses.values()), sum(stats.cache_hits.values()))
"""


def test_one_of_several_processes_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv("KVGYM_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "started").mkdir()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, str(tmp_path / "started"), str(i)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(PROCESSES)
    ]
    found = sorted(process.communicate()[0].split() for process in running)
    assert found == [["0", "1"]] * (PROCESSES - 1) + [["1", "0"]]


@pytest.fixture
def once(tmp_path, monkeypatch, capsys):
    """Return a function that pretends to compile; it returns whether the checksum exists and the notices."""
    monkeypatch.setattr(code_cache, "_shown_hints", set())

    def compile_(name="a", seconds=9.4):
        with compiled_once(tmp_path / f"{name}.compiled", f"scheduler {name}", lambda: seconds):
            pass
        return (tmp_path / f"{name}.compiled").exists(), capsys.readouterr().err

    return compile_


def test_notices_name_the_kernel_and_the_expected_time(once):
    cached, notices = once("a")
    assert cached
    assert notices == (
        "kvgym: compiling scheduler a for this machine, about 9 s, once "
        "(kvgym warm-up compiles everything beforehand) ...\n"
    )
    assert once("a") == (True, "")  # cached
    assert once("b")[1] == "kvgym: compiling scheduler b for this machine, about 9 s, once ...\n"
    assert once("short", seconds=0.3) == (True, "")
    with silence():
        assert once("silent") == (True, "")
    assert "compiling scheduler loud" in once("loud")[1]


def test_an_error_releases_the_lock_and_caches_nothing(tmp_path, once):
    with pytest.raises(ValueError, match="typed"), compiled_once(tmp_path / "a.compiled", "a", lambda: 0):
        raise ValueError("cannot be typed")
    cached, notices = once("a")
    assert cached
    assert notices.startswith("kvgym: compiling scheduler a")


def test_waiting_for_another_process_has_a_timeout(tmp_path, once, monkeypatch):
    monkeypatch.setattr(code_cache, "LOCK_TIMEOUT", 0.1)
    with filelock.FileLock(tmp_path / "a.lock"):
        cached, notices = once("a")
    assert cached
    assert notices.splitlines()[0] == "kvgym: waiting for another command to compile scheduler a ..."
    assert "compiling scheduler a" in notices.splitlines()[1]


def test_workers_of_a_command_wait_silently_for_each_other(tmp_path, once, monkeypatch):
    monkeypatch.setattr(code_cache, "LOCK_TIMEOUT", 0.1)
    (tmp_path / "a.owner").write_text(code_cache.command_id())
    with filelock.FileLock(tmp_path / "a.lock"):
        _, notices = once("a")
    assert "waiting" not in notices
    (tmp_path / "b.owner").write_text("elsewhere 1")
    with filelock.FileLock(tmp_path / "b.lock"):
        assert "waiting for another command" in once("b")[1]


def test_a_command_knows_that_it_compiles(tmp_path, monkeypatch):
    monkeypatch.setattr(code_cache, "cache_dir", functools.lru_cache(lambda: tmp_path))
    code_cache.cache_dir()
    (tmp_path / "other.owner").write_text("elsewhere 1")
    assert not code_cache.compiling()
    with compiled_once(tmp_path / "a.compiled", "a", lambda: 0):
        assert code_cache.compiling()
    assert not code_cache.compiling()


def test_the_lock_of_a_killed_process_is_free(tmp_path, once):
    code = "import filelock, sys, time; filelock.FileLock(sys.argv[1]).acquire(); print('held'); sys.stdout.flush();"
    path = str(tmp_path / "a.lock")
    with subprocess.Popen(
        [sys.executable, "-c", code + "time.sleep(60)", path], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
    cached, notices = once("a")
    assert cached
    assert "waiting" not in notices


@pytest.mark.parametrize("error", [NotImplementedError("flock"), OSError(95, "Operation not supported")])
def test_compiling_works_without_file_locks(once, monkeypatch, error):
    def fail(self, **options):
        raise error

    monkeypatch.setattr(filelock.FileLock, "acquire", fail)
    assert once("a")[0]


def test_each_processor_has_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KVGYM_CACHE_DIR", str(tmp_path))
    here = code_cache.cache_dir.__wrapped__()
    assert here == code_cache.cache_dir.__wrapped__()
    monkeypatch.setattr(code_cache._config, "CPU_NAME", "generic")
    assert code_cache.cache_dir.__wrapped__() != here


def test_copies_of_the_same_sources_share_the_cache():
    """The cache does not depend on the path or the time of a checkout."""
    function = UnitBatchTime.kernel.function
    path = UnitBatchTime.kernel.compiled.stats.cache_path
    key = key_of((function.__module__,))
    assert path == str(code_cache.cache_dir() / f"{function.__module__}.{function.__qualname__}-{key}")
    here, there = (Locator.from_function(function, file) for file in (__file__, "/another/copy.py"))
    assert here.get_cache_path() == there.get_cache_path() == path
    assert here.get_source_stamp() == there.get_source_stamp()


LOADS = """
import sys
from kvgym.batch_time import UnitBatchTime

print(sum(UnitBatchTime.kernel.compiled.stats.cache_hits.values()), "numba.np.linalg" in sys.modules)
UnitBatchTime.kernel.compiled.targetctx.refresh()
print("numba.np.linalg" in sys.modules)
"""


def test_cached_code_is_loaded_without_getting_ready_to_compile():
    """Getting ready takes as long as importing Numba, and imports SciPy."""
    _ = UnitBatchTime.kernel.compiled
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True)
    assert done.stdout == "1 False\nTrue\n"


USES = """
from pathlib import Path
from kvgym.batch_time import UnitBatchTime
from mine import kernel

for found in (UnitBatchTime.kernel.compiled, kernel.compiled):
    print(sum(found.stats.cache_misses.values()), found.stats.cache_path)
print(kernel(20))
"""

MINE = """
from kvgym.compiling.kernel import kernel

@kernel("int64(int64)")
def kernel(x):
    return x + 1
"""

DAMAGE = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "random": lambda content: bytes(random.Random(0).randrange(256) for _ in content),
    "one bit": lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
    "another object": lambda content: pickle.dumps(numba.__version__) + pickle.dumps(5),
    "missing": lambda content: None,
}


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """Return a function that uses two kernels in a new process, and a cache folder with both."""
    place = tmp_path_factory.mktemp("used")
    (place / "mine.py").write_text(MINE)
    (place / "uses.py").write_text(USES)

    def use(cache):
        env = {**os.environ, "KVGYM_CACHE_DIR": str(cache)}
        done = subprocess.run([sys.executable, place / "uses.py"], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        *kernels, value = done.stdout.splitlines()
        assert value == "21"
        misses, folders = zip(*(line.split(maxsplit=1) for line in kernels), strict=True)
        return list(map(int, misses)), [Path(folder) for folder in folders]

    assert use(place / "cache")[0] == [1, 1]
    return use, place / "cache"


@pytest.mark.parametrize(
    ("damage", "ending"),
    others_long(list(itertools.product(DAMAGE, ["nbi", "nbc", "compiled"])), {("one bit", "nbc")}),
)
def test_damaged_machine_code_is_compiled_again(used, tmp_path, damage, ending):
    use, cache = used
    shutil.copytree(cache, tmp_path / "cache")
    files = list((tmp_path / "cache").rglob(f"*.{ending}"))
    assert len(files) == 2
    for path in files:
        content = DAMAGE[damage](path.read_bytes())
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    assert use(tmp_path / "cache")[0] == [1, 1]
    assert use(tmp_path / "cache")[0] == [0, 0]


HELPER = """
from numba import njit
from kvgym.compiling.kernel import kernel

@njit(cache=True)
def helper(x):
    return x + 1

@kernel("int64(int64)")
def kernel(x):
    return helper(x) + 20
"""


@pytest.mark.parametrize(
    "damage", others_long(["empty", "cut short", "random", "another object"], {"random"})
)
def test_damaged_code_of_separately_cached_helpers_is_compiled_again(tmp_path, damage):
    (tmp_path / "mine.py").write_text(HELPER)
    run = [sys.executable, "-B", "-c", "from mine import kernel, helper; print(kernel(1), helper(1))"]
    assert subprocess.run(run, cwd=tmp_path, capture_output=True, text=True).stdout == "22 2\n"
    cache = tmp_path / "__pycache__"
    files = list(cache.glob("mine.helper*.nb[ic]"))
    assert len(files) == 2
    for path in files:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    (cache / "mine.helper2-6.py311.nbi").touch()
    stamp = (tmp_path / "mine.py").stat()
    (tmp_path / "mine.py").write_text(HELPER.replace("+ 20", "+ 30"))
    os.utime(  # the old time, so that Numba reads its cache
        tmp_path / "mine.py", ns=(stamp.st_atime_ns, stamp.st_mtime_ns)
    )
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("32 2\n", 0), done.stderr
    assert (cache / "mine.helper2-6.py311.nbi").exists()


def test_code_that_is_compiled_again_gets_a_new_checksum(used, tmp_path):
    """Numba compiles again when a file was saved, even unchanged."""
    use, cache = used
    shutil.copytree(cache, tmp_path / "cache")
    mine = cache.parent / "mine.py"
    mine.write_text(MINE + "\n")
    os.utime(mine, (1, 1))
    assert [use(tmp_path / "cache")[0] for _ in range(2)] == [[0, 1], [0, 0]]


def test_only_old_versions_of_a_kernel_are_removed(tmp_path, once):
    for name, age in (("a.b-old", 40), ("a.b-new", 20), ("a.bc-old", 40)):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.compiled").touch()
        then = time.time() - age * 86_400
        os.utime(tmp_path / f"{name}.compiled", (then, then))
    assert once("a.b-now")[0]
    left = {path.name for path in tmp_path.iterdir() if path.suffix != ".lock"}
    assert left == {"a.b-new", "a.b-new.compiled", "a.bc-old", "a.bc-old.compiled", "a.b-now.compiled"}


def test_only_old_cache_folders_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("KVGYM_CACHE_DIR", str(tmp_path))
    for name in ("code-review", "code-0123456789abcdef0123", "code-0123456789abcdef0123-mine"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1, 1))
    here = code_cache.cache_dir.__wrapped__()
    assert {path.name for path in tmp_path.iterdir()} == {
        "code-review", "code-0123456789abcdef0123-mine", here.name
    }  # fmt: skip
