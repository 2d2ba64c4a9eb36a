"""Manifest of a result folder: the files that kvgym has written and may remove."""

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
"""Name of the manifest file."""

LARGEST = 10**6
"""Maximum number of characters that are read."""

ABOUT = "files that kvgym has written here; it removes and replaces no others"


class Manifest:
    """The files that kvgym has written into a folder, each listed before it appears; only these are ever removed.

    A manifest that is damaged, or names anything outside the folder, counts as empty. An unlisted file in the place of
    a new one is renamed.

    Args:
        folder: must exist; only one process at a time may work in it.
        command: the command line that writes there now.
        keep: an input file of the user, which stays whatever its name is.
        report: called with a sentence about each file that is renamed.

    Attributes:
        command: the command line that wrote the existing files, "" if there is none.
    """

    def __init__(
        self, folder: Path, command: str, *, keep: Path | None = None, report: Callable[[str], None]
    ) -> None:
        self.folder, self.command, self._listed = folder, *_read(folder)
        self._new_command, self._keep, self._report = command, keep, report
        self._written: dict[str, None] = {}

    def old(self) -> list[str]:
        """Return the existing listed files that this command has not written."""
        return [name for name in self._listed if name not in self._written and self._is_own(name)]

    def remove_old(self) -> None:
        """Remove the files of :meth:`old`."""
        for name in self.old():
            (self.folder / name).unlink()
        self._listed = dict(self._written)
        self._save()

    def enter(self, path: Path) -> bool:
        """Return whether a path is in the folder; if so, rename links in the place of its parent folders."""
        name = self._name(path)
        if name is None:
            return False
        for parent in [*PurePosixPath(name).parents][-2::-1]:
            place = self.folder / parent
            if place.is_symlink():
                self._rename(place)
            place.mkdir(exist_ok=True)
        return True

    def claim(self, path: Path) -> None:
        """List a file that is about to be written, and rename a file of that name that is not kvgym's."""
        name = self._name(path)
        assert name is not None
        if os.path.lexists(path) and not self._is_own(name):
            self._rename(path)
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
        """Whether a listed file exists and is neither a link, nor an input, nor reached through a link."""
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

    def _rename(self, path: Path) -> None:
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
    """Whether a value is a file name that a manifest may list."""
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
    """Return the command and the file names of a manifest; both empty if it is missing or damaged."""
    try:
        with open_plain(folder / MANIFEST, "r") as file:
            content = json.loads(file.read(LARGEST))
        command, names = content["command"], content["files"]
        if isinstance(command, str) and isinstance(names, list) and all(map(_is_inside, names)):
            return command if command.isprintable() else "", dict.fromkeys(names)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    return "", {}
