"""The conformance checks, and further requirements of every registered policy."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.contract_checks import check_on_some
from helpers.selection import FAMILIES, others_long
from kvgym.errors import ConfigError
from kvgym.policies.contract import CHECKS
from kvgym.policies.contract.cases import TIMES, Case, outcome, requests, require_equal
from kvgym.policies.policy import NEEDS, POLICIES, make_policy, policy_defaults
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System

EACH = pytest.mark.parametrize("name", POLICIES)
SLOW = ("compiled", "overflow", "powers", "moves")
"""Checks that only policies of :data:`~helpers.selection.FAMILIES` get without ``--long``."""
GOLDEN = Path(__file__).parent.parent / "golden"
SYSTEM = System(kv_capacity=48, batch_time=TIMES["affine"])


@pytest.mark.parametrize(
    ("check", "name"),
    others_long(
        [(check, name) for check in CHECKS if check != "invariants" for name in POLICIES],
        {(check, name) for check in CHECKS for name in (FAMILIES if check in SLOW else POLICIES)},
    ),
)
def test_contract(name: str, check: str) -> None:
    """Invariants are in tests/simulator/test_invariants.py, on what Hypothesis finds."""
    check_on_some(name, check)


# ---------------------------------------------------------------- description


@EACH
def test_info_is_complete(name: str) -> None:
    cls = POLICIES[name]
    info = cls.info
    assert info.name == name
    assert name.isidentifier()
    assert name == name.lower()
    assert info.summary
    assert "\n" not in info.summary
    assert info.needs | info.uses <= set(NEEDS)
    assert not info.needs & info.uses
    assert bool(info.algorithm) <= bool(info.paper), "an algorithm number without its paper"
    assert cls.__doc__
    assert cls.__init__.__doc__ or not policy_defaults(cls)


@EACH
def test_there_is_a_golden_trace(name: str) -> None:
    assert (GOLDEN / f"{name}.txt").exists(), (
        f"run python tests/golden/generate.py {name} and check the trace"
    )


@EACH
def test_hyperparameters(name: str) -> None:
    defaults = policy_defaults(POLICIES[name])
    assert make_policy(name).hyperparameters() == {}
    policy = make_policy(name, **defaults)
    assert json.loads(json.dumps(policy.hyperparameters())) == defaults
    assert repr(policy).startswith(f"{name}(")
    spec = name + ":" * bool(defaults) + ",".join(f"{k}={v}" for k, v in defaults.items())
    assert make_policy(spec).hyperparameters() == defaults
    case = Case(requests(), SYSTEM)
    require_equal(
        outcome(case, make_policy(spec)), outcome(case, policy), "by its spec, and by all its defaults"
    )


@EACH
def test_unknown_hyperparameters_are_refused(name: str) -> None:
    for make in (lambda: make_policy(name, no_such_thing=1), lambda: make_policy(f"{name}:no_such_thing=1")):
        with pytest.raises(ConfigError, match="no_such_thing") as error:
            make()
        assert name in str(error.value)
        message = f"{error.value}\n{error.value.details}"
        assert all(parameter in message for parameter in policy_defaults(POLICIES[name]))


# ---------------------------------------------------------------- reproducibility


def digest(name: str) -> str:
    """Return a hash of all results of two runs."""
    total = hashlib.sha256()
    for seed in (0, 1):
        result = simulate(SYSTEM, requests(seed), name, seed=seed, log=True)
        for table in (result.requests, result.worker, result.log, result.gap_counts, result.gap_sums):
            assert table is not None
            for field in table.dtype.names or ():
                total.update(np.ascontiguousarray(table[field]).tobytes())
            if table.dtype.names is None:
                total.update(table.tobytes())
    return total.hexdigest()


def test_same_bits_in_another_process() -> None:
    code = (
        f"import importlib.util, json, sys\nsys.path.append({str(GOLDEN.parent)!r})\n"
        f"spec = importlib.util.spec_from_file_location('contract', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(json.dumps({name: module.digest(name) for name in module.POLICIES}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "123"},
    )
    assert json.loads(done.stdout) == {name: digest(name) for name in POLICIES}
