"""What a release needs: one place for each setting, a recipe, a container file, and notebooks."""

import ast
import json
import re
from pathlib import Path

import pytest
import yaml

pytest.importorskip("tomllib")  # Python 3.11 or later

import release
import tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_what_repeats_a_setting_is_up_to_date():
    assert release.renewed(release.texts()) == release.texts(), "run python scripts/release.py"


def test_one_setting_fills_every_place():
    files = release.renewed(
        release.changed(release.texts(), "https://example.org/me/kvgym/", "Ada Lovelace, Alan Turing"),
        date="2027-01-31",
    )
    assert not [path for path, text in files.items() if f"/{release.PLACEHOLDER}" in text]
    citation = yaml.safe_load(files[release.CITATION])
    assert [author["name"] for author in citation["authors"]] == ["Ada Lovelace", "Alan Turing"]
    assert citation["repository-code"] == "https://example.org/me/kvgym"
    assert citation["date-released"] == "2027-01-31"
    assert citation["version"] == release.current_version()
    recipe = yaml.safe_load(files[release.RECIPE])
    assert recipe["context"]["repository"] == "https://example.org/me/kvgym"


def test_the_recipe_has_the_requirements_and_the_hash(tmp_path):
    recipe = yaml.safe_load(release.texts()[release.RECIPE])
    needed = {line.split()[0] for line in recipe["requirements"]["run"]}
    declared = {re.match(r"[\w.-]+", line)[0].lower() for line in PROJECT["project"]["dependencies"]}
    assert needed == {"python", *declared}
    assert PROJECT["build-system"]["requires"] == ["setuptools>=77"]
    assert "setuptools >=77" in recipe["requirements"]["host"]
    (tmp_path / "file").write_bytes(b"")
    text = release.renewed(release.texts(), sdist=tmp_path / "file")[release.RECIPE]
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert yaml.safe_load(text)["source"]["sha256"] == empty


def test_what_a_release_lacks_is_named():
    found = release.missing("v9.9.9")
    assert f"the tag is v9.9.9, the version {release.current_version()}" in found
    placeholder = "/OWNER" in release.texts()[release.PROJECT]
    assert (f"{release.PROJECT}: OWNER is a placeholder" in found) == placeholder


def test_the_container_gets_what_the_wheel_is_built_of():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!/") for line in lines if line.startswith("!/")}
    project = PROJECT["project"]
    assert {
        project["readme"],
        *project["license-files"],
        "pyproject.toml",
        "setup.py",
        "constraints.txt",
    } <= allowed
    assert {"kvgym", "agents", "baselines", "configs"} <= allowed
    assert all((ROOT / name).exists() for name in allowed)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_installs_kvgym_where_it_is_missing_and_has_no_outputs(path: Path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    extras = re.search(
        r'except ModuleNotFoundError:\n    %pip install -q "kvgym\[(.*)\]"', "".join(code[0]["source"])
    )
    assert set(extras[1].split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    for cell in code:
        ast.parse("".join(re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in cell["source"]))
