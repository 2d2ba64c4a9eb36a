"""Where the packages are; everything else stands in pyproject.toml."""

from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
PARTS = ("agents", "baselines", "configs")

# With links, packages lie where their names say, and an editable install is a path that type checkers can follow.
# Where git wrote them as text files (Windows without developer mode), the folders are named one by one.
linked = all((ROOT / "kvgym" / part).is_dir() for part in PARTS)
setup(package_dir={"": "."} if linked else {"kvgym": "kvgym", **{f"kvgym.{part}": part for part in PARTS}})
