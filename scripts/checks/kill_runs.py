"""Kill commands at random moments, continue them, and compare the results with undisturbed runs.

    python scripts/checks/kill_runs.py                         ten kills each of train, compare, tune and capacity
    python scripts/checks/kill_runs.py --kills 100 compare     a hundred of one command

A command is started, killed with SIGKILL at a random moment and started again, as a user would, for the given number
of kills; then it runs to its end. No start may fail, finished work must survive each kill, and the results must equal
those of the undisturbed run bit for bit (except for clock times). Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.cli.manifest import MANIFEST
from kvgym.utils.files import HIDDEN, LOCK

START = "from kvgym.cli.app import main; main()"


@dataclass(frozen=True)
class Command:
    """A command to kill.

    Attributes:
        begin: its arguments, without the folder.
        again: arguments to continue, None if they are the same.
        kept: finished work in its folder, as a number that must not fall before the end.
        results: contents of its folder at the end, without clock times.
    """

    begin: tuple[str, ...]
    again: tuple[str, ...] | None
    kept: Callable[[Path], int]
    results: Callable[[Path], Any]


FINISHED = 10**9
"""``kept`` of a completed command."""


def _lines(folder: Path, last: str) -> int:
    """Return the number of kept runs; ``last`` is the file that a command writes last."""
    path = folder / "unfinished.jsonl"
    if path.exists():
        return path.read_bytes().count(b"\n")
    return FINISHED if (folder / last).exists() else 0


def _steps(folder: Path) -> int:
    found = sorted((folder / "checkpoints").glob("step-*/state.json"))
    return 1 + int(found[-1].parent.name.removeprefix("step-")) if found else 0


def _table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return [{k: v for k, v in row.items() if k != "wall_time"} for row in csv.DictReader(file)]


def _agent(folder: Path) -> Any:
    found: dict[str, Any] = {"curve": (folder / "curve.csv").read_text("utf-8")}
    for name in ("best", "final"):
        if (folder / f"{name}.npz").exists():
            with np.load(folder / f"{name}.npz", allow_pickle=False) as arrays:
                found[name] = {key: arrays[key].tobytes() for key in arrays.files}
    return found


def _capacity(folder: Path) -> Any:
    found = json.loads((folder / "capacity.json").read_text("utf-8"))
    found.pop("simulated_seconds_of_work")
    return _table(folder, "probes.csv"), found


def commands(size: int) -> dict[str, Command]:
    """Return the commands, ``size`` times as long as the shortest."""
    several = ("--no-progress", "--jobs", "1", "-n", "400", "--seeds", str(4 * size))
    training = (
        "env.action=knobs", "env.num_requests=10", "num_envs=2", "network.hidden=[4]", "hyperparameters.n_steps=8",
        "hyperparameters.batch_size=16", "hyperparameters.n_epochs=1", f"total_steps={64 * size}",
        "evaluation.interval=16", "evaluation.seeds=1",
    )  # fmt: skip
    compared = ("compare", "-p", "fcfs,mc_sf", "--no-report", *several)
    tuned = ("tune", "-p", "mc_sf", *several)
    searched = ("capacity", "-p", "fcfs,mc_sf", "--no-report", *several)
    return {
        "train": Command(
            ("train", "knobs", *training, "--no-progress"),
            ("train", "--no-progress", "--resume"),
            _steps,
            _agent,
        ),
        "compare": Command(
            compared, None, partial(_lines, last="summary.json"), lambda folder: _table(folder, "runs.csv")
        ),
        "tune": Command(
            tuned, None, partial(_lines, last="config.json"), lambda folder: _table(folder, "trials.csv")
        ),
        "capacity": Command(searched, None, partial(_lines, last="config.json"), _capacity),
    }


def start(arguments: tuple[str, ...], folder: Path) -> subprocess.Popen[bytes]:
    """Start a command in a folder."""
    place = (str(folder),) if arguments[-1] == "--resume" else ("--out", str(folder))
    return subprocess.Popen(
        [sys.executable, "-c", START, *arguments, *place], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a command that must succeed."""
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(
            f"{process.args}: exit status {process.returncode}\n{errors.decode('utf-8', 'replace')}"
        )


def _begun(command: Command, folder: Path) -> bool:
    """Whether there is something to continue."""
    return command.again is not None and (folder / "config.yaml").exists()


def disturb(command: Command, folder: Path, kills: int, moments: random.Random) -> int:
    """Kill and continue a command up to ``kills`` times, then let it end; return the number of kills."""
    undisturbed = folder.with_name(f"{folder.name}-undisturbed")
    began = time.monotonic()
    _end(start(command.begin, undisturbed))
    lasts, done, kept = time.monotonic() - began, 0, 0
    while True:
        arguments = command.again if command.again is not None and _begun(command, folder) else command.begin
        process = start(arguments, folder)
        if done < kills:
            try:
                process.communicate(timeout=moments.uniform(0.3, 1.0) * lasts)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                done += 1
                if command.kept(folder) < kept:
                    raise SystemExit(
                        f"{folder}: {kept} runs were finished, {command.kept(folder)} are left"
                    ) from None
                kept = command.kept(folder)
                if kept < FINISHED:
                    continue
        if kept < FINISHED:
            _end(process)
        if command.results(folder) != command.results(undisturbed):
            raise SystemExit(f"{folder}: results differ from {undisturbed}")
        allowed = {MANIFEST, LOCK} if kept == FINISHED else {MANIFEST}  # a kill after the end leaves the lock
        if left := {path.name for path in folder.rglob(f"{HIDDEN}*")} - allowed:
            raise SystemExit(f"{folder}: left behind: {', '.join(sorted(left))}")
        return done


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="COMMAND", help="train, compare, tune, capacity; all by default"
    )
    parser.add_argument("--kills", type=int, default=10, help="kills of each command")
    parser.add_argument("--size", type=int, default=1, help="length of the commands")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    options = parser.parse_args()
    known = commands(options.size)
    if wrong := [name for name in options.names if name not in known]:
        parser.error(f"unknown command {wrong[0]!r}; valid: {', '.join(known)}")
    moments = random.Random(options.seed)
    for name in options.names or known:
        began, done, rounds = time.monotonic(), 0, 0
        while done < options.kills:
            with tempfile.TemporaryDirectory() as place:
                done += disturb(known[name], Path(place) / name, options.kills - done, moments)
            rounds += 1
        print(
            f"{name}: {done} kills in {rounds} runs, {time.monotonic() - began:.0f} s; no finished run was lost, all "
            "results equal those of undisturbed runs",
            flush=True,
        )


if __name__ == "__main__":
    main()
