"""The golden traces: every registered policy decides on a small instance as it did when it was reviewed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kvgym.policy import POLICIES

FOLDER = Path(__file__).parent


def _generator() -> Any:
    spec = importlib.util.spec_from_file_location("golden_generate", FOLDER / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()


@pytest.mark.parametrize("policy", POLICIES)
def test_trace_is_unchanged(policy: str) -> None:
    path = FOLDER / f"{policy}.txt"
    assert path.exists(), (
        f"no golden trace: run python tests/golden/generate.py {policy}, check it, commit it"
    )
    assert GENERATOR.trace(policy) == path.read_text(encoding="utf-8")


def test_every_trace_belongs_to_a_policy() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == sorted(POLICIES)
