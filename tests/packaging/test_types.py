"""Type checkers find kvgym's types, installed from a wheel or editable."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from build import ProjectBuilder
from build.env import DefaultIsolatedEnv

ROOT = Path(__file__).resolve().parents[2]
# Types of linked folders, a folder inside one, and lazy names.
SCRIPT = """
import kvgym
import kvgym.agents.evolution.model
import kvgym.baselines.ranked
import kvgym.envs.scheduling.environment
from kvgym import metrics, theory
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheels of the project: a regular one, and an editable one that points to the checkout."""
    folder = tmp_path_factory.mktemp("built")
    with DefaultIsolatedEnv() as environment:
        builder = ProjectBuilder.from_isolated_env(environment, ROOT)
        environment.install(builder.build_system_requires)
        return {kind: builder.build(kind, folder / kind) for kind in ("wheel", "editable")}


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_types_are_found(built, kind, tmp_path):
    venv.create(tmp_path / "env", with_pip=False)
    site = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(built[kind]) as archive:
        archive.extractall(site)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--follow-imports=skip",
            f"--python-executable={tmp_path}/env/bin/python", script,
        ],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
