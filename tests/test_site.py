"""The documentation site builds without warnings and has its main pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvgym.envs import IDS

pytest.importorskip("sphinx")

ROOT = Path(__file__).resolve().parent.parent


def build(*options: str | Path) -> str:
    """Build the site with warnings as errors, and return them."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def test_all_pages_and_links_are_valid(tmp_path: Path) -> None:
    """Without the entries of the reference and without writing pages, which take most of the time."""
    assert build("-b", "dummy", "-t", "pages", "-d", tmp_path / "trees", "docs", tmp_path / "site") == ""


@pytest.mark.long  # continuous integration builds the site in a job of its own
@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.0.0",
    reason="NumPy 1 calls a dtype bool_, which Sphinx reads as a link",
)
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert build("-d", tmp_path / "trees", "docs", site) == ""
    pages = {path.relative_to(site).as_posix() for path in site.glob("**/*.html")}
    assert {"index.html", "start-researcher.html", "start-engineer.html", "start-contributor.html"} <= pages
    assert len([page for page in pages if page.startswith("environments/")]) == len(set(IDS.values())) + 1
    reference = (site / "generated" / "kvgym.policies.policy.html").read_text("utf-8")
    assert 'id="kvgym.policies.policy.Policy.schedule"' in reference
    policies = (site / "policies.html").read_text("utf-8")
    assert 'class="prose"' in policies  # columns of sentences, which would become too narrow
    assert (site / "_static" / "site.css").read_text("utf-8").count(".prose")
    contributing = (site / "generated" / "contributing.html").read_text("utf-8")
    assert 'href="../compiled-policies.html"' in contributing
