"""The check of declared versions reads a wheel's requirements as they are meant."""

import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
METADATA = """\
Metadata-Version: 2.4
Name: kvgym
Requires-Dist: numpy>=1.26
Requires-Dist: gymnasium<2,>=1.2.2
Requires-Dist: torch>=2.3; extra == "train"
Requires-Dist: kvgym[report,train]; extra == "dev"
"""


@pytest.fixture(scope="module")
def script(checks):
    return checks("check_versions")


def test_requirements_of_a_wheel(script, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("kvgym-1.dist-info/METADATA", METADATA)
    found = script.requirements(tmp_path / "a.whl")
    assert found == [
        ("numpy", ">=1.26", ""),
        ("gymnasium", "<2,>=1.2.2", ""),
        ("torch", ">=2.3", "train"),
        ("kvgym", "", "dev"),
    ]
    assert [script.lowest(name, versions) for name, versions, _ in found[:3]] == [
        "numpy==1.26",
        "gymnasium==1.2.2",
        "torch==2.3",
    ]
    with pytest.raises(SystemExit, match="no lowest version is declared"):
        script.lowest("kvgym", "")


def test_every_extra_that_users_have_is_checked(script):
    tomllib = pytest.importorskip("tomllib")  # Python 3.11 or later
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(script.CHECKS) - {""} == set(extras) - {"dev", "docs"}
    assert script.pinned()["torch"].startswith("torch==")


def test_what_is_not_there_is_refused(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["check_versions.py", "lowest", "--extras", "video,films"])
    with pytest.raises(SystemExit):
        script.main()
    assert "unknown extras films; valid: parquet, observe, minari, report" in capsys.readouterr().err
