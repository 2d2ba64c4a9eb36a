"""Kernels that cannot be compiled raise a one-line error with the file and line."""

from __future__ import annotations

import re

import pytest

from kvgym.errors import KernelError
from kvgym.kernels import jit, policy_kernel


@policy_kernel
def no_such_field(view, decision, memory):
    decision.record.act = view.worker.num_activ


@policy_kernel
def no_such_table(view, decision, memory):
    decision.record.act = view.wrker.num_active


@jit
def helper(view):
    return view.worker.num_activ


@policy_kernel
def no_such_field_in_a_helper(view, decision, memory):
    decision.record.act = helper(view)


@policy_kernel
def no_such_name(view, decision, memory):
    decision.record.act = nowhere(view)  # noqa: F821


@policy_kernel
def what_compiled_code_cannot_do(view, decision, memory):
    decision.record.act = "a" + view.worker.num_active


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (no_such_field, r"no field 'num_activ'; did you mean num_active .*\? \(.*:LINE\)"),
        (no_such_table, r"no field 'wrker' of PolicyView; did you mean worker or wake\? \(.*:LINE\)"),
        (
            no_such_field_in_a_helper,
            r"no field 'num_activ'; did you mean num_active .*\? \(.*test_errors.py:\d+\)",
        ),
        (no_such_name, "name 'nowhere' is not defined"),
        (what_compiled_code_cannot_do, r"No implementation of function .*test_errors.py:LINE\)"),
    ],
)
def test_the_error_has_one_line_with_reason_and_place(kernel, text):
    line = kernel.function.__code__.co_firstlineno + 2
    with pytest.raises(KernelError, match=text.replace("LINE", str(line))) as caught:
        _ = kernel.compiled
    assert re.match(
        rf"scheduler test_errors\.{kernel.function.__name__} cannot be compiled: ", str(caught.value)
    )
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert caught.value.__suppress_context__, "Numba's page of types is shown too"
