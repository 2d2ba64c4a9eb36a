"""The private APIs of Numba behave as the compiled core assumes; without them kvgym is slower, or refuses to import.

Run this file first with a new version of Numba, see :mod:`kvgym.compiling.numba_internals`.
"""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import types
from numba.core import caching, codegen, cpu
from numba.experimental import function_type
from numba.np import arrayobj

import kvgym
from kvgym.batch_time import UnitBatchTime
from kvgym.batch_time.models.affine import _affine
from kvgym.compiling import numba_internals
from kvgym.compiling.cache import cache_dir
from kvgym.compiling.checked_build import CHECKED
from kvgym.compiling.kernel import jit, uncompiled
from kvgym.compiling.pointers import function_at, function_handle, view_at
from kvgym.errors import UserCodeError
from kvgym.simulator.tables import LOAD

SIGNATURE = types.float64(types.float64[::1], types.int64)
table_at, numbers_at, rows_at = view_at(LOAD), view_at("f8"), view_at("f8", 2)
call_at = function_at(SIGNATURE)


def test_the_installed_numba_is_supported():
    assert numba_internals.incompatibility() is None
    if numba_internals._series() <= numba_internals.LAST:
        assert numba_internals.without_tricks() is None


@pytest.mark.parametrize("version", ["0.60.0", "unknown"])
def test_an_older_version_is_refused(version, monkeypatch):
    monkeypatch.setattr(numba, "__version__", version)
    assert numba_internals.incompatibility() == f"its version is {version}"


@pytest.mark.parametrize("version", ["0.69.0dev1", "1.0.0"])
def test_a_newer_version_has_no_tricks_unless_they_are_asked_for(version, monkeypatch):
    monkeypatch.setattr(numba, "__version__", version)
    assert numba_internals.incompatibility() is None
    assert numba_internals.without_tricks() == f"its version is {version}"
    with pytest.warns(RuntimeWarning, match=rf"installed one \(its version is {version}\)"):
        assert not numba_internals.choose_tricks()
    monkeypatch.setenv("KVGYM_NUMBA_TRICKS", "1")
    assert numba_internals.choose_tricks()
    monkeypatch.setenv("KVGYM_NUMBA_TRICKS", "0")
    assert not numba_internals.choose_tricks()


def remove(place, name, monkeypatch):
    """Remove an attribute from a module, or from the class that defines it."""
    owner = next(cls for cls in getattr(place, "__mro__", [place]) if name in vars(cls))
    monkeypatch.delattr(owner, name)


@pytest.mark.parametrize(
    ("place", "name", "message"),
    [
        (arrayobj, "populate_array", "numba.np.arrayobj has no populate_array"),
        (function_type, "_get_jit_address", "numba.experimental.function_type has no _get_jit_address"),
        (caching, "CompileResultCacheImpl", "None has no _locator_classes"),
    ],
)
def test_missing_apis_are_refused(place, name, message, monkeypatch):
    remove(place, name, monkeypatch)
    assert numba_internals.incompatibility() == message


@pytest.mark.parametrize(
    ("place", "name", "message"),
    [
        (arrayobj, "fix_integer_index", "numba.np.arrayobj has no fix_integer_index"),
        (cpu.CPUTargetOptions, "_nrt", "CPUTargetOptions has no _nrt"),
        (codegen.JITCodeLibrary, "_optimize_functions", "JITCodeLibrary has no _optimize_functions"),
    ],
)
def test_without_the_apis_of_the_tricks_there_are_none(place, name, message, monkeypatch):
    remove(place, name, monkeypatch)
    assert numba_internals.incompatibility() is None
    assert numba_internals.without_tricks() == message


@pytest.mark.parametrize(("kind", "word"), [(types.FunctionType, "functions"), (types.Array, "arrays")])
def test_another_layout_is_refused(kind, word, monkeypatch):
    from numba.core.datamodel import default_manager

    own = type(default_manager).lookup

    def lookup(self, given):
        model = own(self, given)
        if isinstance(given, kind):
            return type("Model", (), {"_fields": ("data", "size")})
        return model

    monkeypatch.setattr(type(default_manager), "lookup", lookup)
    assert numba_internals.incompatibility() == f"{word} have the fields data, size"


@jit
def total(numbers):
    found = 0.0
    for k in range(numbers.shape[0]):
        found += numbers[k]
    return found


def test_compiled_code_counts_no_references():
    def compiled_with(**options):
        @numba.njit(types.float64(types.float64[::1]), **options)
        def first(numbers):
            part = numbers[1:]
            return part[0]

        return "".join(first.inspect_llvm().values())

    assert "NRT_incref" not in compiled_with(**numba_internals.NO_REFCOUNT)
    assert "NRT_" in compiled_with()  # otherwise the line above proves nothing


def behind_the_first(module):
    """Return a function, as if defined in this module, that changes a slice that begins at the second number."""

    def function(numbers, k):
        part = numbers[1:]
        part[k] += 1.0
        return part[k]

    function.__module__ = module
    return jit(function)


@pytest.mark.parametrize("module", ["kvgym.simulator.engine", "kvgym.baselines.mc_sf", "kvgym"])
def test_own_code_does_not_wrap_negative_indices(module):
    """The checked build reports a negative index."""
    function, numbers = behind_the_first(module), np.arange(4.0)
    if CHECKED:
        with pytest.raises(IndexError):
            function(numbers, -1)
    else:
        assert function(numbers, -1) == 1.0  # the number before the slice
        assert numbers.tolist() == [1, 1, 2, 3]
    assert function(numbers, 2) == 4.0


