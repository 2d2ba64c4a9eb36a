"""Python files of a release, unpacked from its wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from kvgym.errors import ConfigError


def default_cache() -> Path:
    """Return the folder for downloads, outside the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvgym-conformance"


def unpacked(package: str, version: str, cache: Path, endings: tuple[str, ...] = (".py",)) -> Path:
    """Return a folder with the Python files of a release; download its wheel if the cache lacks it.

    Args:
        package: name of the distribution.
        version: its version, as in ``0.33.0``.
        cache: folder for the wheel and its files.
        endings: of the names of the files that are needed.

    Raises:
        ConfigError: the version is malformed, or pip cannot download it.
    """
    if not re.fullmatch(r"\d+(\.\d+)+(\w+)?", version):
        raise ConfigError(f"version = {version!r}; expected a release of {package}, as in 0.33.0")
    folder = cache / f"{package}-{version}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        wheel = _download(f"{package}=={version}", Path(scratch))
        files = Path(scratch) / "files"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(files, [name for name in archive.namelist() if name.endswith(endings)])
        files.rename(folder)
    return folder


def _download(requirement: str, folder: Path) -> Path:
    command = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    done = subprocess.run(
        [sys.executable, *command, requirement], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel for this machine"])[-1]
        raise ConfigError(f"pip cannot download {requirement}: {reason[:200]}")
    return wheels[0]
