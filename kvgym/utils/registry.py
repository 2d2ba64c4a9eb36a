"""Registries of objects by name, and plugins that register; duplicates and unknown names are errors."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from kvgym.errors import ConfigError, KVGymError, NumbaVersionError, UnknownNameError, shown
from kvgym.utils.checks import check_name
from kvgym.utils.user_code import calling

T = TypeVar("T")


def same_definition(one: object, other: object) -> bool:
    """Return whether two classes or functions are one, defined twice as by running a notebook cell again."""
    names = [(getattr(x, "__module__", None), getattr(x, "__qualname__", None)) for x in (one, other)]
    return one is other or (None not in names[0] and names[0] == names[1])


def _same(one: object, other: object) -> bool:
    """Return whether two objects are identical or one class defined twice."""
    return one is other or (isinstance(one, type) and isinstance(other, type) and same_definition(one, other))


class Registry(Generic[T]):
    """A mapping from names to objects, in the order of registration.

    Args:
        kind: what the registry holds, for messages (``"policy"``).
        load: called once before the first look-up, to import the modules that register.
        sources: other names that are valid where a name of the registry is, for messages.
        same: returns whether a new object may replace one that is registered under its name.
    """

    def __init__(
        self,
        kind: str,
        load: Callable[[], object] | None = None,
        sources: Sources[Any] | None = None,
        same: Callable[[T, T], bool] = _same,
    ) -> None:
        self.kind = kind
        self._sources = sources
        self._same = same
        self._items: dict[str, T] = {}
        self._load = load

    def add(self, name: str, item: T) -> T:
        """Register ``item`` under ``name``.

        Raises:
            ConfigError: the name is taken by another object, or is not a string.
        """
        check_name(name, self.kind)
        if name in self._items and not self._same(self._items[name], item):
            raise ConfigError(
                f"{self.kind} {shown(name)} is already registered as {shown(self._items[name])}"
            )
        self._items[name] = item
        return item

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers under ``name``."""
        return lambda item: self.add(name, item)

    def _ensure_loaded(self) -> None:
        if self._load is not None:
            load, self._load = self._load, None  # cleared first: loading registers and looks up names
            try:
                load()
            except BaseException:
                self._load = load
                raise

    def __getitem__(self, name: str) -> T:
        """Return the object registered under ``name``.

        Raises:
            UnknownNameError: an unknown name; the message has suggestions and all valid names.
        """
        self._ensure_loaded()
        if name not in self:
            others = () if self._sources is None else self._sources.names()
            raise UnknownNameError(self.kind, name, {*self._items, *others})
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        """Return whether ``name`` is registered."""
        self._ensure_loaded()
        return isinstance(name, str) and name in self._items

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in registration order."""
        self._ensure_loaded()
        return iter(list(self._items))

    def __len__(self) -> int:
        """Return the number of names."""
        self._ensure_loaded()
        return len(self._items)


class Sources(Generic[T]):
    """Functions that make objects from texts other than registered names, such as paths of files.

    Args:
        modules: modules that register sources, imported before the first look-up; by name, because they may be in a
            higher layer.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = list(modules)
        self._sources: list[Callable[[str], T | None]] = []
        self._names: list[Callable[[], Iterable[str]]] = []

    def add(
        self, source: Callable[[str], T | None], names: Callable[[], Iterable[str]] | None = None
    ) -> Callable[[str], T | None]:
        """Register a source.

        Args:
            source: returns the object for a text, or None if it does not know the text.
            names: returns the names that it knows, for messages; None = no names.

        Raises:
            ConfigError: one of them cannot be called.
        """
        for what, given in (("source", source), ("names", names)):
            if not callable(given) and not (given is None and what == "names"):
                raise ConfigError(f"{what} = {shown(given)}; expected a function")
        self._sources.append(source)
        if names is not None:
            self._names.append(names)
        return source

    def _ensure_loaded(self) -> None:
        while self._modules:
            importlib.import_module(self._modules[0])
            self._modules.pop(0)

    def names(self) -> list[str]:
        """Return the names that the sources know; they may accept files as well."""
        self._ensure_loaded()
        found: list[str] = []
        for names in self._names:
            with calling(names, "source", "it"):
                found += names()
        return found

    def find(self, text: str) -> T | None:
        """Return the object of the first source that knows the text, None if none does."""
        self._ensure_loaded()
        for source in self._sources:
            with calling(source, "source", "it"):
                made = source(text)
            if made is not None:
                return made
        return None


def import_package(package: str) -> None:
    """Import a package of kvgym with modules that register.

    Raises:
        ConfigError: a module of it is wrong; the message names its file and line.
    """
    try:
        importlib.import_module(package)
    except Exception as error:
        mistake = import_mistake(error, package)
        if not mistake:
            raise
        raise ConfigError(mistake, "".join(traceback.format_exception(error))) from error


def import_mistake(error: BaseException, package: str) -> str:
    """Return file, line and text of an error while modules of a package were imported, "" if it has another origin."""
    found = importlib.util.find_spec(package)
    folder = next(iter(found.submodule_search_locations or ()), "") if found is not None else ""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(f.filename, f.lineno) for f in frames if folder and f.filename.startswith(folder + os.sep)]
    importing = any(f.name == "<module>" and f.filename.startswith(folder + os.sep) for f in frames)
    if not importing or isinstance(error, NumbaVersionError | MemoryError):
        return ""
    if isinstance(error, SyntaxError) and str(error.filename).startswith(folder + os.sep):
        places.append((str(error.filename), error.lineno))
    file, line = places[-1]
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    kind = "" if isinstance(error, KVGymError) else f"{type(error).__name__}: "
    return f"{os.path.relpath(file, os.path.dirname(folder))}, line {line}: {kind}{' '.join(text.split())}"


def load_plugins(group: str, what: str) -> None:
    """Import the modules of a group of entry points of installed distributions, so that they register.

    ``KVGYM_PLUGINS=0`` in the environment disables plugins. A module that cannot be imported causes a warning.

    Args:
        group: group of entry points, such as ``"kvgym.policies"``.
        what: what they register, for messages.
    """
    if os.environ.get("KVGYM_PLUGINS") == "0":
        return
    for entry in _entry_points(group):
        try:
            entry.load()
        except (Exception, SystemExit) as error:
            origin = entry.dist.name if entry.dist is not None else "?"
            warnings.warn(
                f"{what} of {origin} ({entry.value}) cannot be loaded: {shown(error, 200)}", stacklevel=2
            )


def _entry_points(group: str) -> list[Any]:
    """Return the entry points of a group; warn of each distribution with a file that cannot be read."""
    from importlib.metadata import distributions, entry_points  # slow to import

    try:
        return list(entry_points(group=group))
    except Exception:  # one damaged file hides those of all distributions
        found: dict[str, list[Any]] = {}
    for distribution in distributions():
        folder = getattr(distribution, "_path", None)
        name = "?" if folder is None else re.sub(r"(-.*)?\.(dist|egg)-info$", "", str(folder.name))
        try:
            entries = [entry for entry in distribution.entry_points if entry.group == group]
        except Exception as error:
            warnings.warn(
                f"entry_points.txt of {shown(name)} cannot be read, so its plugins are missing: {shown(error, 120)}; "
                "reinstall it",
                stacklevel=3,
            )
        else:
            found.setdefault(re.sub("[-_.]+", "_", name).lower(), entries)  # the first one on the path counts
    return [entry for entries in found.values() for entry in entries]
