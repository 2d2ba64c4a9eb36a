"""The reproduction of the WAIT paper runs, and its scenarios are the paper's."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvgym.batch_time import make_batch_time
from kvgym.batch_time.hardware import load_hardware
from kvgym.experiments.scenario import load_scenario
from kvgym.theory.fluid import batch_memory, fluid_equilibrium, full_batch_time
from kvgym.workloads.classes import ClassStatistics

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "reproduce" / "wait.py"


def test_a_quick_run_prints_every_section(tmp_path, reproduce):
    pytest.importorskip("matplotlib")
    command = [sys.executable, str(SCRIPT), "--quick", "--image", str(tmp_path / "picture.png")]
    done = subprocess.run(
        command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for section in reproduce("wait").SECTIONS:
        assert f"## {section}\n" in done.stdout
    assert "overflow probability 0.3910" in done.stdout
    assert "[(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]" in done.stdout
    assert "m = 4, 15/14/12/8: M^pi = 135,000 tokens, bound (14) ∞" in done.stdout
    # Ten times the requests on a GPU five times as fast are twice the load.
    here, faster = (
        float(re.search(rf"^\| {rate} \| {speed} \| ([\d.]+) \|", done.stdout, re.M)[1])
        for rate, speed in ((50, 1), (500, 5))
    )
    assert faster == pytest.approx(2 * here, abs=0.02)
    # Example 2: WAIT keeps the 4 completions of the equilibrium, FCFS falls short of them.
    wait, fcfs = (
        float(re.search(rf"^\| {policy} \| ([\d.]+) \| [\d.]+ \|$", done.stdout, re.M)[1])
        for policy in ("wait", "fcfs")
    )
    assert wait == pytest.approx(4, rel=0.01)
    assert 2.5 < fcfs < 3.6
    assert (tmp_path / "picture.png").stat().st_size > 1000


def _environment():
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_rates_invert_the_equilibrium(reproduce):
    d0, d1 = 0.01, 2e-7
    model = make_batch_time({"kind": "affine", "constant": d0, "per_context_token": d1})
    shares = (("a", 3.0, 10.0, 20.0), ("b", 1.0, 10.0, 50.0))
    rate = reproduce("papers.wait.equilibrium").rate_at([ClassStatistics(*c) for c in shares], 50_000, model)
    classes = [ClassStatistics(name, r * rate / 4, s, o) for name, r, s, o in shares]
    # Batches count whole tokens, so that the sum is rounded up by less than one in 50,000.
    assert fluid_equilibrium(classes, d0, d1).memory == pytest.approx(50_000, rel=1e-4)


def test_the_least_equilibrium_is_one_where_an_empty_batch_takes_no_time(reproduce):
    least_equilibrium = reproduce("papers.wait.equilibrium").least_equilibrium
    setting = reproduce("papers.wait.setting")
    classes = [ClassStatistics("a", 3.0, 10.0, 20.0), ClassStatistics("b", 1.0, 10.0, 50.0)]
    d0, d1 = 0.01, 2e-7
    affine = make_batch_time({"kind": "affine", "constant": d0, "per_context_token": d1})
    assert least_equilibrium(classes, 4.0, affine) == pytest.approx(
        fluid_equilibrium(classes, d0, d1).memory, rel=1e-4
    )
    measured = load_hardware(setting.HARDWARE).batch_time(engine=setting.ENGINE)
    assert full_batch_time(classes, [0, 0], measured) == 0
    memory = least_equilibrium(classes, 40.0, measured)
    n = memory / batch_memory(classes, [0.75, 0.25])
    assert n > 0
    assert n == pytest.approx(40 * full_batch_time(classes, n * np.array([0.75, 0.25]), measured))


def test_the_affine_fit_finds_an_affine_model(reproduce):
    fit_affine = reproduce("papers.wait.equilibrium").fit_affine
    model = make_batch_time({"kind": "affine", "constant": 0.02, "per_context_token": 3e-7})
    d0, d1, median, worst, points = fit_affine(model, 117_648)
    assert (d0, d1) == pytest.approx((0.02, 3e-7), rel=1e-9)
    assert median <= worst < 1e-9
    assert points > 50
    capacity = load_hardware(reproduce("papers.wait.setting").HARDWARE).kv_capacity
    assert fit_affine(model, capacity // 100)[4] < points


@pytest.mark.parametrize(
    ("name", "prompts", "outputs", "rates"),
    [
        ("wait-low", 10, (10, 20), (1000, 1000)),
        ("wait-high", 20, (100, 200, 300), (6000, 4000, 2000)),
        ("wait-nested", 10, (20, 40, 80, 160), (20, 40, 80, 160)),
        ("wait-bins-low", 60, range(50, 501, 50), 55 / 66 * np.array((23, 11, 8, 7, 6, 4, 3, 2, 1, 1))),
        ("wait-bins-high", 60, range(50, 501, 50), 550 / 66 * np.array((23, 11, 8, 7, 6, 4, 3, 2, 1, 1))),
    ],
)
def test_scenarios_are_the_papers(name, prompts, outputs, rates):
    scenario = load_scenario(name)
    classes = scenario.make_workload().class_statistics
    assert {c.prompt_len for c in classes} == {prompts}
    assert [c.output_len for c in classes] == list(outputs)
    assert [c.rate for c in classes] == pytest.approx(list(rates))
    system = scenario.make_system()
    assert (system.kv_capacity, system.first_token) == (117_648, "decode")
    assert (system.progress_on_evict, system.requeue) == ("lost", "back")


def test_lmsys_has_fifty_thousand_requests_and_the_printed_thresholds():
    scenario = load_scenario("wait-lmsys")
    assert len(scenario.make_workload().sample(0)) == 50_000
    printed = "segments=50/100/150/200/250/300/350/400/450/500,thresholds=66/43/32/24/17/11/7/4/2/1"
    assert f"nested_wait:{printed}" in scenario.policies
