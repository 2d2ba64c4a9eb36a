"""Which kinds of action can express which policies; tests/test_docs.py checks the whole table."""

from __future__ import annotations

import pytest

from kvgym.envs.demonstrations.expressible import ALWAYS, KNOWN, NEVER, SHORT, Expressible, expressible
from kvgym.errors import UnknownNameError
from kvgym.policies.policy import POLICIES


@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_express_everything(policy):
    found = expressible("tokens", policy)
    if hidden := POLICIES[policy].info.needs - KNOWN:
        assert found == Expressible(NEVER, reason=f"{sorted(hidden)[0]} is not part of the tested workloads")
    else:
        assert found == Expressible(ALWAYS, "queue", "lifo")


@pytest.mark.parametrize(
    ("action", "policy", "how_far", "why"),
    [
        ("admit_count", "fcfs", ALWAYS, ""),
        ("admit_count", "sarathi", SHORT, "processes part of a prompt"),
        ("admit_count", "mc_sf", ALWAYS, ""),
        ("admit_count", "ageing", NEVER, "out of the order of the queue window"),
        ("admit_evict", "wait", NEVER, "waits"),
        ("flags", "alpha_beta", NEVER, "pauses"),
        ("knobs", "fcfs", NEVER, "parameters of a rule"),
    ],
)
def test_limits_of_the_other_kinds(action, policy, how_far, why):
    found = expressible(action, policy)
    assert found.how_far == how_far
    assert why in found.reason


def test_unknown_kinds():
    with pytest.raises(UnknownNameError, match="unknown action 'knob'"):
        expressible("knob", "fcfs")
