"""The evaluator of programs that write schedulers with OpenEvolve (``pip install openevolve``).

A program is a Python file that defines one class derived from ``kvgym.Policy``. A first stage of one seed stops bad
ones; the second has five. Scores are from validation seeds that begin at the number of the environment variable
``KVGYM_SEED``; set it to one that programs cannot know. One warm judge serves all programs of a process::

    KVGYM_SEED=48151623421108 python -m openevolve.cli shortest_prompt.py openevolve_evaluator.py --iterations 100
"""

from __future__ import annotations

import functools
import os
from typing import Any

from kvgym.studies.benchmark.judging import FIRST_SEED, Judge


@functools.cache
def judging() -> Judge:
    """Return the judge of this process, which ends with it."""
    first = int(os.environ.get("KVGYM_SEED", FIRST_SEED))
    return Judge(tasks=("hidden-kinds",), seeds=5, first_seed=first, seconds=60)


def result_of(found: dict[str, Any]) -> Any:
    """Return a verdict as OpenEvolve reads it: the score to climb, and what the writer of programs is shown."""
    from openevolve.evaluation_result import EvaluationResult

    failures = [error for task in found["tasks"].values() for error in task["failures"].values()]
    score = -1.0 if found["score"] is None else found["score"]
    return EvaluationResult(
        metrics={"combined_score": score}, artifacts={"stderr": found["failure"] or "\n".join(failures)}
    )


def evaluate_stage1(program_path: str) -> Any:
    """Return the score of a program on one seed."""
    return result_of(judging().verdict(program_path, seeds=1))


def evaluate(program_path: str) -> Any:
    """Return the score of a program on all seeds."""
    return result_of(judging().verdict(program_path))


evaluate_stage2 = evaluate
