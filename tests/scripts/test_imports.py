"""Importing a script loads no more than it always uses."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("speed", ("engine", "policies", "envs", "vectors")),
        ("reproduce", tuple(f"papers.{name}" for name in ("mc_sf", "wait", "slai", "flow", "stab"))),
        ("checks", ("every_scenario", "kill_runs", "random_play")),
        ("fleets", ("compare_routers",)),
        ("", ("calibrate", "profile_gpu", "publish_agent")),
    ],
)
def test_heavy_libraries_wait_until_they_are_needed(folder, names):
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPTS / folder)!r})\n"
        f"import {', '.join(names)}\n"
        "print([m for m in ('torch', 'stable_baselines3', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
