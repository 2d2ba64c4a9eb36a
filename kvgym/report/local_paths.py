"""Texts without the folders of whoever made a report: what lies where on a disk is nobody else's business."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from markupsafe import Markup

_FOLDERS = re.compile(r"(?<![\w./:~\\-])(?:~|[A-Za-z]:)?(?:[/\\][\w.@+~-]+)+[/\\](?=[\w.@+~-])")
"""The folders of an absolute path within a text; no part of a relative path or of an address."""
_QUOTED = re.compile(r"(?<=['\"])(?:~|[A-Za-z]:)?[/\\][^'\"\n]*[/\\](?=[^'\"\n/\\]+['\"])")
"""The same in quotation marks, where names may have spaces."""


def without_folders(value: Any) -> Any:
    """Return a value with absolute paths in its texts, at any depth, as the names of their files alone.

    Args:
        value: a text, or mappings, lists and tuples of such; all else stays as it is, ready markup too.
    """
    shown = value
    if isinstance(value, dict):
        shown = {without_folders(key): without_folders(inside) for key, inside in value.items()}
    elif isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        shown = type(value)(map(without_folders, value))
    elif isinstance(value, str) and not isinstance(value, Markup):
        path = PureWindowsPath(value) if "\\" in value else PurePosixPath(value)
        whole = "\n" not in value and (path.is_absolute() or value.startswith("~"))
        shown = path.name if whole else _FOLDERS.sub("", _QUOTED.sub("", value))
    return shown
