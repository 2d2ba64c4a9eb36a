"""Commands that are killed go on, in a small version of the script that does it many times."""

import random


def test_a_comparison_that_is_killed_once(scripts, tmp_path):
    script = scripts("kill_runs")
    known = script.commands(1)
    assert set(known) == {"train", "compare", "tune"}
    assert script.disturb(known["compare"], tmp_path / "compare", 1, random.Random(0)) <= 1
