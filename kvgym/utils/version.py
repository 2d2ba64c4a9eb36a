"""The version of the library, which pyproject.toml takes from here, and what installs this very code again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_DIRTY = "-dirty"


def install_command(extra: str) -> str:
    """Return the command that installs the code that runs, with an extra.

    The version identifies a package from an index. Of a checkout, or of what pip installed from a repository,
    the version says nothing, and the commit is named.
    """
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists() and (commit := _commit(root)):
        changed = "  # and changes that are in no commit" if commit.endswith(_DIRTY) else ""
        return f'git checkout {commit.removesuffix(_DIRTY)} && pip install -e ".[{extra}]"{changed}'
    origin = _origin()
    if commit := origin.get("vcs_info", {}).get("commit_id"):
        url = origin["url"]
        if not url.startswith("file:"):
            return f'pip install "kvgym[{extra}] @ git+{url}@{commit}"'
        return f'git checkout {commit} && pip install ".[{extra}]"'
    if origin:
        return f'pip install ".[{extra}]"  # kvgym {__version__}, from a folder or file that names no commit'
    return f'pip install "kvgym[{extra}]=={__version__}"'


def _commit(root: Path) -> str:
    """Return the commit of a checkout, marked where it has changes that are in no commit; "" without git."""
    import subprocess

    command = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--abbrev=40",
        "--exclude=*",
        f"--dirty={_DIRTY}",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _origin() -> dict[str, Any]:
    """Return what pip noted of an installation that is from no package index (PEP 610)."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        noted = distribution("kvgym").read_text("direct_url.json")
    except PackageNotFoundError:
        return {}
    origin: dict[str, Any] = json.loads(noted) if noted else {}
    return origin
