"""Each check finds the fault of a faulty policy, and no other, with few requests."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from helpers import faulty_policies as faulty
from kvgym.errors import ConfigError, ContractError, UnknownNameError
from kvgym.policies.contract import CHECKS, Finding, check_policy, examine, policy_maker
from kvgym.policies.contract.cases import Case, requests, shrink
from kvgym.policies.contract.checking import _entries


@pytest.mark.parametrize("check", ["description", "powers", "repeatable", "undeclared", "true lengths"])
def test_a_policy_without_fault(check):
    check_policy("helpers.faulty_policies:OneByOne,spare=3", check)


@pytest.mark.parametrize(
    ("policy", "check", "fault"),
    [
        (faulty.Peeks, "true lengths", "its decisions change with true lengths or future arrivals"),
        (
            faulty.Remembers,
            "repeatable",
            "the same run after another one; reset() must clear all state: requests.start_time",
        ),
        (faulty.Starves, "every request", "it has admitted no request for"),
        (faulty.Luck, "repeatable", ": requests.start_time has "),
        (faulty.Evicts, "powers", "info.evicts is False"),
        (
            faulty.ByPrediction,
            "undeclared",
            "it reads predicted_len, which is blank because info.needs does not declare 'predicted_length'",
        ),
        (
            faulty.Undeclared,
            "undeclared",
            "depends on ttft_slo and tbt_slo and e2e_slo; info.needs does not declare 'slo'",
        ),
    ],
)
def test_faults_are_found_with_few_requests(policy, check, fault):
    with pytest.raises(ContractError, match=re.escape(fault)) as caught:
        check_policy(policy, check)
    system, *rows = caught.value.details.splitlines()
    assert re.search(rf"kv_capacity=.*; {len(rows)} requests:", system)
    assert 1 <= len(rows) <= 8
    assert all(re.fullmatch(r"  at \S+, prompt \d+, output \d+, predicted \d+", row) for row in rows)


def test_failing_cases_shrink():
    """The failure needs two requests: those with the longest and the shortest prompt."""
    case = Case(requests(n=40), system=None)
    low, high = case.table.prompt_len.min(), case.table.prompt_len.max()
    tried = []

    def fails(fewer):
        tried.append(len(fewer.table))
        return {low, high} <= set(fewer.table.prompt_len.tolist())

    assert sorted(shrink(case, fails, 200).table.prompt_len) == [low, high]
    few = len(tried)
    assert len(shrink(case, fails, 3).table) < 40
    assert len(tried) == few + 3
    assert len(shrink(case, lambda fewer: False).table) == 40


def test_specs_of_no_policy_are_refused():
    for spec, message in (
        ("helpers.faulty_policies:Nothing", "AttributeError"),
        ("no_such_module:Policy", "No module named"),
        ("helpers.faulty_policies:Decision", "not a class derived from kvgym.Policy"),
    ):
        with pytest.raises(ConfigError, match=message):
            policy_maker(spec)
    with pytest.raises(UnknownNameError, match="fcsf"):
        policy_maker("fcsf")()
    with pytest.raises(UnknownNameError, match="Did you mean 'moves'"):
        check_policy("fcfs", "move")
    assert policy_maker("helpers.faulty_policies:OneByOne,spare=3")().spare == 3
    assert policy_maker("fcfs:protection=0.2")().protection == 0.2


@pytest.fixture
def importable(monkeypatch):
    """Make the tests' modules importable in other processes."""
    monkeypatch.setenv("PYTHONPATH", str(Path(faulty.__file__).parents[1]))


def test_a_crash_is_reported_and_the_other_checks_run(importable):
    began = []
    found = list(
        examine("helpers.faulty_policies:Crashes", ["repeatable", "description"], begins=began.append)
    )
    crash = "the process was ended by SIGSEGV: its kernel reads or writes outside its memory"
    assert found == [Finding("description", crash), Finding("repeatable", crash)]
    assert began == ["description", "repeatable"]
    with pytest.raises(ConfigError, match="unknown policy 'unknown'"):
        list(examine("unknown", ["moves"]))


@pytest.mark.parametrize(("policy", "fault"), [("Misspelt", "kv_capacty"), ("Crashes", "SIGSEGV")])
def test_a_policy_that_cannot_run_is_reported_once(importable, policy, fault):
    first, *others = examine(f"helpers.faulty_policies:{policy}")
    assert first.name == "one run"
    assert fault in first.fault
    assert others == [Finding(name, skipped=True) for name in CHECKS if name != "one run"]


def test_a_kernel_that_writes_out_of_bounds_is_reported(importable):
    (finding,) = examine("helpers.faulty_policies:Wild", ["repeatable"])
    where = "OutOfBoundsError: policy 'wild', iteration 0, t = 7 s: index is out of bounds in wild"
    assert where in finding.fault
    assert "3 requests:" in finding.fault


def test_a_silent_process_is_killed():
    command = [sys.executable, "-c", "import time; print('{}', flush=True); time.sleep(99)"]
    late = threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        entries = [entry for entry in _entries(process, 20.0, late) if process.kill() is None]
    assert entries == [{}]
    assert not late.is_set()
    with subprocess.Popen(
        [*command[:2], "import time; time.sleep(99)"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert list(_entries(process, 0.1, late)) == []
    assert late.is_set()


def test_checks_have_descriptions_of_one_line():
    assert len(CHECKS) == len({check.what for check in CHECKS.values()})
    assert all(20 < len(check.what) < 120 and "\n" not in check.what for check in CHECKS.values())
    assert np.all([check.name == name for name, check in CHECKS.items()])
