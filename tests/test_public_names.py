"""What is public: reachable, listed, documented, loaded on first use, and all that the documents use."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import kvgym
from helpers.public_calls import MODULES

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("**/*.md"))
# Maintainers' tools that their pages show.
INSIDE = {"kvgym.cli.console", "kvgym.envs.demonstrations.expressible", "kvgym.baselines.ranked.weights"}


@pytest.mark.parametrize("name", MODULES)
def test_public_names_exist_and_are_explained(name: str) -> None:
    module = MODULES[name]
    assert inspect.getdoc(module)
    assert len(set(module.__all__)) == len(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    for public in module.__all__:
        value = getattr(module, public)
        assert value is not None
        if inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, types.ModuleType):
            assert inspect.getdoc(value), f"{name}.{public} has no docstring"


def test_what_users_look_for_is_public() -> None:
    assert {"agents", "batch_time", "envs", "errors", "metrics", "report", "theory"} <= set(kvgym.__all__)
    assert {"AgentPolicy", "load_agent", "kv_capacity", "provision"} <= set(kvgym.__all__)
    assert {
        "kvgym.kernels",
        "kvgym.policies.policy",
        "kvgym.theory.stability",
        "kvgym.theory.hindsight",
    } <= set(MODULES)


@pytest.mark.parametrize("module", [module for module in MODULES.values() if hasattr(module, "__path__")])
def test_type_checkers_see_the_same_names(module: types.ModuleType) -> None:
    """Names that are imported on first use are written down for type checkers too."""
    declared: set[str] = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and node.orelse:
            declared |= {
                alias.name for part in node.body if isinstance(part, ast.ImportFrom) for alias in part.names
            }
    if declared:
        lazily = {name for name in module.__all__ if name not in bound_at_the_top(module)}
        assert declared == lazily


def bound_at_the_top(module: types.ModuleType) -> set[str]:
    """Return the names that a package's own statements bind, imports for type checking left out."""
    bound = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom):
            bound |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            bound |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef):
            bound.add(node.name)
    return bound


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'kvgym.experiments' has no attribute 'comparisons'"):
        importlib.import_module("kvgym.experiments").comparisons  # noqa: B018


def test_heavy_libraries_wait_until_they_are_used() -> None:
    code = """
import sys
import kvgym
kvgym.report, kvgym.agents, kvgym.metrics, kvgym.theory, kvgym.experiments, kvgym.servers, kvgym.report.export
kvgym.batch_time, kvgym.errors, kvgym.kernels, kvgym.workloads, kvgym.policies.policy, kvgym.policies.routing
kvgym.load_agent, kvgym.kv_capacity, kvgym.AgentPolicy, kvgym.studies
heavy = ("torch", "stable_baselines3", "matplotlib", "ray", "polars", "scipy.optimize", "scipy.stats", "jinja2")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def imported(code: str) -> set[tuple[str, str]]:
    """Return module and name of everything that a piece of code imports of kvgym."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kvgym":
            found |= {(str(node.module), alias.name) for alias in node.names}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documents_import_public_names_only(page: Path) -> None:
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        for module, name in imported(code):
            assert module in INSIDE or (module in MODULES and name in MODULES[module].__all__), (
                f"{module}.{name} is not public"
            )
