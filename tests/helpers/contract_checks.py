"""The conformance checks of policies on a part of their cases."""

from __future__ import annotations

import dataclasses

from kvgym.policies.contract import CHECKS
from kvgym.policies.contract.cases import Make
from kvgym.policies.contract.checking import policy_maker

from .amount import some
from .selection import FAMILIES


def check_on_some(policy: str | Make, name: str) -> None:
    """Check a policy as ``check_policy`` does; without ``--long`` on some of its cases where there are ten or more.

    Policies that stand for a family, and those of the documentation, get every second one, others every fifth.
    """
    check = CHECKS[name]
    cases = list(check.cases())
    step = 5 if isinstance(policy, str) and policy not in FAMILIES else 2
    chosen = some(cases, step if len(cases) >= 10 else 1)
    dataclasses.replace(check, cases=lambda: iter(chosen)).run(
        policy_maker(policy) if isinstance(policy, str) else policy
    )
