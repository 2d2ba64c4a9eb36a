"""Sphinx configuration of the documentation site: ``sphinx-build -W docs build/site``, with the extra ``docs``.

With ``-t pages`` it has no entries of the reference, which take most of the time: a quick check of all pages and links.
The build writes the reference of public modules, and copies of the pages next to the README, into ``docs/generated``.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers
from sphinx.pycode import ModuleAnalyzer

import kvgym

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GENERATED = DOCS / "generated"
OUTSIDE = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
COPIES = {ROOT / name: GENERATED / name.lower() for name in OUTSIDE}
COPIES |= {
    path: GENERATED / f"agent-{path.name}" for path in sorted((ROOT / "agents" / "models").glob("*.md"))
}
written: set[Path] = set()
PROSE = 30  # a column with a longer cell holds sentences, not names or numbers
LINK = re.compile(r"\]\((?!http|#)([^)#\s]+)(#[^)\s]*)?\)")

project = "kvgym"
author = copyright = "The kvgym developers"  # noqa: A001
version = release = kvgym.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["images", "**/README.md"]
html_theme = "furo"
html_title = f"kvgym {version}"
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
myst_heading_anchors = 6
napoleon_custom_sections = [
    ("Description", "notes_style"), "Action Space", "Observation Space", "Rewards", "Starting State", "Episode End",
    "Information",
]  # fmt: skip
autodoc_typehints = "none"  # signatures and docstrings already have them
napoleon_use_ivar = True
autodoc_member_order = "bysource"
lexers["mermaid"] = TextLexer()  # shown as text: drawing it would need a script from the network


def public_modules(module: types.ModuleType = kvgym) -> Iterator[types.ModuleType]:
    """Yield kvgym and every module below it that is listed in an ``__all__``."""
    yield module
    for name in module.__all__:
        if isinstance(getattr(module, name), types.ModuleType):
            yield from public_modules(getattr(module, name))


def reference_page(module: types.ModuleType, homes: dict[int, str]) -> str:
    """Return the page of a module: links for names documented on other pages, full entries for the rest."""
    names = [name for name in module.__all__ if not name.startswith("__")]
    links, entries = [], []
    for name in names:
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            links.append(f"- :doc:`{value.__name__}`: {summary(value)}")
        elif homes[id(value)] != module.__name__:
            links.append(f"- :py:obj:`{name} <{homes[id(value)]}.{name}>`: {summary(value)}")
        elif isinstance(value, type):
            entries += [f".. autoclass:: {name}", "   :members:", ""]
        elif inspect.isroutine(value):
            entries += [f".. autofunction:: {name}", ""]
        else:
            entries += [f".. py:data:: {name}", "", *(f"   {line}" for line in constant_doc(name, value)), ""]
    head = [
        f"# {module.__name__}",
        "",
        "```{eval-rst}",
        f".. automodule:: {module.__name__}",
        "   :no-members:",
        "",
    ]
    return "\n".join([*head, *links, "", f".. currentmodule:: {module.__name__}", "", *entries, "```", ""])


def summary(value: Any) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return str(inspect.getdoc(value)).partition("\n\n")[0].replace("\n", " ")


def constant_doc(name: str, value: Any) -> list[str]:
    """Return the docstring below the definition of a constant or kernel."""
    if inspect.getdoc(value) and not isinstance(value, (dict, tuple, list, str, int, float, frozenset)):
        return [summary(value)]
    for module in [module for key, module in sys.modules.items() if key.startswith("kvgym.")]:
        if getattr(module, name, None) is value:
            found = ModuleAnalyzer.for_module(module.__name__).find_attr_docs().get(("", name))
            if found:
                return found
    return []


def write_reference() -> None:
    """Write a page for every public module, and a list of them."""
    modules = list(public_modules())
    homes: dict[int, str] = {}
    brief = tags.has("pages")  # type: ignore[name-defined]  # noqa: F821  # Sphinx defines it
    for module in modules:  # a name is documented in the deepest module
        homes |= {id(getattr(module, name)): module.__name__ for name in module.__all__}
    for module in modules:
        page = reference_page(module, homes) if not brief else f"# {module.__name__}\n"
        write(f"{module.__name__}.md", page)
    listed = "\n".join(module.__name__ for module in modules)
    write("api.md", f"# Reference\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n")


def write_copies() -> None:
    """Copy the pages outside this folder, with adjusted links."""
    for path, page in COPIES.items():
        text = path.read_text("utf-8")
        write(page.name, LINK.sub(lambda m, up=path.parent: moved(m, up), text))


def moved(link: re.Match[str], folder: Path) -> str:
    """Return a link of a page in another folder, relative to the folder of generated pages."""
    return f"]({os.path.relpath(folder / link[1], GENERATED)}{link[2] or ''})"


def write(name: str, text: str) -> None:
    """Write a page if it has changed, so that Sphinx reads only changed pages."""
    path = GENERATED / name
    written.add(path)
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def resolve_links(app: Any, docname: str, source: list[str]) -> None:
    """Point links to pages outside this folder at their copies; keep links to files, drop those to folders."""
    folder = (DOCS / docname).parent

    def resolved(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if DOCS in target.parents or (target.is_file() and target.suffix != ".md"):
            return match[0]
        page = COPIES.get(target)
        if page is None and target.is_dir():
            page = GENERATED / f"{'.'.join(target.relative_to(ROOT).parts)}.md"
        if page is None or not page.exists():
            return match[1]
        return f"[{match[1]}]({os.path.relpath(page, folder)}{match[3] or ''})"

    source[0] = re.sub(r"\[([^\[\]]*)" + LINK.pattern, resolved, source[0])


def mark_prose(app: Any, doctree: nodes.document, docname: str) -> None:
    """Mark columns of sentences, for which static/site.css sets a minimum width."""
    for table in doctree.findall(nodes.tgroup):
        rows = [list(row.children) for body in table.findall(nodes.tbody) for row in body.findall(nodes.row)]
        for column in zip(*rows, strict=False):
            if any(len(cell.astext()) > PROSE and " " in cell.astext() for cell in column):
                for cell in column:
                    cell["classes"].append("prose")


def skip_fields(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Skip the fields of named tuples: their docstrings only say that they are aliases."""
    return True if isinstance(value, type(Field.number)) else None


class Field(NamedTuple):
    """A named tuple; ``skip_fields`` needs the type of its fields."""

    number: int


def setup(app: Any) -> None:
    """Write the generated pages before Sphinx reads any."""
    write_reference()
    write_copies()
    for path in set(GENERATED.iterdir()) - written:  # of a module that is no longer public
        path.unlink()
    app.connect("source-read", resolve_links)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("doctree-resolved", mark_prose)
