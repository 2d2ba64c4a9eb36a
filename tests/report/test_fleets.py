"""The figure of a fleet over time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.runs.fleets import CASES
from kvgym.report.fleets import BINS, fleet_pictures


def test_bands_are_the_workers_by_state_and_the_target_is_a_line() -> None:
    (case,) = (case for name, case in CASES.items() if name.startswith("budget"))
    result = case.play(compiled=False, ttft_slo=2.0)
    ((chart, label),) = fleet_pictures({"plan": result})
    workers, load, ttft = chart.panels
    assert label == "plan"
    ready, draining, starting, target = workers.series
    assert [line.name for line in workers.series] == ["ready", "draining", "starting", "target"]
    # Changes at 0, 1 (one drains), 5 (it is off, another starts), 8 (that is ready); the end is at 11.
    assert list(ready.values["x"]) == [0, 1, 5, 8, 11]
    assert list(ready.values["y"]) == [2, 1, 1, 2, 0]
    assert list(draining.values["y"]) == [2, 2, 1, 2, 0]
    assert list(starting.values["y"]) == [2, 2, 2, 2, 0]
    assert list(starting.look["base"]) == [2, 2, 1, 2, 0]
    assert (list(target.values["x"]), list(target.values["y"])) == ([0, 1, 11], [2, 2, 2])
    width = 11 / BINS
    assert [float(np.sum(line.values["y"][:-1]) * width) for line in load.series] == pytest.approx([3, 3])
    assert np.nanmax(ttft.series[1].values["y"]) == 1
    assert ttft.rules == [("y", 2.0, "target 2 s")]


def test_runs_without_a_fleet_have_no_picture() -> None:
    result = next(iter(CASES.values())).play(compiled=False)
    assert len(list(fleet_pictures({"fleet": result}))) == 1
    assert not list(fleet_pictures({"none": replace(result, fleet=None)}))
