"""Strip local paths from text in reports (privacy)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from markupsafe import Markup

_FOLDERS = re.compile(r"(?<![\w./:~\\-])(?:~|[A-Za-z]:)?(?:[/\\][\w.@+~-]+)+[/\\](?=[\w.@+~-])")
"""The folders of an absolute path within a text, but no part of a relative path or of a URL."""
_QUOTED = re.compile(r"(?<=['\"])(?:~|[A-Za-z]:)?[/\\][^'\"\n]*[/\\](?=[^'\"\n/\\]+['\"])")
"""The same in quotation marks, with spaces in names."""


def strip_local_paths(value: Any) -> Any:
    """Return a value with absolute paths in its texts, at any depth, reduced to file names; see :func:`in_texts`."""
    return in_texts(value, _strip)


def in_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value with its texts changed, at any depth.

    Args:
        value: a text, or mappings, lists and tuples of texts; other values, also finished markup, are unchanged.
        change: returns the text to show.
    """
    shown = value
    if isinstance(value, dict):
        shown = {in_texts(key, change): in_texts(inside, change) for key, inside in value.items()}
    elif isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        shown = type(value)(in_texts(inside, change) for inside in value)
    elif isinstance(value, str) and not isinstance(value, Markup):
        shown = change(value)
    return shown


def _strip(text: str) -> str:
    path = PureWindowsPath(text) if "\\" in text else PurePosixPath(text)
    whole = "\n" not in text and (path.is_absolute() or text.startswith("~"))
    return path.name if whole else _FOLDERS.sub("", _QUOTED.sub("", text))
