"""Play environments at random with random configurations, and report failed checks.

python scripts/checks/random_play.py --steps 100000                             # about a minute on a core
python scripts/checks/random_play.py --steps 10000000 --jobs 2 --out results/play  # an hour on a core; may be stopped
python scripts/checks/random_play.py --steps 10000000 --jobs 2 --out results/play --resume
python scripts/checks/random_play.py --seed 0 --segment 123                     # one segment again, that had a fault

The play covers all ids, scalar and vector, with all engine rules, blocks and clusters; docs/maintaining.md lists the
checks of every step. A segment is a configuration and a few hundred steps, determined by the seed and its number.
Finished segments are appended to segments.jsonl, so that a stopped run loses nothing; report.md is the summary. Exit
status 1 if there is a fault.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from playing.segments import counted, faults_of, play_segment

CHUNK = 8
"""Segments that a process plays at a time."""


def main() -> int:
    """Read the command line and play."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100_000, help="number of steps in total")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--out", type=Path, default=Path("results/random_play"), help="folder for the journal and the report"
    )
    parser.add_argument("--resume", action="store_true", help="continue an existing journal")
    parser.add_argument(
        "--segment", type=int, help="play only this segment, print its result, and write no file"
    )
    options = parser.parse_args()
    if options.segment is not None:
        played = play_segment(options.seed, options.segment)
        print(json.dumps(played, indent=1))
        return int(bool(played["fault"]))
    if min(options.steps, options.jobs) < 1 or options.seed < 0:
        parser.error("--steps and --jobs must be ≥ 1, --seed ≥ 0")
    try:
        segments = play(options.steps, options.seed, options.jobs, options.out, resume=options.resume)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    text = report(segments, options.seed)
    (options.out / "report.md").write_text(text, encoding="utf-8")
    print(text)
    return int(bool(faults_of(segments)))


def play(steps: int, seed: int, jobs: int, out: Path, *, resume: bool = False) -> list[dict[str, Any]]:
    """Play segments until they have ``steps`` steps in total; return them in order.

    Args:
        steps: minimal number of steps, including those of a resumed journal.
        seed: seed of the play.
        jobs: processes; 1 means this one.
        out: folder of ``segments.jsonl``, which has a line for each finished segment.
        resume: continue an existing journal.

    Raises:
        ValueError: there is a journal without ``resume``, or it has another seed.
    """
    journal = out / "segments.jsonl"
    segments = read_journal(journal, seed) if resume and journal.exists() else []
    if not segments and journal.exists() and journal.stat().st_size and not resume:
        raise ValueError(f"{journal} already exists; continue it with --resume, or choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    done = {segment["number"] for segment in segments}
    numbers = (number for number in itertools.count() if number not in done)
    taken, began = sum(segment["steps"] for segment in segments), time.monotonic()
    with journal.open("a", encoding="utf-8") as file:
        for played in play_all(numbers, seed, jobs):
            segments.append(played)
            taken += played["steps"]
            file.write(json.dumps({"seed": seed, **played}) + "\n")
            file.flush()
            if played["fault"]:
                print(f"segment {played['number']}: {played['fault']}", flush=True)
            if sys.stderr.isatty():
                rate = taken / max(time.monotonic() - began, 1e-9)
                print(f"\r{taken:,} of {steps:,} steps, {rate:,.0f}/s ", end="", file=sys.stderr, flush=True)
            if taken >= steps:
                break
    return sorted(segments, key=lambda segment: segment["number"])


def play_all(numbers: Iterator[int], seed: int, jobs: int) -> Iterator[dict[str, Any]]:
    """Yield results of segments without end, in any order; the caller stops the iteration."""
    if jobs == 1:
        yield from (play_segment(seed, number) for number in numbers)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"))
    waiting: set[Future[list[dict[str, Any]]]] = set()
    try:
        while True:
            while len(waiting) < 2 * jobs:
                waiting.add(pool.submit(play_chunk, seed, list(itertools.islice(numbers, CHUNK))))
            ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ready:
                yield from future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def play_chunk(seed: int, numbers: list[int]) -> list[dict[str, Any]]:
    """Play several segments, in another process."""
    return [play_segment(seed, number) for number in numbers]


def read_journal(path: Path, seed: int) -> list[dict[str, Any]]:
    """Return the segments of a journal, without an incomplete last line.

    Raises:
        ValueError: it has another seed.
    """
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    segments = [json.loads(line) for line in whole.splitlines()]
    for segment in segments:
        if segment.pop("seed") != seed:
            raise ValueError(f"{path} was not played with seed {seed}; choose its seed or another --out")
    return segments


def report(segments: list[dict[str, Any]], seed: int) -> str:
    """Return a summary of the segments and their faults, Markdown."""
    total = sum(segment["steps"] for segment in segments)
    lines = [
        f"{total:,} steps in {len(segments):,} segments of seed {seed}: {len(faults_of(segments))} faults.",
        "",
    ]
    for title, by in (("segments of", "kind"), ("action", "action")):
        lines += [
            f"| {title} | segments | steps | episodes | copies | faults |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        for name, row in counted(segments, by).items():
            figures = (row[column] for column in ("segments", "steps", "episodes", "copies", "faults"))
            lines.append(f"| {name} | " + " | ".join(f"{figure:,}" for figure in figures) + " |")
        lines.append("")
    lines += [
        f"- segment {segment['number']}: {segment['fault']}; {json.dumps(segment['arguments'])}"
        for segment in faults_of(segments)
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
