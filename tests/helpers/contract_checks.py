"""The conformance checks of policies on a part of their cases."""

from __future__ import annotations

import dataclasses

from kvgym.policies.contract import CHECKS
from kvgym.policies.contract.cases import Make
from kvgym.policies.contract.checking import policy_maker

from .amount import some


def check_on_some(policy: str | Make, name: str) -> None:
    """Check a policy as ``check_policy`` does; without ``--long`` on every second case where there are ten or more."""
    check = CHECKS[name]
    cases = list(check.cases())
    chosen = some(cases, 2 if len(cases) >= 10 else 1)
    dataclasses.replace(check, cases=lambda: iter(chosen)).run(
        policy_maker(policy) if isinstance(policy, str) else policy
    )
