"""Fixtures of the tests of scheduling environments."""

import pytest

from kvgym.compiling.kernel import uncompiled
from kvgym.envs.scheduling import stepping


@pytest.fixture
def part(monkeypatch):
    """Return a function that returns a plain Python function of the stepping module, with stubs for some callees."""

    def make(name, **others):
        function = uncompiled(getattr(stepping, name))
        for other, stand_in in others.items():
            assert other in function.__globals__
            monkeypatch.setitem(function.__globals__, other, stand_in)
        return function

    return make
