"""Kinds of input: folders of results that contain foreign files and links, and damaged code in the cache."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import tempfile
from pathlib import Path
from typing import Any

from numba import types

from fuzz.command_kinds import working_in
from fuzz.kinds import Kind, raw, refuse
from kvgym.compiling.kernel import Kernel
from kvgym.errors import ConfigError

OWN = ("runs.csv", "summary.json", "config.json", "report.html", "sub/requests.csv")
"""Files that a command writes."""

FOREIGN = (
    ".env.tmpl",
    ".probe",
    "best.json",
    "config.json",
    "notes.txt",
    "report.html",
    "runs.parquet",
    "sub",
)
SECRET = b"a file outside of the folder"


def folder_seeds() -> list[Any]:
    manifest = {"about": "", "command": "kvgym compare", "files": ["runs.csv", "old.csv"]}
    found = [{"files": dict.fromkeys(FOREIGN[:-1], "mine"), "links": {}, "manifest": manifest}]
    found += [{"files": {}, "links": {name: "../outside"}, "manifest": manifest} for name in OWN[:4]]
    found += [{"files": {"old.csv": "old"}, "links": {"sub": "../elsewhere"}, "manifest": manifest}]
    damaged = raw('{"about": "", "command": "", "files": ["../outside", "/etc/passwd", "sub/../../outside"]}')
    return [
        *found,
        {"files": {"best.json": "mine"}, "links": {".kvgym-lock": "../outside"}, "manifest": damaged},
    ]


def play_folder(content: Any, folder: Path) -> None:
    """Write results into a folder with foreign files and links: none may be lost, and nothing outside may change.

    Raises:
        ConfigError: foreign files had names of results, and were renamed.
    """
    import json

    from kvgym.cli import result_folder
    from kvgym.cli.manifest import MANIFEST
    from kvgym.experiments.result_files import write_json
    from kvgym.utils.files import write_text

    content = content if isinstance(content, dict) else {}
    folder = Path(tempfile.mkdtemp(dir=folder))
    outside, elsewhere, place = folder / "outside", folder / "elsewhere", folder / "results"
    outside.write_bytes(SECRET)
    for made in (elsewhere, place):
        made.mkdir()
    given = _foreign(content.get("files"), place)
    for name, target in _pairs(content.get("links")):
        with contextlib.suppress(OSError, ValueError):
            if _plain(name) and not os.path.lexists(place / name):
                (place / name).symlink_to(str(target)[:200])
    listed = content.get("manifest")
    with contextlib.suppress(OSError, ValueError):
        text = listed if isinstance(listed, bytes) else json.dumps(listed).encode()
        (place / MANIFEST).write_bytes(text)
    claimed = listed.get("files") if isinstance(listed, dict) else None
    quiet = contextlib.redirect_stderr(io.StringIO())
    with quiet, working_in(folder), result_folder.tidied():
        result_folder.make_folder(Path("results"))
        with result_folder.replacing(Path("results")):
            for name in OWN[:4]:
                write_text(Path("results") / name, "new")
            write_json(Path("results") / "summary.json", {"new": 1})
    refuse(outside.read_bytes() != SECRET or any(elsewhere.iterdir()), "a change outside of the folder")
    kept = {path.read_bytes() for path in place.rglob("*") if path.is_file() and not path.is_symlink()}
    for name, data in given.items():
        ours = isinstance(claimed, list) and name in claimed
        refuse(data not in kept and not ours, f"the loss of {name!r}")
    refuse(any((place / name).is_symlink() for name in OWN), "a link instead of a result")
    if any(".old" in path.name for path in place.iterdir()):
        raise ConfigError("foreign files were renamed")


def _pairs(given: Any) -> list[tuple[str, Any]]:
    return [(str(name), value) for name, value in given.items()][:50] if isinstance(given, dict) else []


def _plain(name: str) -> bool:
    return (
        bool(name) and "/" not in name and "\x00" not in name and name not in (".", "..") and len(name) < 100
    )


def _foreign(given: Any, place: Path) -> dict[str, bytes]:
    """Write foreign files; return their contents by name."""
    found = {}
    for k, (name, _) in enumerate(_pairs(given)):
        if _plain(name) and not name.startswith(".kvgym-"):
            with contextlib.suppress(OSError, ValueError):
                found[name] = f"of others, {k}".encode()
                (place / name).write_bytes(found[name])
    return {name: data for name, data in found.items() if (place / name).is_file()}


FOLDER = Kind("folder", folder_seeds, play_folder)


def _add_one(x: Any) -> Any:
    return x + 1


SIGNATURE = types.int64(types.int64)


@functools.cache
def compiled_files() -> dict[Path, bytes]:
    """Return the intact files of a compiled kernel."""
    kernel = Kernel(_add_one, SIGNATURE)
    assert kernel(20) == 21
    folder = kernel._checksum_file().parent
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def cache_seeds() -> list[Any]:
    return [
        {"file": k, "content": raw(data.decode("latin-1").encode("latin-1"))}
        for k, data in enumerate(compiled_files().values())
    ]


def play_cache(content: Any, folder: Path) -> None:
    """Use a kernel with damaged machine code: it must be compiled again and compute the same.

    Raises:
        ConfigError: it was damaged, without harm.
    """
    content = content if isinstance(content, dict) else {"content": content}
    files, number, data = compiled_files(), content.get("file"), content.get("content")
    place = list(files)[number % len(files) if type(number) is int else 0]
    try:
        place.write_bytes(data if isinstance(data, bytes) else str(data).encode("utf-8", "replace"))
        refuse(Kernel(_add_one, SIGNATURE)(20) != 21, "a wrong result of damaged machine code")
        if data != files[place]:
            raise ConfigError("damage detected")
    finally:
        for path, original in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(original)


CACHE = Kind("cache", cache_seeds, play_cache, weight=0.1)
