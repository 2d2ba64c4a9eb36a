"""The wheel: complete, light, importable outside the repository, without generic top-level names."""

import ast
import json
import re
import stat
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import numpy as np
import pytest
import yaml

import kvgym

tomllib = pytest.importorskip("tomllib")  # Python 3.11 or later

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_in_tree():
    """Return the import names of all folders with an __init__.py."""
    found = set()
    for base, prefix in (("kvgym", "kvgym"), ("baselines", "kvgym.baselines"), ("agents", "kvgym.agents"), ("configs", "kvgym.configs")):  # fmt: skip  # noqa: E501
        for init in (ROOT / base).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / base)
            if base == "kvgym" and inner.parts[:1] in (("baselines",), ("agents",), ("configs",)):
                continue
            found.add(".".join((prefix, *inner.parts)))
    return found


def test_every_package_is_listed():
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages_in_tree()


BROUGHT_ALONG = {"llvmlite": "numba"}
"""Imported libraries that come with a declared one, at a matching version."""
DISTRIBUTIONS = {"yaml": "PyYAML", "PIL": "pillow"}
"""Distributions with another name than their package."""


def test_every_library_that_is_imported_is_declared():
    # a transitive dependency may disappear
    imported = set()
    for folder in ("kvgym", "agents", "baselines"):
        for source in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(source.read_text("utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level:
                    names = [node.module]
                imported |= {name.split(".")[0] for name in names}
    imported -= {*sys.stdlib_module_names, "kvgym"}
    extras = PROJECT["project"]["optional-dependencies"]
    lines = PROJECT["project"]["dependencies"] + [x for name in extras if name != "dev" for x in extras[name]]
    declared = {re.match(r"[\w.-]+", line)[0].lower().replace("-", "_") for line in lines}
    wanted = {BROUGHT_ALONG.get(name, DISTRIBUTIONS.get(name, name)) for name in imported}
    assert {name for name in wanted if name.lower() not in declared} == set()
    assert set(BROUGHT_ALONG) <= imported


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


BUILT = (".pyc", ".nbi", ".nbc", ".so")
"""Ends of compiled files, which belong to one machine or version."""


def test_content_of_the_wheel(wheel):
    files = zipfile.ZipFile(wheel).infolist()
    names = [file.filename for file in files]
    assert not [file.filename for file in files if stat.S_ISLNK(file.external_attr >> 16)]
    assert not [name for name in names if name.endswith(BUILT)]
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"kvgym"}
    for needed in (
        "kvgym/py.typed",
        "kvgym/baselines/memory_constrained.py",
        "kvgym/agents/__init__.py",
        "kvgym/report/assets/page.js",
        "kvgym/report/assets/sweep.html",
        "kvgym/configs/hardware/llama2-70b-a100-tp2.yaml",
        "kvgym/configs/recipe/llama2-70b-a100-tp2.yaml",
        "kvgym/configs/scenario/a100-llama2-70b.yaml",
        "kvgym/configs/train/zoo/ppo.yml",
    ):
        assert needed in names
    assert {n.removeprefix("kvgym/") for n in names if n.startswith("kvgym/configs/") and "__" not in n} == {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.*") if "__" not in str(path)
    }
    assert not [n for n in names if n.startswith("kvgym/tests") or n.endswith(".csv")]


ORIGINS = {"AIConfigurator": "Apache-2.0", "Vidur": "MIT", "LLMServingSim": "MIT"}
"""Projects with data that tables were made from, and their licences."""
NOTICES = (ROOT / "THIRD_PARTY_NOTICES").read_text("utf-8")


def sources():
    """Return the field ``source`` of each table by its path in the wheel."""
    found = {}
    for path in (ROOT / "configs" / "operators").glob("*.npz"):
        with np.load(path) as arrays:
            found[path] = json.loads(arrays["header"].tobytes())["source"]
    for path in (ROOT / "configs" / "hardware").glob("*.yaml"):
        found[path] = yaml.safe_load(path.read_text("utf-8"))["source"]
    return {f"kvgym/{path.relative_to(ROOT).as_posix()}": source for path, source in found.items()}


def test_each_table_names_its_origin_and_licence_and_the_notices_name_the_table():
    found = sources()
    assert len(found) >= 14
    for path, source in found.items():
        origins = [name for name in ORIGINS if name in source]
        assert origins, path
        folder, _, name = path.rpartition("/")
        for origin in origins:
            assert ORIGINS[origin] in source, path
            (entry,) = (
                part for part in re.split(r"\n(?=\d\. )|\n=", NOTICES) if re.match(rf"\d\. {origin}", part)
            )
            assert name in entry or f"{folder}, all files" in entry, (path, origin)


MIT_TEXT = ("Permission is hereby granted, free of charge", 'THE SOFTWARE IS PROVIDED "AS IS"')
APACHE_TEXT = ("TERMS AND CONDITIONS FOR USE, REPRODUCTION", "END OF TERMS AND CONDITIONS")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("AIConfigurator", APACHE_TEXT),
        ("Vidur", (*MIT_TEXT, "Copyright (c) Microsoft Corporation.")),
        ("LLMServingSim", (*MIT_TEXT, "Copyright (c) 2024, CASYS Lab at KAIST")),
        ("Splitwise simulator", (*MIT_TEXT, "Copyright (c) 2024 Pratyush Patel")),
    ],
)
def test_the_notices_have_the_licences_in_full(name, words):
    (text,) = re.findall(rf"^=+\n{name}: .*\n=+\n((?:(?!===).*\n)+)", NOTICES, re.MULTILINE)
    for phrase in words:
        assert phrase in text
    assert "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES." in NOTICES


