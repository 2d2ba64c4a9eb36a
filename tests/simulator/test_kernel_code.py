"""Kernels are compiled with shortcuts: these do what they stand for, and Numba is afterwards as it was."""

import operator

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import types
from numba.core import compiler, targetconfig
from numba.core.registry import cpu_target
from numba.extending import overload

from kvgym.simulator import kernel_code
from kvgym.simulator.compiled import jit, kernel
from kvgym.simulator.kernel_code import quicker

OPTIONS = ("nrt", "forceinline", "boundscheck", "no_compile", "release_gil")

flags = st.dictionaries(st.sampled_from(OPTIONS), st.booleans()).map(
    lambda chosen: settings(compiler.Flags, chosen)
)


def settings(kind, chosen):
    found = kind()
    for name, value in chosen.items():
        setattr(found, name, value)
    return found


@given(flags, flags)
def test_settings_compare_as_numba_compares_them(one, other):
    usual, hashes = one == other, (hash(one), hash(other))
    with quicker():
        assert (one == other) is usual
        assert (hash(one), hash(other)) == hashes
    assert usual == (one.values() == other.values())


def test_what_is_set_to_its_default_is_not_set():
    with quicker():
        assert settings(compiler.Flags, {"nrt": False}) == compiler.Flags()
        assert settings(compiler.Flags, {"nrt": True}) != compiler.Flags()


def test_settings_of_another_kind_are_others():
    class Own(targetconfig.TargetConfig):
        nrt = targetconfig.Option(type=bool, default=False, doc="as in flags")

    one, other = Own(), compiler.Flags()
    usual = one == other
    with quicker():
        assert (one == other) is usual is False
        assert one != "nrt"


def parts():
    return targetconfig.TargetConfig.__eq__, targetconfig.TargetConfig.__hash__, types.Function.get_call_type


def test_numba_is_as_before():
    before = parts()
    with quicker():
        assert not set(parts()) & set(before)
    assert parts() == before

    def fail():
        with quicker():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert parts() == before


def test_calls_are_typed_as_without():
    context = cpu_target.typing_context
    context.refresh()
    numbers = (
        types.int32,
        types.int64,
        types.uint8,
        types.float32,
        types.float64,
        types.boolean,
        types.literal(3),
    )
    names = (operator.add, operator.truediv, operator.floordiv, operator.lt, operator.and_, operator.getitem)
    arrays = (types.float64[::1], types.int32[:, ::1])
    for name in names:
        function = context.resolve_value_type(name)
        for a in (*numbers, *arrays):
            for b in numbers:
                outcomes = []
                for _ in range(2):
                    outcomes.append(typed(context, function, a, b))
                    with quicker():
                        outcomes += [typed(context, function, a, b), typed(context, function, a, b)]
                assert len(set(outcomes)) == 1, (name, a, b)


def typed(context, function, a, b):
    try:
        return str(function.get_call_type(context, (a, b), {}))
    except numba.TypingError:
        return "refused"


def test_signatures_are_kept_once():
    context = cpu_target.typing_context
    context.refresh()
    function = context.resolve_value_type(operator.add)
    with quicker():
        one = function.get_call_type(context, (types.int16, types.float32), {})
        kept = len(kernel_code._TYPED)
        assert function.get_call_type(context, (types.int16, types.float32), {}) is one
        assert len(kernel_code._TYPED) == kept


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
