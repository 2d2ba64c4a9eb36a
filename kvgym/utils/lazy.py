"""Public names that are imported on first use, so that importing a package costs little.

May import nothing; may be imported from any package.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], modules: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose ``__all__`` is imported on first use.

    Type checkers see the imports under ``TYPE_CHECKING`` instead: given to them too, these functions would make them
    take any name for one of the package.

    Args:
        package: ``__name__`` of the package.
        homes: for each module below the package the public names that are taken from it, between spaces.
        modules: modules and packages below it that are public themselves, between spaces.
    """
    public = {path.rpartition(".")[2]: path for path in modules.split()}
    home = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name in public:
            return importlib.import_module(f"{package}.{public[name]}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return find, names
