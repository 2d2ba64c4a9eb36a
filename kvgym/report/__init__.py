"""Self-contained HTML reports; the extra ``kvgym[report]`` is needed only when they are used.

:func:`write_report` writes the report of a comparison; ``plots`` has the figures of a comparison, ``page`` the frame
of all reports, ``style`` the look of pictures that Matplotlib draws for other commands, and ``export`` files of runs.
May import :mod:`kvgym.experiments` and what is below it; may be imported from :mod:`kvgym.envs`, which uses its
colours, and above.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kvgym.errors import ConfigError
from kvgym.report import export
from kvgym.utils.arguments import explained

if TYPE_CHECKING:
    from kvgym.experiments.comparison import Comparison

__all__ = ["export", "require", "write_report"]


@explained
def write_report(
    comparison: Comparison, path: str | Path, *, command: str = "", reference: str | None = None
) -> Path:
    """Write a comparison as one HTML file that works offline.

    Args:
        comparison: the comparison; with ``keep_examples=True`` the report has distributions and plots over time.
        path: the file; folders are created.
        command: the command line, shown so that readers can repeat it.
        reference: policy that the others are compared with; None = the first policy that ran on all seeds.

    Returns:
        The path.

    Raises:
        ConfigError: Jinja2 is missing, or the reference policy does not exist.
    """
    require("jinja2")
    from kvgym.report.html import render
    from kvgym.report.page import write_text

    return write_text(render(comparison, command=command, reference=reference), path)


@explained
def require(module: str, extra: str = "report") -> None:
    """Check that a library of an extra is installed.

    Raises:
        ConfigError: it is missing.
    """
    if find_spec(module) is None:
        raise ConfigError(f'this needs {module}; install with: pip install "kvgym[{extra}]"')