def test_the_licences_are_in_the_wheel_and_in_the_source_distribution(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        for name in ("LICENSE", "THIRD_PARTY_NOTICES"):
            (inside,) = (n for n in archive.namelist() if n.endswith(f".dist-info/licenses/{name}"))
            assert archive.read(inside) == (ROOT / name).read_bytes()
        metadata = Parser().parsestr(
            archive.read(next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))).decode()
        )
    assert metadata["License-Expression"] == "MIT AND Apache-2.0"
    subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        assert all(member.isfile() or member.isdir() for member in archive)
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "THIRD_PARTY_NOTICES", "kvgym/configs/operators/h200.npz"} <= names
    tests = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    assert tests <= names
    assert not [name for name in names if name.endswith(BUILT)]


def test_workflows_pin_every_action_by_commit():
    used = [
        line.strip()
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in path.read_text("utf-8").splitlines()
        if "uses:" in line
    ]
    assert used
    for line in used:
        assert re.fullmatch(r"(- )?uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_metadata_for_a_package_index(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Version"] == kvgym.__version__
    page = metadata.get_payload()
    assert page == (ROOT / "PACKAGE.md").read_text("utf-8")
    assert not re.findall(r"\]\((?!https?://)", page)  # relative links do not work there
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "PACKAGE.md", "exec"), {})
    extras = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert extras == set(metadata.get_all("Provides-Extra")) - {"dev", "docs"}


CHECK = """
import sys
import kvgym, kvgym.agents, kvgym.baselines, kvgym.configs
light = ("torch", "stable_baselines3", "ray", "matplotlib", "numba", "pyarrow")
assert not [m for m in light if m in sys.modules and m != "numba"], sorted(sys.modules)
assert "site-packages" in kvgym.__file__, kvgym.__file__
c = kvgym.compare(policies=["mc_sf", "fcfs"], seeds=1, scenario="mc-sf-model-2")
assert all(r.completed_once for r in c.runs)
print("fine")
"""


def test_the_wheel_works_away_from_the_repository(wheel, tmp_path):
    # Dependencies come from the environment of the tests; kvgym itself only from the wheel.
    home = tmp_path / "env"
    venv.create(home, with_pip=False)
    site = next((home / "lib").glob("python*/site-packages"))
    outer = next(p for p in sys.path if p.endswith("site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "zz-dependencies.pth").write_text(f"{outer}\n")
    python = home / "bin" / "python"
    done = subprocess.run([python, "-c", CHECK], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "fine", done.stderr
    # The same in the repository, where its folders could shadow the installed package.
    done = subprocess.run(
        [python, "-c", "import kvgym.baselines, kvgym.agents; print('fine')"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "fine", done.stderr


@pytest.mark.parametrize("name", ["baselines", "agents", "configs"])
def test_the_folders_refuse_their_generic_names(name):
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert f"import this package as kvgym.{name}" in done.stderr
