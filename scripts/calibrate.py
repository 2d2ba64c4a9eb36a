"""Calibrate all hardware files of kvgym, or print the report on the existing ones.

    python scripts/calibrate.py PROFILES    write configs/hardware/*.yaml and print the report
    python scripts/calibrate.py             print the report only

Paths in configs/recipe/*.yaml are relative to the folder PROFILES. For a single file, or your own hardware, use
``kvgym server calibrate``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kvgym.batch_time.deployments.load import hardware_names, load_calibrated
from kvgym.servers.calibration.calibrate import calibrate, write_hardware
from kvgym.servers.calibration.recipes import load_recipe, recipe_names
from kvgym.servers.calibration.report import report

HARDWARE = Path(__file__).resolve().parent.parent / "configs" / "hardware"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("profiles", type=Path, nargs="?", help="folder of the profiles")
    parser.add_argument("--date", help="date to write into the files, ISO 8601 (default: today)")
    args = parser.parse_args()
    if args.profiles is not None:
        for name in recipe_names():
            made = calibrate(args.profiles, load_recipe(name), args.date, implausible=True)
            write_hardware(made, HARDWARE / f"{name}.yaml")
    print(report([load_calibrated(name) for name in hardware_names()]))


if __name__ == "__main__":
    main()
