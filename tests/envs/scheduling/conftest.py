"""Fixtures of the tests of scheduling environments."""

import pytest

from kvgym.compiling.kernel import uncompiled
from kvgym.envs.scheduling import stepping


@pytest.fixture
def part(monkeypatch):
    """Return what makes a function of the stepping module plain Python, with stand-ins for some that it calls."""

    def make(name, **others):
        function = uncompiled(getattr(stepping, name))
        for other, stand_in in others.items():
            assert other in function.__globals__
            monkeypatch.setitem(function.__globals__, other, stand_in)
        return function

    return make
