"""Write the hardware files from operator profiles, or print the report on those that exist.

    python scripts/calibrate.py PROFILES            write configs/hardware/*.yaml and print the report
    python scripts/calibrate.py                     print the report only

PROFILES is a folder of CSV files in the Vidur simulator's layout; kvgym.batch_time.recipes names them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kvgym.batch_time.calibration import calibrate, write_hardware
from kvgym.batch_time.calibration_report import report
from kvgym.batch_time.hardware import load_hardware
from kvgym.batch_time.recipes import RECIPES

HARDWARE = Path(__file__).resolve().parent.parent / "configs" / "hardware"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("profiles", type=Path, nargs="?", help="folder with the CSV files")
    parser.add_argument("--out", type=Path, default=HARDWARE, help="folder of the hardware files")
    parser.add_argument("--date", help="day to write into the files, ISO 8601 (default: today)")
    parser.add_argument("--only", choices=[r.name for r in RECIPES], help="one hardware file only")
    args = parser.parse_args()
    recipes = [r for r in RECIPES if args.only in (None, r.name)]
    if args.profiles is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        for recipe in recipes:
            write_hardware(calibrate(args.profiles, recipe, args.date), args.out / f"{recipe.name}.yaml")
    files = [load_hardware(args.out / f"{recipe.name}.yaml") for recipe in recipes]
    named = [hardware.model_copy(update={"name": r.name}) for hardware, r in zip(files, recipes, strict=True)]
    print(report(named))


if __name__ == "__main__":
    main()
