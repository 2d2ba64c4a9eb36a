"""The sources that a kernel can reach by imports: what its cached machine code depends on.

Imports are read from the text of the sources, without importing them, as this happens at the start of every process.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
_COMPILED_PARTS = (
    "compiling",
    "simulator",
    "kernels.py",
    "batch_time",
    "baselines",
    "envs/demonstrations",
    "envs/routing",
    "envs/scheduling",
    "workloads/layout.py",
    "theory/hindsight/slotted/price_kernels.py",
    "theory/hindsight/slotted/search_kernels.py",
)

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<source>\.*[\w.]*)[ \t]+import[ \t]*(?P<names>\([^)]*\)|(?:[^\n\\]|\\\r?\n)*)"
    r"|import[ \t]+(?P<modules>(?:[^\n\\]|\\\r?\n)*))",
    re.MULTILINE,
)


_DOCSTRING = re.compile(r'\A\s*r?"""(?:[^"]|"(?!""))*"""')


def compiled_sources(package: Path = PACKAGE) -> list[Path]:
    """Return the source files of kvgym that may contain compiled functions, in a fixed order."""
    parts = (package / part for part in _COMPILED_PARTS)
    return [
        source for part in parts for source in ([part] if part.is_file() else sorted(part.glob("**/*.py")))
    ]


def _is_compiled(path: Path, package: Path) -> bool:
    return path.relative_to(package).as_posix().startswith(_COMPILED_PARTS)


def _file_of(module: str, package: Path) -> Path | None:
    """Return the source file of a module, None if it is no module of the package."""
    name, *parts = module.split(".")
    path = package.joinpath(*parts)
    if name != package.name:
        return None
    if parts and (source := path.with_suffix(".py")).is_file():
        return source
    return found if (found := path / "__init__.py").is_file() else None


def _imported(text: str, path: Path, package: Path) -> Iterator[str]:
    """Yield the modules of the package that a source imports anywhere, and names that may be modules."""
    # Examples in docstrings import the whole package, and comments within an import may contain brackets.
    code = re.sub("#[^\n]*", "", _DOCSTRING.sub("", text))
    for found in _IMPORT.finditer(code):
        if found["modules"] is not None:
            yield from (part.split()[0] for part in found["modules"].split(",") if part.split())
            continue
        source = found["source"]
        if source.startswith("."):
            above = len(source) - len(source.lstrip("."))
            base = [package.name, *path.relative_to(package).parts[:-1]]
            source = ".".join([*base[: len(base) - above + 1], *filter(None, source.lstrip(".").split("."))])
        if source.split(".")[0] != package.name:
            continue
        yield source
        names = re.sub(r"[()\\]", " ", found["names"])
        yield from (f"{source}.{part.split()[0]}" for part in names.split(",") if part.split())


@functools.cache
def _read(path: Path, package: Path) -> tuple[bytes, tuple[Path, ...]]:
    """Return the hash of a source and the sources that it imports."""
    content = path.read_bytes()
    modules = dict.fromkeys(_imported(content.decode("utf-8", "replace"), path, package))
    files = (_file_of(module, package) for module in modules)
    return hashlib.sha256(content).digest(), tuple(dict.fromkeys(file for file in files if file))


def reached(modules: Iterable[str], package: Path = PACKAGE) -> list[Path]:
    """Return the compiled sources that modules reach by imports, their own included, in a fixed order.

    Imports lead on through all sources of the package. A package counts with what its ``__init__.py`` imports only
    where a name is imported from it.
    """
    todo = [path for module in modules if (path := _file_of(module, package))]
    seen: set[Path] = set()
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo += _read(path, package)[1]
    return sorted(path for path in seen if _is_compiled(path, package))


@functools.cache
def key_of(modules: tuple[str, ...], package: Path = PACKAGE) -> str:
    """Return a hash of the compiled sources that modules reach; without modules, of all."""
    digest = hashlib.sha256()
    for path in reached(modules, package) if modules else compiled_sources(package):
        digest.update(path.relative_to(package).as_posix().encode() + _read(path, package)[0])
    return digest.hexdigest()[:16]
