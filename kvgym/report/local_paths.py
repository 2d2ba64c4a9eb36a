"""Strip local paths from text in reports (privacy)."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from markupsafe import Markup

_FOLDERS = re.compile(r"(?<![\w./:~\\-])(?:~|[A-Za-z]:)?(?:[/\\][\w.@+~-]+)+[/\\](?=[\w.@+~-])")
"""The folders of an absolute path within a text, but no part of a relative path or of a URL."""
_QUOTED = re.compile(r"(?<=['\"])(?:~|[A-Za-z]:)?[/\\][^'\"\n]*[/\\](?=[^'\"\n/\\]+['\"])")
"""The same in quotation marks, with spaces in names."""


def strip_local_paths(value: Any) -> Any:
    """Return a value with absolute paths in its texts, at any depth, reduced to file names.

    Args:
        value: a text, or mappings, lists and tuples of texts; other values, also finished markup, are unchanged.
    """
    shown = value
    if isinstance(value, dict):
        shown = {strip_local_paths(key): strip_local_paths(inside) for key, inside in value.items()}
    elif isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        shown = type(value)(map(strip_local_paths, value))
    elif isinstance(value, str) and not isinstance(value, Markup):
        path = PureWindowsPath(value) if "\\" in value else PurePosixPath(value)
        whole = "\n" not in value and (path.is_absolute() or value.startswith("~"))
        shown = path.name if whole else _FOLDERS.sub("", _QUOTED.sub("", value))
    return shown
