"""A module with the functions of Trackio and Weights & Biases that records what it gets."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest


class FakeTracker(types.ModuleType):
    """Records one run.

    Attributes:
        started: arguments of ``init``.
        curves: points by name, a mapping of steps to values.
        finished: calls of ``finish``.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """Take the place of a module."""
        super().__init__(name)
        self.started: dict[str, Any] = {}
        self.curves: dict[str, dict[int, float]] = {}
        self.finished = 0
        monkeypatch.setitem(__import__("sys").modules, name, self)

    def init(self, **arguments: Any) -> None:
        assert not self.started
        self.started = arguments

    def log(self, values: dict[str, float], *, step: int) -> None:
        for name, value in values.items():
            assert type(value) is float
            assert math.isfinite(value)
            self.curves.setdefault(name, {})[step] = value

    def finish(self) -> None:
        self.finished += 1
