"""Import some modules of an engine from a folder; everything else they import is a stub.

A scheduler is plain Python, but its modules import most of the engine: kernels, models, networking. Here only the named
modules come from the folder. A stub has every attribute, accepts every call, and is false and empty.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class _StubType(type):
    """Metaclass of stub classes: they can be parts of annotations, and have every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub()

    def __or__(cls, other: Any) -> Any:
        return Any

    def __ror__(cls, other: Any) -> Any:
        return Any

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class Stub(metaclass=_StubType):
    """An object with every attribute that accepts every call, is false and empty, and is a context."""

    def __init__(self, *values: Any, **named: Any) -> None:
        vars(self).update(named)

    def __getattr__(self, name: str) -> Any:
        """Return a stub; private names that Python looks for are missing."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub()

    def __call__(self, *values: Any, **named: Any) -> Stub:
        """Return a stub."""
        return Stub()

    def __bool__(self) -> bool:
        """Return False."""
        return False

    def __iter__(self) -> Iterator[Any]:
        """Return an empty iterator."""
        return iter(())

    def __or__(self, other: Any) -> Any:
        """Return the other operand."""
        return other

    def __ror__(self, other: Any) -> Any:
        """Return the other operand."""
        return other

    def __enter__(self) -> Stub:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""


class _StubModule(ModuleType):
    """A module with a stub class for each name, except those given."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Stub,), {})
        setattr(self, name, made)
        return made


class StubFinder(MetaPathFinder, Loader):
    """Finds the modules of one package.

    Args:
        package: name of the top-level package.
        folder: folder that contains it.
        real: modules that come from the folder, with all modules below those that end with a dot.
        names: attributes of stub modules, by module and name.
    """

    def __init__(
        self, package: str, folder: Path, real: Sequence[str], names: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._package, self._folder, self._names = package, folder, names
        self._real = frozenset(name for name in real if not name.endswith("."))
        self._below = tuple(name for name in real if name.endswith("."))

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return how to load a module of the package; None for other packages."""
        if fullname.split(".")[0] != self._package:
            return None
        if fullname in self._real or fullname.startswith(self._below):
            place = self._folder.joinpath(*fullname.split("."))
            for file, inside in ((place / "__init__.py", [str(place)]), (place.with_suffix(".py"), None)):
                if file.is_file():
                    return importlib.util.spec_from_file_location(
                        fullname, file, submodule_search_locations=inside
                    )
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a stub module."""
        made = _StubModule(spec.name)
        vars(made).update(self._names.get(spec.name, {}))
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the names of a stub module are made when they are read."""

    def install(self) -> None:
        """Use this finder for the package, in place of an installed one, for the rest of the process."""
        for name in [name for name in sys.modules if name.split(".")[0] == self._package]:
            del sys.modules[name]
        sys.meta_path.insert(0, self)
