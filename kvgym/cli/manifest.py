"""The list of the files that kvgym has written into a folder of results, by which it tells them from all others."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from kvgym.utils.files import HIDDEN, open_plain, write_text

MANIFEST = f"{HIDDEN}results.json"
"""The file of the list."""

LARGEST = 10**6
"""Characters of a list that is read."""

ABOUT = "files that kvgym has written here; it removes and replaces no others"


class Manifest:
    """The files of a folder that kvgym has written, each listed before it appears; only these are ever removed.

    A list that is damaged, or names anything outside the folder, lists nothing. A file that is not listed, but in the
    way of a new one, is moved aside.

    Args:
        folder: must exist; only one process at a time may work in it.
        command: the command line that writes there now.
        keep: an input file of the user's, which stays whatever it is called.
        report: called with a sentence about each file that is moved aside.

    Attributes:
        command: the command line that wrote what is there, "" where there is none.
    """

    def __init__(
        self, folder: Path, command: str, *, keep: Path | None = None, report: Callable[[str], None]
    ) -> None:
        self.folder, self.command, self._listed = folder, *_read(folder)
        self._new_command, self._keep, self._report = command, keep, report
        self._written: dict[str, None] = {}

    def old(self) -> list[str]:
        """Return the listed files that are there and were not written by this command."""
        return [name for name in self._listed if name not in self._written and self._is_own(name)]

    def remove_old(self) -> None:
        """Remove them."""
        for name in self.old():
            (self.folder / name).unlink()
        self._listed = dict(self._written)
        self._save()

    def enter(self, path: Path) -> bool:
        """Return whether a path is in the folder; a link in the place of a folder above it is moved aside if so."""
        name = self._name(path)
        if name is None:
            return False
        for parent in [*PurePosixPath(name).parents][-2::-1]:
            place = self.folder / parent
            if place.is_symlink():
                self._move_aside(place)
            place.mkdir(exist_ok=True)
        return True

    def claim(self, path: Path) -> None:
        """List a file that is about to appear; what has its name and is not kvgym's is moved aside."""
        name = self._name(path)
        assert name is not None
        if os.path.lexists(path) and not self._is_own(name):
            self._move_aside(path)
        self._written[name] = None
        if name not in self._listed:
            self._listed[name] = None
            self._save()

    def _name(self, path: Path) -> str | None:
        try:
            name = path.relative_to(self.folder).as_posix()
        except ValueError:
            return None
        return name if _is_inside(name) else None

    def _is_own(self, name: str) -> bool:
        """Whether there is a file that is listed, and neither a link nor an input nor reached through a link."""
        place = self.folder / name
        if (
            name not in self._listed
            or place.parent.resolve() != self.folder.resolve() / PurePosixPath(name).parent
        ):
            return False
        with contextlib.suppress(OSError):
            kept = self._keep is not None and self._keep.exists() and place.samefile(self._keep)
            return stat.S_ISREG(place.lstat().st_mode) and not kept
        return False

    def _move_aside(self, path: Path) -> None:
        other, number = path.with_name(f"{path.name}.old"), 1
        while os.path.lexists(other):
            number += 1
            other = path.with_name(f"{path.name}.old{number}")
        path.rename(other)
        self._report(f"{path} was not written by kvgym; it is now {other}")

    def _save(self) -> None:
        content = {"about": ABOUT, "command": self._new_command, "files": list(self._listed)}
        write_text(self.folder / MANIFEST, json.dumps(content, indent=1) + "\n")


def _is_inside(name: Any) -> bool:
    """Whether something is the name of a file that a manifest may list."""
    if not isinstance(name, str) or not name.isprintable() or set(name) & set("\\:"):
        return False
    path = PurePosixPath(name)
    return (
        name not in ("", ".")
        and path.as_posix() == name
        and not path.is_absolute()
        and ".." not in path.parts
        and not path.name.startswith(HIDDEN)
    )


def _read(folder: Path) -> tuple[str, dict[str, None]]:
    """Return the command and the names of a manifest, nothing where there is none or it is damaged."""
    try:
        with open_plain(folder / MANIFEST, "r") as file:
            content = json.loads(file.read(LARGEST))
        command, names = content["command"], content["files"]
        if isinstance(command, str) and isinstance(names, list) and all(map(_is_inside, names)):
            return command if command.isprintable() else "", dict.fromkeys(names)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    return "", {}
