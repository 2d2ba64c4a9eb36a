"""The policy contract: checks that every policy must pass, for authors, for tests and for ``kvgym check-policy``.

In your own tests::

    from kvgym.policies.contract import CHECKS, check_policy


    @pytest.mark.parametrize("check", CHECKS)
    def test_contract(check):
        check_policy("my_policy:spare=0.1", check)

:func:`check_policy` runs in this process, which a compiled kernel can crash by writing outside its arrays.
:func:`examine` runs the checks in another process, of the checked build, which reports such a write.
May import :mod:`kvgym.policies.runner` and what is below it; may be imported from :mod:`kvgym.cli` and by tests.
"""

from __future__ import annotations

from kvgym.policies.contract.checking import Finding, check_policy, examine, policy_maker
from kvgym.policies.contract.checks import CHECKS, Check

__all__ = ["CHECKS", "Check", "Finding", "check_policy", "examine", "policy_maker"]
