"""Lazy imports: public names are imported on first use, so that importing a package is fast.

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
    """Return ``__getattr__`` and ``__dir__`` of a package with an ``__all__`` that is imported on first use.

    Type checkers must see the imports under ``TYPE_CHECKING`` instead: with these functions they would accept any
    name in the package.

    Args:
        package: ``__name__`` of the package.
        homes: the public names of each module below the package, separated by spaces.
        modules: public modules and packages below it, separated by spaces.
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
