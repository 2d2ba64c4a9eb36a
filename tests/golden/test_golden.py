"""The golden traces: every registered policy decides on a small instance as it did when it was reviewed."""

from __future__ import annotations

import pytest

from golden import generate
from kvgym.policies.policy import POLICIES

FOLDER = generate.FOLDER


@pytest.mark.parametrize("policy", POLICIES)
def test_trace_is_unchanged(policy: str) -> None:
    path = FOLDER / f"{policy}.txt"
    assert path.exists(), (
        f"no golden trace: run python tests/golden/generate.py {policy}, check it, commit it"
    )
    assert generate.trace(policy) == path.read_text(encoding="utf-8")


def test_every_trace_belongs_to_a_policy() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == sorted(POLICIES)