@pytest.mark.parametrize("module", ["kvgym_policies", "kvgymnasium.policies", "my.kvgym", __name__])
def test_users_kernels_keep_pythons_negative_indices(module):
    function, numbers = behind_the_first(module), np.arange(4.0)
    assert function(numbers, -1) == 4.0
    assert function(numbers, -3) == 2.0
    assert numbers.tolist() == [0, 2, 2, 4]


def read(addresses, n):
    """Open three tables by address, read them and write to them."""
    record, numbers = table_at(addresses[0], 1)[0], numbers_at(addresses[1], n)
    rows = rows_at(addresses[2], 2, n)
    record.num_decodes += 1
    numbers[n - 1] = 5.0
    rows[1, 0] = rows[0, n - 1] + rows.shape[1]
    return record.decode_context + total(numbers)


@pytest.mark.parametrize("compiled", [True, False])
def test_arrays_are_opened_by_address(compiled):
    record, numbers, rows = np.zeros(1, LOAD), np.arange(4.0), np.arange(8.0).reshape(2, 4)
    record["decode_context"] = 100
    addresses = np.array([table.ctypes.data for table in (record, numbers, rows)], np.int64)
    function = jit(read)
    entry = function if compiled else uncompiled(function)
    assert entry(addresses, 4) == 100 + 0 + 1 + 2 + 5
    assert record["num_decodes"].tolist() == [1]
    assert numbers.tolist() == [0, 1, 2, 5]
    assert rows[1].tolist() == [3 + 4, 5, 6, 7]


@numba.njit(SIGNATURE, **numba_internals.NO_REFCOUNT)
def pick(numbers, k):
    if k < 0:
        raise ValueError("negative")
    return numbers[k]


def call(handle, numbers, k):
    function = call_at(handle[0], handle[1])
    return function(numbers, k) + 1


@pytest.mark.parametrize("compiled", [True, False])
def test_functions_are_called_by_address_and_may_raise(compiled):
    function = jit(call)
    entry = function if compiled else uncompiled(function)
    handle = np.array(function_handle(pick if compiled else pick.py_func, SIGNATURE, compiled=compiled))
    assert entry(handle, np.arange(3.0), 2) == 3.0
    with pytest.raises(ValueError if compiled else UserCodeError, match="negative"):
        entry(handle, np.arange(3.0), -1)


def test_code_is_cached_in_the_folder_named_by_the_sources():
    compiled = UnitBatchTime.kernel.compiled
    folder = Path(compiled._cache.cache_path)
    assert folder.parent == cache_dir()
    assert list(folder.glob("*.nbi"))


UNKNOWN_VERSION = """
import numba

numba.__version__ = "0.60.0"
%s
"""

REFUSED = (
    "kvgym does not support the installed Numba (its version is 0.60.0); install a supported one: "
    "pip install 'numba>=0.61,<0.69'"
)


def in_a_process_with_another_version(code):
    return subprocess.run([sys.executable, "-c", UNKNOWN_VERSION % code], capture_output=True, text=True)


@pytest.mark.parametrize(
    "what",
    [
        "kvgym import simulate",
        "kvgym import System",
        "kvgym.kernels import jit",
        "kvgym.envs import ServingEnv",
    ],
)
def test_with_another_version_the_import_fails_with_one_line(what):
    done = in_a_process_with_another_version(f"from {what}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"kvgym.errors.NumbaVersionError: {REFUSED}"


def test_with_another_version_commands_end_with_one_line():
    done = in_a_process_with_another_version(
        "import sys; sys.argv = ['kvgym', 'run', '-p', 'fcfs', '-n', '5']; from kvgym.cli.app import main; main()"
    )
    assert (done.returncode, done.stderr) == (2, f"error: {REFUSED}\n")


PUBLIC_WAYS = """
import sys

import numpy as np

import kvgym
from kvgym.batch_time.models.affine import _affine
from kvgym.compiling import numba_internals
from kvgym.compiling.cache import cache_dir
from kvgym.simulator.tables import LOAD

assert not numba_internals.TRICKS
assert "kvgym.compiling.lowering" not in sys.modules
load = np.ones(1, LOAD)[0]
print(cache_dir().name)
print(_affine(load, np.array([0.1, 0.2, 0.3, 0.4, 1.0])).hex())
if len(sys.argv) > 1:
    comparison = kvgym.compare("mc-sf-model-2", ["fcfs", "mc_sf"], seeds=1, workers=2)
    print([run.metrics["e2e_latency_mean"].hex() for run in comparison.runs])
"""


def in_public_ways(*arguments):
    """Return the lines that the program prints without the tricks."""
    variables = {**os.environ, "KVGYM_NUMBA_TRICKS": "0"}
    command = [sys.executable, "-c", PUBLIC_WAYS, *arguments]
    return subprocess.run(
        command, env=variables, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def test_without_tricks_results_are_the_same_and_code_is_kept_apart():
    folder, seconds = in_public_ways()
    load = np.ones(1, LOAD)[0]
    assert seconds == _affine(load, np.array([0.1, 0.2, 0.3, 0.4, 1.0])).hex()
    assert (folder != cache_dir().name) == numba_internals.TRICKS


@pytest.mark.long
def test_without_tricks_runs_are_the_same():
    comparison = kvgym.compare("mc-sf-model-2", ["fcfs", "mc_sf"], seeds=1, workers=2)
    expected = [run.metrics["e2e_latency_mean"].hex() for run in comparison.runs]
    assert in_public_ways("runs")[-1] == str(expected)


def test_pyproject_declares_the_supported_versions():
    tomllib = pytest.importorskip("tomllib")
    root = Path(__file__).resolve().parents[2]
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    assert "numba>={}.{}".format(*numba_internals.FIRST) in declared
