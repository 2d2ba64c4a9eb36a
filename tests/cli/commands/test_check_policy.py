"""``kvgym check-policy``: the table, failures below it, and the exit status."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import kvgym.policies.contract
from kvgym.cli.app import app
from kvgym.policies.contract import CHECKS, Finding

FAULT = (
    "it evicts; info.evicts is False\nkv_capacity=48; 1 requests:\n  at 0, prompt 3, output 2, predicted 2"
)


@pytest.mark.parametrize("fault", ["", FAULT])
def test_table_and_exit_status(fault, monkeypatch):
    given = {}

    def examine(spec, names, *, timeout, begins):
        given.update(spec=spec, names=list(names), timeout=timeout)
        begins("description")
        yield Finding("description")
        yield Finding("moves", fault)
        yield Finding("powers", skipped=True)

    monkeypatch.setattr(kvgym.policies.contract, "examine", examine)
    command = ["check-policy", "mine:Policy", "-c", "moves", "--check", "description", "--timeout", "9"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == bool(fault)
    assert given == {"spec": "mine:Policy", "names": ["moves", "description"], "timeout": 9.0}
    assert CHECKS["moves"].what[:30] in done.output
    assert ("failed" in done.output) == bool(fault)
    assert fault in done.output
    assert "skipped" in done.output


def test_an_unknown_check_is_an_error(monkeypatch):
    done = CliRunner().invoke(app, ["check-policy", "fcfs", "--check", "nothing"])
    assert "unknown check 'nothing'" in str(done.exception)
