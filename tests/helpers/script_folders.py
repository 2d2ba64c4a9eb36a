"""Modules of the folders of scripts/, imported as running one of a folder does: the folder comes first on the path."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@contextlib.contextmanager
def importing_from(name: str) -> Iterator[Callable[[str], ModuleType]]:
    """Give what imports a module of a folder by name; nothing is left afterwards: others have modules of these names.

    Args:
        name: of the folder, ``"."`` for scripts/ itself.
    """
    folder = SCRIPTS / name
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(folder))
        for key in sys.modules.keys() - before:
            module = sys.modules[key]
            if folder in Path(getattr(module, "__file__", None) or "/").parents:
                del sys.modules[key]
