"""kvgym's compiler passes keep the meaning of kernels and leave Numba unchanged for other code."""

import ast
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


def test_numba_is_patched_only_while_kvgym_compiles():
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


OTHER_CODE = """
import numba
import numpy as np

@numba.njit
def last(numbers):
    copy = numbers * 2.0  # allocates, and counts references
    return copy[-1]

@numba.njit
def total(table, weights):
    found = 0.0
    for i in range(table.shape[0]):
        for k in range(-1, table.shape[1] - 1):
            found += table[i, k] * weights[k]
    return found

assert last(np.arange(4.0)) == 6.0
assert total(np.ones((3, 4)), np.arange(4.0)) == 18.0
assert "NRT_" in "".join(last.inspect_llvm().values())
lines = [line for f in (last, total) for text in f.inspect_asm().values() for line in text.splitlines()]
print([line.split()[0] for line in lines if line[:1] == "\\t" and line[1] != "."])
"""
"""Code of another library: checks that it works and prints its machine instructions."""

UNCHANGED = """
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

from kvgym import RequestTable, System, make_batch_time, simulate
table = RequestTable.from_columns(arrival_time=[0.0], prompt_len=[2], output_len=[3])
assert simulate(System(9, make_batch_time({"kind": "unit"})), table, "fcfs").completed

assert [getattr(place, name) for place, name in places] == before
assert {name: getattr(numba.config, name) for name in config} == config
"""
"""Use kvgym, and check that it has left Numba's functions and settings unchanged."""


@pytest.mark.skipif(CHECKED, reason="the checked build checks all indices of the process")
def test_other_code_in_the_process_is_compiled_as_without_kvgym():
    """It behaves and performs as before: its machine code has the same instructions."""
    instructions = []
    for code in (OTHER_CODE, UNCHANGED + OTHER_CODE):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        instructions.append(ast.literal_eval(done.stdout))
    assert instructions[0] == instructions[1]
    assert len(instructions[0]) > 100


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
    usual = numba.njit(sum_of_shares.signature)(sum_of_shares.function)  # Numba's usual passes
    assert usual(numbers) == sum_of_shares(numbers)


def ratio(a, b):
    """Only for compiled code."""


@overload(ratio)
def _ratio(a, b):
    return lambda a, b: a / b


@numba.njit(error_model="numpy")
def ratio_of_users(a, b):
    return ratio(a, b)


@kernel(types.float64(types.float64, types.float64))
def first(a, b):
    return ratio(a, b)


@kernel(types.float64(types.float64, types.float64))
def second(a, b):
    return ratio(a, b) + 1.0


@kernel(types.float64(types.float64, types.float64))
def both(a, b):
    return ratio(a, b) + ratio_of_users(a, 1.0) + ratio(b, b + 1.0)


def test_other_codes_settings_do_not_leak_into_kernels():
    """An overload compiled with other settings in between has two implementations; each caller gets its own."""
    with pytest.raises(ZeroDivisionError):
        first(1.0, 0.0)
    assert ratio_of_users(1.0, 0.0) == np.inf
    for compiled in (second, both):
        with pytest.raises(ZeroDivisionError):
            compiled(1.0, 0.0)
        assert np.isfinite(compiled(1.0, 2.0))
    assert ratio_of_users(-1.0, 0.0) == -np.inf
