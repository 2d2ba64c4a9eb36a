"""No schedule beats a bound, on some random instances of scripts/checks/check_bounds.py."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.amount import number

SCRIPT = Path(__file__).parents[3] / "scripts" / "checks" / "check_bounds.py"
POLICIES = ["mc_sf", "vllm_v1", "ranked"]


@pytest.fixture(scope="module")
def script(checks):
    return checks("check_bounds")


def test_no_bound_is_broken(script):
    reached = 0
    for seed in range(number(200, 30)):
        found = script.check_instance(seed, POLICIES)
        assert found.broken == [], seed
        reached += any(ratio < 1 + 1e-9 for ratio in found.ratios.values())
    assert reached > number(10, 2)  # bounds that some schedule meets: nothing above them would hold


def test_instances_have_everything(script):
    made = [script.random_instance(seed) for seed in range(300)]
    systems = [system for system, _, _ in made]
    for name in ("first_token", "progress_on_evict", "requeue", "block_size"):
        assert len({getattr(s, name) for s in systems}) >= 3, name
    models = {(type(s.batch_time).__name__, getattr(s.batch_time, "composition", "")) for s in systems}
    assert len(models) == 8
    assert {w.role for s in systems for w in s.workers} == {"mixed", "prefill", "decode"}


def test_a_bound_that_is_too_high_is_found(script, monkeypatch, capsys, tmp_path):
    true = script.bounds_calibrated

    def too_high(table, system):
        return {
            metric: replace(bound, value=50 * bound.value) for metric, bound in true(table, system).items()
        }

    monkeypatch.setattr(script, "bounds_calibrated", too_high)
    out = tmp_path / "found.json"
    arguments = ["check_bounds.py", "--instances", "2", "--policies", "mc_sf", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert script.main() == 1
    assert "mc_sf has e2e_latency_mean" in capsys.readouterr().out
    assert json.loads(out.read_text())["broken"]


def test_instances_are_shared_among_processes(script, monkeypatch, capsys, tmp_path):
    out, count = tmp_path / "found.json", number(45, 6)
    arguments = ["--first", "3", "--instances", str(count), "--policies", "fcfs", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["check_bounds.py", *arguments])
    assert script.main() == 0
    assert f"{count} instances x 1 policies" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["seeds"] == [[3, count + 2]]
    command = [sys.executable, str(SCRIPT), *arguments, "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    again = json.loads(out.read_text())
    assert {**again, "seconds": 0} == {**found, "seconds": 0}
