"""Plots and a self-contained HTML report of a comparison. Needs the extra ``kvgym[report]``, but only when used.

:func:`write_report` writes the report, :func:`picture` a single figure; ``plots`` has the figures one by one.
May import :mod:`kvgym.experiments` and what is below it; may be imported from :mod:`kvgym.envs`, which takes its
colours from here, and above.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kvgym.errors import ConfigError

if TYPE_CHECKING:
    from kvgym.experiments.comparison import Comparison

__all__ = ["picture", "require", "write_report"]


def write_report(
    comparison: Comparison, path: str | Path, *, command: str = "", reference: str | None = None
) -> Path:
    """Write a comparison as one HTML file that works offline.

    Args:
        comparison: the comparison; with ``keep_examples=True`` the report has distributions and plots over time.
        path: the file; folders are created.
        command: the command line that led here, shown to readers who want to repeat it.
        reference: policy that the others are compared with; None = the first one that ran on all seeds.

    Returns:
        The path.

    Raises:
        ConfigError: matplotlib or Jinja2 is missing, or there is no such reference policy.
    """
    require("matplotlib", "jinja2")
    from kvgym.report.html import render
    from kvgym.report.page import write_text

    return write_text(render(comparison, command=command, reference=reference), path)


def picture(comparison: Comparison, path: str | Path) -> Path:
    """Write one figure, 900 pixels wide: mean latency by policy, and KV memory in use over time.

    Args:
        comparison: with examples (``keep_examples=True``).
        path: ends in .png, .svg or .pdf; folders are created.

    Returns:
        The path.

    Raises:
        ConfigError: matplotlib is missing, another file name ending, or no examples.
    """
    require("matplotlib")
    from kvgym.report.overview import picture as write

    return write(comparison, path)


def require(*modules: str) -> None:
    """Check that optional libraries are there.

    Raises:
        ConfigError: one is not.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(f'reports need {" and ".join(missing)}; install with: pip install "kvgym[report]"')
