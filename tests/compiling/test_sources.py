"""The sources that cached machine code depends on: an edit invalidates what can reach it, and nothing else."""

import ast
import shutil

import pytest

from kvgym.compiling.sources import _DOCSTRING, PACKAGE, _imported, _read, compiled_sources, key_of, reached

KERNELS = {
    "loop": "kvgym.simulator.loop",
    "batch times": "kvgym.batch_time.models.affine",
    "fcfs": "kvgym.baselines.first_come",
    "mc_sf": "kvgym.baselines.memory_constrained",
    "vllm_v1": "kvgym.baselines.vllm_v1",
    "environments": "kvgym.envs.scheduling.stepping",
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy") / "kvgym"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "configs", "assets"))
    return folder


def keys(package):
    """Return the keys in a new process, which has read nothing yet."""
    _read.cache_clear()
    key_of.cache_clear()
    return {name: key_of((module,), package) for name, module in KERNELS.items()}


@pytest.mark.parametrize(
    ("edited", "invalid"),
    [
        ("baselines/first_come.py", {"fcfs"}),
        ("baselines/memory_constrained.py", {"mc_sf"}),
        ("baselines/__init__.py", set()),
        ("metrics/compute.py", set()),
        ("simulator/kernels/memory.py", {"fcfs", "mc_sf", "vllm_v1", "environments"}),
        ("simulator/loop.py", {"loop"}),
        ("simulator/batch.py", {"loop", "environments"}),
        ("envs/scheduling/window.py", {"environments"}),
        ("simulator/tables.py", {*KERNELS}),  # reached through other modules
        ("compiling/passes.py", {*KERNELS}),
        ("workloads/layout.py", {*KERNELS}),
    ],
)
def test_an_edit_invalidates_what_reaches_it(copy, edited, invalid):
    before = keys(copy)
    assert before == keys(PACKAGE)  # copies share the code
    source = copy / edited
    text = source.read_text("utf-8")
    source.write_text(text + "\n", "utf-8")
    try:
        after = keys(copy)
    finally:
        source.write_text(text, "utf-8")
    assert {name for name in KERNELS if after[name] != before[name]} == invalid


FORMS = {
    "from kvgym.simulator.helper import f": True,
    "from kvgym.simulator import helper": True,
    "from kvgym.simulator import other, helper as h  # why": True,
    "from kvgym.simulator import (\n    other,  # (why)\n    helper,\n)": True,
    "from kvgym.simulator import other, \\\n    helper": True,
    "import kvgym.simulator.helper": True,
    "import math, kvgym.simulator.helper as h": True,
    "from . import helper": True,
    "from .helper import f": True,
    "from ..simulator.helper import f": True,
    "from .. import simulator\nfrom ..simulator import other": False,
    "def rule():\n    from kvgym.simulator.helper import f\n    return f()": True,
    "if True:\n    from .helper import (f,\n        g)": True,
    "try:\n\timport kvgym.simulator.helper\nexcept ImportError: pass": True,
    "from kvgym.simulator.bridge import f": True,  # which imports it, and is in a folder of its own
    '"""Docstring.\n\n    from kvgym.simulator.helper import f\n"""': False,
    "from elsewhere.simulator import helper": False,
    "import kvgymnasium.simulator.helper": False,
    "": False,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_import_counts(tmp_path, form):
    package = tmp_path / "kvgym"
    (package / "simulator" / "bridge").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "simulator/__init__": "",
        "simulator/helper": "f = 1",
        "simulator/other": "",
        "simulator/bridge/__init__": "from .inner import f",
        "simulator/bridge/inner": "from kvgym.elsewhere import f",
        "elsewhere": "def f():\n    from .simulator.helper import f",  # not compiled, but leads on
        "simulator/start": form,
    }.items():
        (package / f"{name}.py").write_text(text)
    found = {path.name for path in reached(["kvgym.simulator.start"], package)}
    assert ("helper.py" in found) == FORMS[form]
    assert "elsewhere.py" not in found


def test_imports_are_found_as_the_parser_finds_them():
    """Read from the text, as parsing all sources would take longer than a short run."""
    for path in compiled_sources():
        text = path.read_text("utf-8")
        expected = set()
        parts = ["kvgym", *path.relative_to(PACKAGE).parts[:-1]]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                expected |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
                source = ".".join(filter(None, (above, node.module)))
                expected |= {source, *(f"{source}.{name.name}" for name in node.names)}
        expected = {name for name in expected if name.split(".")[0] == "kvgym"}
        found = {name for name in _imported(text, path, PACKAGE) if name.split(".")[0] == "kvgym"}
        assert expected <= found, path
        assert found == expected or len(_DOCSTRING.sub("", text)) < len(text), path
