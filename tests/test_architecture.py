"""Imports keep to the contracts of pyproject.toml without cycles; ARCHITECTURE.md matches the code."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import grimp
import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("kvgym", "baselines", "agents", "scripts", "tests")
MOST_LINES = 450
PAGE = ROOT / "ARCHITECTURE.md"


def in_cycles(package):
    """Return the modules of import cycles, and those that import such modules."""
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


def test_there_are_no_import_cycles():
    assert not in_cycles("kvgym")


@pytest.mark.parametrize(
    "back",
    [
        "from circular import a",
        "def f():\n    import circular.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circular.a import x",
    ],
    ids=["plain", "inside a function", "for type checking"],
)
def test_import_cycles_are_found(back, tmp_path, monkeypatch):
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
    assert in_cycles("circular") == {"circular.a", "circular.b"}


def test_modules_stay_small():
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in files}
    long = {name: count for name, count in lines.items() if count > MOST_LINES}
    assert not long, f"split these modules, they do more than one thing: {long}"


def drawing():
    spec = importlib.util.spec_from_file_location(
        "draw_architecture", ROOT / "scripts" / "draw_architecture.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_up_to_date(tmp_path, capsys):
    draw = drawing()
    assert draw.main(["--check", str(PAGE)]) == 0, (
        "replace the picture by the output of scripts/draw_architecture.py"
    )
    other = tmp_path / "other.md"
    other.write_text(PAGE.read_text("utf-8").replace("cli --> studies", "studies --> cli"), "utf-8")
    assert draw.main(["--check", str(other)]) == 1
    capsys.readouterr()
    assert draw.main([]) == 0
    assert capsys.readouterr().out.strip() == draw.drawn_in(PAGE.read_text("utf-8"))


def test_implied_arrows_are_left_out():
    draw = drawing()
    edges = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"d"}}
    assert draw.without_implied(edges) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"d"}}


def names_in(file):
    """Return the names of functions, classes, methods and variables in a module."""
    names = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)
            }
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {inner.id for t in targets for inner in ast.walk(t) if isinstance(inner, ast.Name)}
    return names


def test_every_name_on_the_page_exists():
    """A name belongs to the last file before it in the same item; text with spaces or dashes is a command."""
    text = re.sub(r"^```.*?^```$|^#.*?$", "", PAGE.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = 0
    for item in re.split(r"\n(?=\n|- |\| )", text):
        file = None
        for name in re.findall(r"`([^`]+)`", item):
            if "/" in name or name.endswith((".py", ".toml")):
                if " " not in name:
                    file = ROOT / name
                    assert file.exists(), name
            elif re.fullmatch(r"\w+(\.\w+)?", name):
                assert file is not None, f"{name}: of which file?"
                assert name in names_in(file), f"{name} is not in {file.relative_to(ROOT)}"
                found += 1
    assert found > 50
