"""Kinds of input: candidates for `kvgym benchmark judge` and their answers, and results for the leaderboard."""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.kinds import Kind, raw, refuse, written
from kvgym.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]

CANDIDATES = (
    """
from kvgym.baselines.first_come import FCFS

class Mine(FCFS):
    pass
""",
    """
import kvgym

class Mine(kvgym.Policy):
    info = kvgym.PolicyInfo("mine", "one at a time", needs={"class"}, evicts=True)

    def __init__(self, *, most=1):
        self.most = most

    def schedule(self, view):
        return kvgym.Decision(admit=view.waiting.request_id[: self.most - view.num_active].tolist())
""",
    """
from kvgym import Router, RouterInfo

class Mine(Router):
    info = RouterInfo(name="mine", summary="the first")

    def route(self, view):
        return view.candidates[0]
""",
)


def play_candidate(content: Any, folder: Path) -> None:
    """Load the policy or router that a file defines."""
    from kvgym.policies.policy import Policy
    from kvgym.policies.routing import Router
    from kvgym.studies.benchmark.candidate import maker_of

    data = content if isinstance(content, bytes) else str(content).encode("utf-8", "replace")
    made = maker_of(str(written(folder, "fuzzed_candidate.py", data)))()
    refuse(not isinstance(made, Policy | Router), "neither a policy nor a router")


JUDGED_FILE = Kind("judged-file", lambda: [raw(text) for text in CANDIDATES], play_candidate)


def answer_seeds() -> list[Any]:
    idle = {"admit": [], "evict": [], "tokens": [], "wait_until": None, "put_back": 0}
    said = {"role": "scheduler", "name": "mine", "needs": [], "uses": ["class"], "livelock_advice": ""}
    all_at_once = [said, {}, {}, {**idle, "admit": [0, 1, 2]}, *[idle] * 10]
    chunks = [said, {}, {}, {**idle, "admit": [2, 0], "tokens": [[2, 1], [0, 2]]}, {**idle, "evict": [2]}]
    waits = [
        said,
        {},
        {},
        {**idle, "wait_until": 3.5},
        {**idle, "admit": [1, 2, 0], "put_back": 2},
        *[idle] * 9,
    ]
    fails = [said, {}, {}, {"failed": "it raised\nan error"}]
    routes = [
        {"role": "router", "name": "mine", "reassigns": True},
        {},
        {},
        *[{"answer": k % 2} for k in range(9)],
    ]
    streams = [all_at_once, chunks, waits, fails, [{"lost": "no memory"}], routes]
    return [*({"answers": stream} for stream in streams), raw(stream_of(all_at_once)), raw(stream_of(routes))]


def stream_of(answers: Any) -> bytes:
    """Return answers as a candidate writes them."""
    from kvgym.studies.benchmark.candidate import ANSWER

    texts = [json.dumps(each).encode() for each in (answers if isinstance(answers, list) else [answers])]
    return b"".join(ANSWER.pack(len(text)) + text for text in texts)


def play_answers(content: Any, folder: Path) -> None:
    """Simulate with the answers of a candidate, whatever they are."""
    from kvgym.batch_time import UnitBatchTime
    from kvgym.metrics.compute import compute_metrics
    from kvgym.policies.routing import Router
    from kvgym.policies.runner import simulate
    from kvgym.simulator.system import System
    from kvgym.studies.benchmark.process import LostError, Process
    from kvgym.studies.benchmark.remote import remote
    from kvgym.workloads.table import RequestTable

    answers = content.get("answers") if isinstance(content, dict) else content
    stream = content if isinstance(content, bytes) else stream_of(answers)
    table = RequestTable(np.zeros(3), np.array([4, 2, 3]), np.array([3, 5, 2]))
    system = System(64, UnitBatchTime(), stall_limit=20)

    class Scripted(Process):
        """A process with known answers."""

        def __init__(self) -> None:
            self._seconds, self._end = 5.0, time.monotonic() + 5
            self._answers, other = os.pipe()
            os.write(other, stream[:60_000])
            os.close(other)
            self._questions, self._prints = (os.open(os.devnull, mode) for mode in (os.O_WRONLY, os.O_RDONLY))
            self._received = self.printed = b""
            self._open = [self._answers, self._prints]
            self._status = 0

    with ExitStack() as held:
        process = Scripted()
        for fd in (process._answers, process._questions, process._prints):
            held.callback(os.close, fd)
        try:
            made = remote(process)
            if isinstance(made, Router):
                result = simulate(system.replicate(2), table, "fcfs", router=made)
            else:
                result = simulate(system, table, made)
        except LostError as error:
            text = str(error)
            refuse(not text.isprintable() or len(text) > 250, "a message that is no short line")
            raise ConfigError(text) from None
    refuse(not result.completed, "a run that has not ended")
    refuse(not math.isfinite(compute_metrics(result)["e2e_latency_mean"]), "a metric that is not finite")


ANSWERS = Kind("judged-answers", answer_seeds, play_answers)


def result_seeds() -> list[Any]:
    stored = [
        json.loads((ROOT / "docs" / "benchmark" / f"{name}.json").read_text("utf-8"))
        for name in ("fcfs", "lmetric", "linear--learned", "mc_sf")
    ]
    named = [{**stored[0], "name": name} for name in ("<script>x</script>", "a | b", "`x`", "x\ny", "x" * 99)]
    return [*stored, *named, raw(json.dumps(stored[0])), raw(json.dumps(stored[1], indent=1))]


def play_results(content: Any, folder: Path) -> None:
    """Make the table of a folder of results."""
    from kvgym.studies.benchmark.leaderboard import leaderboard, read_results

    data = content if isinstance(content, bytes) else json.dumps(content).encode("utf-8", "replace")
    path = written(folder, "fuzzed.json", data)
    try:
        page = leaderboard(read_results(folder))
    except ConfigError as error:
        refuse(path.name not in str(error) and path.name not in error.details, "a message without the file")
        raise
    refuse("<" in page, "HTML in the table")
    rows = [line for line in page.split("\n") if line.startswith("|")]
    refuse(len({line.count("|") for line in rows if "`" in line}) > 2, "a broken table")


RESULTS = Kind("benchmark-results", result_seeds, play_results)
