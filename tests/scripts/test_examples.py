"""Examples that no page or other test runs."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "scripts" / "examples"


def test_a_policy_in_python(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "shortest_first.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    latencies = {name: float(value) for name, value in map(str.split, done.stdout.splitlines())}
    assert list(latencies) == ["shortest_first", "shortest_first:spare=0.2", "fcfs"]
    assert latencies["shortest_first"] < latencies["fcfs"]
