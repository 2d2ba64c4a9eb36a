"""A search by mutation of a program's text: it climbs on validation seeds, and test seeds show what that is worth.

The program is a scheduler of one class. A mutation changes one or two of its numbers; a child that fails, or is worse
than its parent on one seed by more than 0.1, is not judged on all. Two processes of this machine work: the judge,
which simulates, and the candidate's, which decides::

    python scripts/examples/mutate_scheduler.py --minutes 10 --out results/mutated
"""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path

import numpy as np
import yaml

from kvgym.experiments.statistics import improvement_interval
from kvgym.studies.benchmark.entries import load_entry
from kvgym.studies.benchmark.judging import Judge
from kvgym.studies.benchmark.running import run_benchmark

TASK, SEEDS = "hidden-kinds", 4

TUNED = Path(__file__).parents[2] / "docs" / "benchmark" / "settings" / "ranked.yaml"

PROGRAM = '''"""A scheduler to be changed."""

from kvgym.baselines.ranked import Ranked


class Mine(Ranked):
    def __init__(self):
        super().__init__(
            prompt=0.1, footprint=1.5, attained=0.5, held=0.1, waiting=5.0, waiting_pressure=0.05, gate=2.1,
            gate_busy=0.33, value=0.01,
        )
'''

SETTING = re.compile(r"\w+=-?\d+\.\d+")

NUMBER = re.compile(r"(?<==)-?\d+\.\d+")


def mutated(text: str, rng: np.random.Generator) -> str:
    """Return the text with one or two of its numbers changed by about a third."""
    places = list(NUMBER.finditer(text))
    for found in sorted(rng.choice(len(places), rng.integers(1, 3), replace=False), reverse=True):
        start, end = places[found].span()
        changed = float(text[start:end]) * np.exp(0.35 * rng.standard_normal())
        text = f"{text[:start]}{changed:.4f}{text[end:]}"
    return text


def search(folder: Path, minutes: float, rng: np.random.Generator) -> list[tuple[float, int, float]]:
    """Climb for some minutes; write the best program, and return minutes, programs and score of each best one."""
    started, tried, curve = time.monotonic(), 0, []
    child, best, text = folder / "child.py", folder / "best.py", PROGRAM
    with Judge(tasks=(TASK,), seeds=SEEDS) as judging:
        first = score = -np.inf
        while time.monotonic() - started < 60 * minutes:
            candidate = mutated(text, rng) if tried else text
            child.write_text(candidate)
            tried += 1
            glance = judging.verdict(child, seeds=1)["score"]
            if glance is None or glance < first - 0.1:
                continue
            found = judging.verdict(child)["score"]
            if found is not None and found > score:
                first, score, text = glance, found, candidate
                best.write_text(text)
                curve.append(((time.monotonic() - started) / 60, tried, score))
                print(f"| {curve[-1][0]:.1f} | {tried} | {score:.3f} |", flush=True)
    print(f"{tried} programs in {minutes:g} minutes")
    return curve


def compared(best: Path) -> None:
    """Print what the start, the best program and the tuned rule are worth, on validation and on test seeds."""
    tuned = yaml.safe_load(TUNED.read_text("utf-8"))["tasks"][TASK]
    programs = {"start": PROGRAM, "best program": best.read_text("utf-8")}
    rules = {label: f"ranked:{','.join(SETTING.findall(text))}" for label, text in programs.items()}
    base = None
    print(
        "| scheduler | validation score | test score | test latency, s | gain over the start |\n|---|---|---|---|---|"
    )
    with Judge(tasks=(TASK,), seeds=SEEDS) as judging:
        for label, rule in {**rules, "tuned rule": tuned, "ranked_latency": "ranked_latency"}.items():
            found = run_benchmark([load_entry(rule)], name=label, tasks=[TASK], jobs=1)
            values = np.array(found.values[TASK][0])
            base = values if base is None else base
            gain = improvement_interval(values, base, lower_is_better=True)
            scores = f"{judging.verdict(rule)['score']:.3f} | {np.mean(found.scores()[TASK]):.3f}"
            interval = f"{gain.value:+.1%} ({gain.low:+.1%} to {gain.high:+.1%})"
            print(f"| {label} | {scores} | {values.mean():.2f} | {interval} |")


def main() -> None:
    """Search, and print validation scores and the mean latency on test seeds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/mutated"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print("| minutes | programs | validation score |\n|---|---|---|")
    search(options.out, options.minutes, np.random.default_rng(options.seed))
    print(f"{sum(os.times()[:4]) / 60:.1f} CPU minutes")  # of this process, and of those that have ended
    compared(options.out / "best.py")


if __name__ == "__main__":
    main()
