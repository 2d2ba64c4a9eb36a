"""The lowest declared versions of dependencies have no known vulnerabilities."""

import re
from pathlib import Path

import pytest

PYPROJECT = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8")
# Lowest versions without known vulnerabilities.
SAFE = {
    "torch": "2.13", "filelock": "3.20.3", "Jinja2": "3.1.6", "tqdm": "4.66.3", "ray": "2.55", "aiohttp": "3.13.3",
    "pillow": "11.3",
}  # fmt: skip


@pytest.mark.parametrize("name", SAFE)
def test_the_lowest_version_has_no_known_vulnerabilities(name):
    declared = re.findall(rf'"{name}>=([\d.]+)', PYPROJECT)
    assert declared
    for version in declared:
        lowest, safe = (tuple(map(int, text.split("."))) for text in (version, SAFE[name]))
        assert lowest >= safe
