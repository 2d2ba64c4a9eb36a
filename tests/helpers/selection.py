"""Selections of parameters: what every run of the tests takes, and what only ``pytest --long`` adds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from kvgym.policies.policy import POLICIES

FAMILIES = (
    "fcfs", "alpha_beta", "mc_sf", "flow_control", "a_min", "sarathi", "dist_serve", "rad", "ageing", "ranked", "slai",
    "nested_wait", "vllm_v1", "work_conserving_sjf_lookahead", "learned_rank",
)  # fmt: skip
"""One policy of each family; the others differ from it in a few lines of their kernels."""


def others_long(values: Sequence[Any], always: Collection[Any]) -> list[Any]:
    """Return the values as parameters, those not in ``always`` marked as long; a tuple has a value for each name."""
    return [
        value
        if value in always
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)
        for value in values
    ]


EACH_FAMILY = pytest.mark.parametrize("name", others_long(list(POLICIES), FAMILIES))
"""Every policy, those that stand for no family marked as long."""
