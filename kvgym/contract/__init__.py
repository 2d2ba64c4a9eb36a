"""What every policy must do, as checks: for authors of policies, for the tests, and behind ``kvgym check-policy``.

In a test of one's own::

    from kvgym.contract import CHECKS, check_policy


    @pytest.mark.parametrize("check", CHECKS)
    def test_contract(check):
        check_policy("my_policy:spare=0.1", check)

:func:`check_policy` runs here, so that a compiled kernel that writes outside of its arrays may end the process;
:func:`examine` runs in another process of the checked build, and says so.
May import :mod:`kvgym.runner` and what is below it; may be imported from :mod:`kvgym.cli` and by tests.
"""

from __future__ import annotations

from kvgym.contract.checking import Finding, check_policy, examine, policy_maker
from kvgym.contract.checks import CHECKS, Check

__all__ = ["CHECKS", "Check", "Finding", "check_policy", "examine", "policy_maker"]
