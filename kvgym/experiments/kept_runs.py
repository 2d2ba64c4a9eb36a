"""Runs in processes, each of which is kept as soon as it is there, for searches that ask for runs as they go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvgym.execution import make_executor
from kvgym.experiments.identity import run_key, setting_key
from kvgym.experiments.journal import UNFINISHED, Journal, play_kept
from kvgym.experiments.runs import Played, Player, Run
from kvgym.policy import make_policy
from kvgym.routing import make_router

Play = Callable[[Sequence[Run]], Iterator[tuple[int, Played]]]
"""Does runs; yields the place of each and what it gave as soon as it is there, in any order."""


@contextlib.contextmanager
def kept_runs(
    player: Player, folder: str | Path | None, *, jobs: int | None = 1, ray: str | None = None
) -> Iterator[Play]:
    """Give what does runs in the block; runs that a folder has from a search that was stopped come from there.

    Args:
        player: does them.
        folder: where each is kept, in ``unfinished.jsonl``; None = nowhere.
        jobs: processes, see :func:`kvgym.execution.make_executor`.
        ray: run on a Ray cluster instead, see there.

    Raises:
        ConfigError: the folder cannot be written, or another process works in it.
    """
    settings: dict[str, str] = {}

    def key(run: Run) -> str:
        text = run.scenario.model_dump_json()
        if text not in settings:
            settings[text] = setting_key(run.scenario)
        policy = make_policy(run.policy) if isinstance(run.policy, str) else run.policy
        router = make_router(run.router) if isinstance(run.router, str) else run.router
        router = run.scenario.make_router() if router is None else router
        return run_key(settings[text], policy, router, run.seed, run.measure)

    with contextlib.ExitStack() as opened:
        journal = None if folder is None else opened.enter_context(Journal(folder, UNFINISHED))
        executor = opened.enter_context(make_executor(player, jobs, ray=ray))

        def play(runs: Sequence[Run]) -> Iterator[tuple[int, Played]]:
            return play_kept(runs, [] if journal is None else [key(run) for run in runs], executor, journal)

        yield play
