"""The sweep says what becomes of each policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from kvgym.policies.policy import POLICIES

SCRIPT = Path(__file__).parents[3] / "scripts" / "checks" / "every_scenario.py"


def test_outcomes_and_reasons(tmp_path: Path) -> None:
    options = ["--scenario", "mc-sf-model-2", "--scenario", "stab-8-gpus", "--requests", "40"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options, "--json", "out.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("| `")]
    assert len(rows) == len(POLICIES)
    outcomes = json.loads((tmp_path / "out.json").read_text())
    assert outcomes["stab-8-gpus"]["fcfs"]["outcome"] == "yes"
    assert outcomes["stab-8-gpus"]["wait"]["outcome"] == "–"
    assert "needs class" in outcomes["stab-8-gpus"]["wait"]["reason"]
    assert all(
        entry["reason"] for row in outcomes.values() for entry in row.values() if entry["outcome"] != "yes"
    )
