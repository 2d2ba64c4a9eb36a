"""Draw the imports between the packages of kvgym as a Mermaid flowchart.

python scripts/draw_architecture.py                          # print the flowchart
python scripts/draw_architecture.py --check ARCHITECTURE.md  # exit with 1 if the page differs

Arrows that others imply are left out: if cli imports agents and agents import envs, cli may import envs as well.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import grimp

ROOT = "kvgym"

Edges = dict[str, set[str]]


def package_imports() -> Edges:
    """Return the imports between the direct parts of kvgym, lazy imports and those for types included."""
    graph = grimp.build_graph(ROOT, cache_dir=None)
    found: Edges = {name.split(".")[1]: set() for name in graph.find_children(ROOT)}
    for module in graph.modules - {ROOT}:
        part = module.split(".")[1]
        for imported in graph.find_modules_directly_imported_by(module) - {ROOT}:
            found[part].add(imported.split(".")[1])
    return {part: imported - {part} for part, imported in found.items()}


def reachable(edges: Edges, start: str) -> set[str]:
    """Return the parts that ``start`` imports, directly or through others."""
    seen: set[str] = set()
    ahead = list(edges[start])
    while ahead:
        part = ahead.pop()
        if part not in seen:
            seen.add(part)
            ahead += edges[part]
    return seen


def without_implied(edges: Edges) -> Edges:
    """Return the transitive reduction of an acyclic graph."""
    behind = {part: reachable(edges, part) for part in edges}
    return {
        part: {end for end in ends if not any(end in behind[other] for other in ends - {end})}
        for part, ends in edges.items()
    }


def draw(edges: Edges) -> str:
    """Return the flowchart, importers above imported packages."""
    kept = without_implied(edges)
    height = {part: len(reachable(edges, part)) for part in edges}
    lines = ["flowchart TD"]
    for part in sorted(kept, key=lambda part: (-height[part], part)):
        lines += [f"    {part} --> {end}" for end in sorted(kept[part], key=lambda end: (-height[end], end))]
    return "\n".join(lines)


def drawn_in(page: str) -> str:
    """Return the first Mermaid block of a page, or ``""``."""
    block = re.search(r"^```mermaid\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE)
    return block.group(1) if block else ""


def main(arguments: list[str] | None = None) -> int:
    """Print the flowchart or check a page; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", type=Path, metavar="FILE", help="compare with the Mermaid block of this page"
    )
    options = parser.parse_args(arguments)
    chart = draw(package_imports())
    if options.check is None:
        print(chart)
    elif drawn_in(options.check.read_text("utf-8")) != chart:
        print(
            f"{options.check}: the Mermaid block does not match the imports; replace it by:\n{chart}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
