"""The wheel: complete, importable away from the repository, no generic top-level names, light."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")  # Python 3.11 or later

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_in_tree():
    """Every folder with an __init__.py, under the name it is imported by."""
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT], check=True, capture_output=True
    )
    return next(folder.glob("*.whl"))


def test_content_of_the_wheel(wheel):
    names = zipfile.ZipFile(wheel).namelist()
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
    ):
        assert needed in names
    assert not [n for n in names if n.startswith("kvgym/tests") or n.endswith(".csv")]


CHECK = """
import sys
import kvgym, kvgym.agents, kvgym.baselines, kvgym.configs
light = ("torch", "stable_baselines3", "ray", "matplotlib", "numba", "polars")
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
    # Also with the repository as working folder, where its folders could shadow the installed package.
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
