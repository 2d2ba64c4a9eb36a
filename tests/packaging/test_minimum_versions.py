"""The lowest versions that kvgym declares have no known security holes."""

import re
from pathlib import Path

import pytest

PYPROJECT = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8")
# Versions in which all known holes of the ones before are closed.
SAFE = {"torch": "2.13", "filelock": "3.20.3", "Jinja2": "3.1.6", "tqdm": "4.66.3"}


@pytest.mark.parametrize("name", SAFE)
def test_the_lowest_version_has_no_known_holes(name):
    declared = re.findall(rf'"{name}>=([\d.]+)', PYPROJECT)
    assert declared
    for version in declared:
        lowest, safe = (tuple(map(int, text.split("."))) for text in (version, SAFE[name]))
        assert lowest >= safe
