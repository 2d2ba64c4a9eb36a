"""Fixtures of the tests of evolution: the small configuration, and a policy that declares weights."""

import pytest

from helpers.training.evolution_runs import TINY
from kvgym.agents.runs.config import make_training
from kvgym.policies.hyperparameters import Weight, require
from kvgym.policies.policy import POLICIES, CompiledPolicy, PolicyInfo


@pytest.fixture
def tiny():
    """Make the small configuration, with some fields replaced."""
    return lambda **changes: make_training({**TINY, **changes})


@pytest.fixture
def weighted(monkeypatch):
    """A registered policy that declares weights: a number, and as many more as ``count`` says."""
    fcfs = POLICIES["fcfs"]

    class Weighted(CompiledPolicy):
        info = PolicyInfo(name="weighted", summary="first come, first served, with a margin", evicts=True)
        kernel = fcfs.kernel

        def __init__(self, *, margin=0.25, bias=(0.0, 0.0), count=2):
            require("count", count, len(bias) == count, "the length of bias")
            require("margin", margin, 0 <= margin < 1, "a fraction in [0, 1)")
            self.like = fcfs(protection=round(margin, 6))

        @classmethod
        def weights(cls, **fixed):
            return (
                Weight("margin", 0.25, 0.1, 0.0, 0.75),
                Weight("bias", 0.0, 1.0, size=fixed.get("count", 2)),
            )

        def params(self, system):
            return self.like.params(system)

        def memory(self, system):
            return self.like.memory(system)

    monkeypatch.setitem(POLICIES._items, "weighted", Weighted)
    return Weighted
