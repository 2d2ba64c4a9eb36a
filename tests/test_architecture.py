"""Who imports whom: the contracts of pyproject.toml, no circles, and ARCHITECTURE.md as the code is."""

import sys
from pathlib import Path

import grimp
import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("kvgym", "baselines", "agents", "scripts", "tests")
MOST_LINES = 450


def in_circles(package):
    """Return the modules that import themselves by way of others, and those that import such modules."""
    graph = grimp.build_graph(package, cache_dir=None)
    left = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while free := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]
    return left.keys()


def test_imports_keep_to_the_layers(capsys, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])  # the linter adds the working directory
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_there_are_no_circles_of_modules():
    assert not in_circles("kvgym")


@pytest.mark.parametrize(
    "back",
    [
        "from circular import a",
        "def f():\n    import circular.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circular.a import x",
    ],
    ids=["plain", "inside a function", "for type checking"],
)
def test_circles_are_found(back, tmp_path, monkeypatch):
    package = tmp_path / "circular"
    package.mkdir()
    for name, text in (
        ("__init__", ""),
        ("a", "from circular.b import y\nx = 1"),
        ("b", back),
        ("c", "z = 1"),
    ):
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert in_circles("circular") == {"circular.a", "circular.b"}


def test_modules_stay_small():
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in files}
    long = {name: count for name, count in lines.items() if count > MOST_LINES}
    assert not long, f"split these modules, they do more than one thing: {long}"
