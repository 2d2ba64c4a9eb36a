"""Kernels are compiled with passes of kvgym's own: these compute what the source does, and Numba stays as it is."""

import subprocess
import sys

import numba
import numpy as np
import pytest
from numba import types
from numba.extending import overload
from numba.np import arrayobj

from kvgym.compiling.checked_build import CHECKED
from kvgym.compiling.kernel import jit, kernel
from kvgym.compiling.numba_internals import no_index_wraparound


def test_numba_is_as_before():
    """Numba is patched only while kvgym compiles: what other code in the process compiles keeps its meaning."""
    before = arrayobj.fix_integer_index
    with no_index_wraparound():
        assert arrayobj.fix_integer_index is not before
        with no_index_wraparound():
            pass
        assert arrayobj.fix_integer_index is not before
    assert arrayobj.fix_integer_index is before
    with pytest.raises(ZeroDivisionError), no_index_wraparound():
        raise ZeroDivisionError
    assert arrayobj.fix_integer_index is before


UNTOUCHED = """
import numba
from numba.core import cgutils, codegen, targetconfig, typed_passes, types
from numba.np import arrayobj

places = [
    (arrayobj, "fix_integer_index"), (cgutils, "do_boundscheck"), (targetconfig.TargetConfig, "__eq__"),
    (targetconfig.TargetConfig, "__hash__"), (types.functions.BaseFunction, "get_call_type"),
    (typed_passes.NativeLowering, "run_pass"), (codegen.JITCodeLibrary, "_optimize_final_module"),
]
before = [getattr(place, name) for place, name in places]
config = {name: getattr(numba.config, name) for name in dir(numba.config) if name.isupper()}

import numpy as np
from kvgym import RequestTable, System, make_batch_time, simulate
table = RequestTable.from_columns(arrival_time=[0.0], prompt_len=[2], output_len=[3])
assert simulate(System(9, make_batch_time({"kind": "unit"})), table, "fcfs").completed

assert [getattr(place, name) for place, name in places] == before
assert {name: getattr(numba.config, name) for name in config} == config

@numba.njit
def last(numbers):
    copy = numbers * 2.0  # allocates, and counts references
    return copy[-1]

assert last(np.arange(4.0)) == 6.0
assert "NRT_" in "".join(last.inspect_llvm().values())
print("as before")
"""


@pytest.mark.skipif(CHECKED, reason="the checked build checks all indices of the process")
def test_other_code_in_the_process_is_compiled_as_without_kvgym():
    done = subprocess.run([sys.executable, "-c", UNTOUCHED], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "as before\n"), done.stderr


@jit
def share(numbers, k):
    return numbers[k] / np.sqrt(numbers.shape[0] + 1.0)


@kernel(types.float64(types.float64[::1]))
def sum_of_shares(numbers):
    total = 0.0
    for k in range(numbers.shape[0]):
        total += share(numbers, k) if numbers[k] > 0.5 else min(numbers[k], 0.25)
    return total


def plain_sum(numbers):
    total = 0.0
    for x in numbers.tolist():
        total += x / np.sqrt(len(numbers) + 1.0) if x > 0.5 else min(x, 0.25)
    return total


def test_a_kernel_computes_what_its_source_does():
    numbers = np.random.default_rng(0).random(1000)
    assert sum_of_shares(numbers) == plain_sum(numbers)
    usual = numba.njit(sum_of_shares.signature)(sum_of_shares.function)  # with none of the shortcuts
    assert usual(numbers) == sum_of_shares(numbers)


def ratio(a, b):
    """Only compiled code calls it."""


@overload(ratio)
def _ratio(a, b):
    return lambda a, b: a / b


@numba.njit(error_model="numpy")
def of_others(a, b):
    return ratio(a, b)


@kernel(types.float64(types.float64, types.float64))
def first(a, b):
    return ratio(a, b)


@kernel(types.float64(types.float64, types.float64))
def second(a, b):
    return ratio(a, b) + 1.0


@kernel(types.float64(types.float64, types.float64))
def both(a, b):
    return ratio(a, b) + of_others(a, 1.0) + ratio(b, b + 1.0)


def test_settings_of_others_do_not_leak_into_kernels():
    """An overload that was compiled by other settings in between has two implementations; each caller gets its own."""
    with pytest.raises(ZeroDivisionError):
        first(1.0, 0.0)
    assert of_others(1.0, 0.0) == np.inf
    for compiled in (second, both):
        with pytest.raises(ZeroDivisionError):
            compiled(1.0, 0.0)
        assert np.isfinite(compiled(1.0, 2.0))
    assert of_others(-1.0, 0.0) == -np.inf
