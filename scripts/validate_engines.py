"""Compare batch times with published measurements of running engines: the tables and figures of docs/validation.md.

python scripts/validate_engines.py            print the tables
python scripts/validate_engines.py --write    put them into docs/validation.md and draw docs/images/validation-*.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kvgym.validation.tables import TABLES, fill

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="renew the page and its figures")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages")
    args = parser.parse_args()
    if not args.write:
        print("\n\n".join(f"{name}\n\n{table()}" for name, table in TABLES.items()))
        return
    from kvgym.validation.figures import FIGURES

    page = args.docs / "validation.md"
    page.write_text(fill(page.read_text("utf-8")), "utf-8")
    (args.docs / "images").mkdir(exist_ok=True)
    for name, figure in FIGURES.items():
        figure().savefig(args.docs / "images" / name, dpi=130)


if __name__ == "__main__":
    main()
