"""Scripts are imported as running one of their folder does: the folder comes first on the path."""

import importlib
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def _import_from(name):
    folder = SCRIPTS / name
    sys.path.insert(0, str(folder))
    yield importlib.import_module
    sys.path.remove(str(folder))
    # Other folders have modules of the same names.
    for key, module in list(sys.modules.items()):
        if folder in Path(getattr(module, "__file__", None) or "/").parents:
            del sys.modules[key]


@pytest.fixture(scope="module")
def reproduce():
    """Return what imports a module of scripts/reproduce by name."""
    yield from _import_from("reproduce")


@pytest.fixture(scope="module")
def benchmarks():
    """Return what imports a module of scripts/benchmark by name."""
    yield from _import_from("benchmark")


@pytest.fixture(scope="module")
def scripts():
    """Return what imports a script of scripts/ itself by name."""
    yield from _import_from(".")
