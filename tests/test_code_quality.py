"""Formatting, lint and types: the checks of .pre-commit-config.yaml, on the whole repository."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]


@pytest.mark.parametrize("entry", [hook["entry"] for hook in HOOKS])
def test_hook(entry):
    if entry == "mypy" and np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("types are checked against those that NumPy 2 declares")
    command = [sys.executable, "-m", *entry.split()]
    if entry.startswith("ruff"):
        command.append(".")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
