"""Commands that are killed go on, in a small version of the script that does it many times."""

import random

import pytest

from helpers.selection import others_long


def test_which_commands_are_killed(checks):
    assert set(checks("kill_runs").commands(1)) == {"train", "compare", "tune", "capacity"}


@pytest.mark.parametrize("name", others_long(["compare", "capacity"], {"compare"}))
def test_a_command_that_is_killed_once(checks, tmp_path, name):
    script = checks("kill_runs")
    assert script.disturb(script.commands(1)[name], tmp_path / name, 1, random.Random(0)) <= 1
