"""The comparison with other simulators gives kvgym their batch times."""

import sys

import pytest

from helpers.script_folders import importing_from


@pytest.fixture(scope="module")
def simulators():
    with importing_from("speed/others") as load:
        yield load("simulators")


@pytest.mark.parametrize(("other", "ends"), [("aisimulate", 0.04), ("sched-sim", 0.03 + 0.0201 + 0.020101)])
def test_a_request_alone_takes_the_batch_times_of_the_other(simulators, other, ends):
    # A prompt of 100 tokens makes the first of 3 tokens; two decodes read 100 and 101 tokens of KV.
    ours = simulators.our_system(other), simulators.our_table([(0.0, 100, 3)])
    assert simulators.play_kvgym(*ours) == pytest.approx(ends, rel=1e-12)


def test_the_table_has_a_row_for_each(simulators, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["simulators.py", "--smoke"])
    simulators.main()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["aisimulate", "sched-sim"]
