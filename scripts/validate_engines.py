"""Compare batch times with published measurements of running engines, for two pages.

python scripts/validate_engines.py            print the tables
python scripts/validate_engines.py --write    put them into docs/validation.md and docs/hardware.md, and draw
                                              docs/images/validation-*.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from validation import rooflines, tables

PAGES = {"validation.md": tables.TABLES, "hardware.md": rooflines.TABLES}
DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="update the pages and their figures")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages")
    args = parser.parse_args()
    if not args.write:
        shown = [f"{name}\n\n{table()}" for page in PAGES.values() for name, table in page.items()]
        print("\n\n".join(shown))
        return
    from validation.figures import FIGURES

    for name, own in PAGES.items():
        page = args.docs / name
        page.write_text(tables.fill(page.read_text("utf-8"), own), "utf-8")
    (args.docs / "images").mkdir(exist_ok=True)
    for name, figure in FIGURES.items():
        figure().savefig(args.docs / "images" / name, dpi=130)


if __name__ == "__main__":
    main()
