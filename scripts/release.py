"""Fill in what a release needs in several files, and check that nothing is missing.

Owner, authors, version and date each stand in one place: the repository and the authors in pyproject.toml, the version
in kvgym/utils/version.py, the date in CITATION.cff. Everything else that repeats them is written from there:

    python scripts/release.py --repository https://github.com/me/kvgym --authors "Ada Lovelace, Alan Turing"
    python scripts/release.py --date 2027-01-31
    python scripts/release.py --sdist dist/kvgym-0.1.0.tar.gz   # its hash, into the recipe of conda-forge
    python scripts/release.py --check v0.1.0                    # what is missing for this tag; writes nothing

Needs nothing but Python 3.11.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT, CITATION = Path("pyproject.toml"), Path("CITATION.cff")
RECIPE, VERSION = Path("scripts/packaging/recipe.yaml"), Path("kvgym/utils/version.py")
PLACEHOLDER = "OWNER"


def texts() -> dict[Path, str]:
    """Return the files that are written."""
    return {path: (ROOT / path).read_text("utf-8") for path in (PROJECT, CITATION, RECIPE)}


def replaced(pattern: str, new: str, text: str) -> str:
    """Replace the only match of a pattern; its groups 1 and 2 stay around the new text."""
    made, count = re.subn(pattern, lambda found: f"{found[1]}{new}{found[2]}", text, flags=re.M | re.S)
    if count != 1:
        raise SystemExit(f"{pattern}: found {count} times, expected once")
    return made


def changed(files: dict[Path, str], repository: str | None, authors: str | None) -> dict[Path, str]:
    """Return the files with another repository or other authors in pyproject.toml.

    Args:
        files: from :func:`texts`.
        repository: its address.
        authors: names, separated by commas.
    """
    project = files[PROJECT]
    if repository:
        before = tomllib.loads(project)["project"]["urls"]["Repository"]
        project = project.replace(before, repository.rstrip("/"))
    if authors:
        names = ", ".join(f"{{ name = {json.dumps(name.strip())} }}" for name in authors.split(","))
        project = replaced(r"^(authors = \[).*?(\]$)", names, project)
    return {**files, PROJECT: project}


def renewed(files: dict[Path, str], date: str | None = None, sdist: Path | None = None) -> dict[Path, str]:
    """Return the files with everything that repeats pyproject.toml and the version.

    Args:
        files: from :func:`texts`.
        date: of the release, YYYY-MM-DD; None = as it is.
        sdist: source distribution that the recipe names; None = the hash stays.
    """
    project = tomllib.loads(files[PROJECT])["project"]
    version, repository = current_version(), project["urls"]["Repository"]
    citation, recipe = files[CITATION], files[RECIPE]
    people = "".join(f"  - name: {author['name']}\n" for author in project["authors"])
    citation = replaced(r"^(authors:\n).*?(^\w)", people, citation)
    citation = replaced(r"^(version: ).*?($)", version, citation)
    citation = replaced(r"^(repository-code: ).*?($)", repository, citation)
    if date:
        day = datetime.date.fromisoformat(date).isoformat()
        citation = replaced(r"^(date-released: ).*?($)", f'"{day}"', citation)
    needed = "".join(f"    - {conda_name(line)}\n" for line in project["dependencies"])
    recipe = replaced(r'^(  version: ").*?("$)', version, recipe)
    recipe = replaced(r"^(  repository: ).*?($)", repository, recipe)
    recipe = replaced(r"^(    - python >=\S+ python_min \}\}\n).*?(\n?^tests:)", needed, recipe)
    if sdist:
        recipe = replaced(r'^(  sha256: ").*?("$)', hashlib.sha256(sdist.read_bytes()).hexdigest(), recipe)
    return {PROJECT: files[PROJECT], CITATION: citation, RECIPE: recipe}


def conda_name(line: str) -> str:
    """Return a requirement as conda-forge writes it, such as ``numpy >=1.26``."""
    name, versions = re.fullmatch(r"([\w.-]+)(.*)", line).groups()  # type: ignore[union-attr]
    return f"{name.lower()} {versions}".strip()


def current_version() -> str:
    """Return the version of the library."""
    found: Any = re.search(r'^__version__ = "(.*)"$', (ROOT / VERSION).read_text("utf-8"), re.M)
    return str(found[1])


def missing(tag: str) -> list[str]:
    """Return what a release of this tag still lacks, one line each."""
    files, version = texts(), current_version()
    found = [f"{path}: {PLACEHOLDER} is a placeholder" for path in files if f"/{PLACEHOLDER}" in files[path]]
    found += [f"{path}: out of date" for path, text in renewed(files).items() if text != files[path]]
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, the version {version}")
    if not re.search(rf"^## {re.escape(version)}(?! \(unreleased\))", changelog(), re.M):
        found.append(f"CHANGELOG.md: no heading '## {version}' without '(unreleased)'")
    return found


def changelog() -> str:
    """Return the changelog."""
    return (ROOT / "CHANGELOG.md").read_text("utf-8")


def main() -> None:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repository", metavar="URL", help="address of the repository")
    parser.add_argument("--authors", metavar="NAMES", help="authors, separated by commas")
    parser.add_argument("--date", help="date of the release, YYYY-MM-DD")
    parser.add_argument("--sdist", type=Path, metavar="FILE", help="source distribution to hash")
    parser.add_argument("--check", metavar="TAG", help="check for a release of this tag, and write nothing")
    given = parser.parse_args()
    if given.check:
        found = missing(given.check)
        sys.exit("\n".join(found) if found else 0)
    for path, text in renewed(
        changed(texts(), given.repository, given.authors), given.date, given.sdist
    ).items():
        (ROOT / path).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
