"""Fuzzing campaign: plays numbered inputs in worker processes that may hang or die, and collects the outcomes."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fuzz.judging import CLASSES, FAILURES, HANG, MEMORY, Verdict, judge
from fuzz.kinds import Kind, all_kinds
from fuzz.trees import smaller

BATCH = 50
"""Inputs that a process gets at a time."""

PATIENCE = 300.0
"""Seconds without a message after which a process counts as hung; its own limit is CPU time."""

QUIET, LOUD = 5.0, 20.0
"""Seconds until the first report of progress, and between reports."""

MAX_REQUESTS = 20_000
"""Limit on the requests that workloads draw, so that none takes long."""

ROOM = 4 << 30
"""Bytes by which a process may grow its address space after it is loaded."""

TRIES = 150
"""Limit on the smaller inputs tried for a failing one."""


@dataclass
class Finding:
    """A distinct failure.

    Attributes:
        kind: kind of input.
        tree: the smallest input that fails this way.
        verdict: its outcome.
        number: seed and index of the first input.
        count: number of inputs that failed this way.
    """

    kind: str
    tree: Any
    verdict: Verdict
    number: tuple[int, int]
    count: int = 1


@dataclass
class Report:
    """Outcomes of a run.

    Attributes:
        counts: number of inputs by kind and class.
        findings: failures by kind, outcome and place.
        seconds: wall time.
        cpu_seconds: CPU time of all inputs.
        slowest: CPU seconds and name of the slowest input.
        preparing: kinds that processes are preparing for, which compiles missing functions.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: dict[tuple[str, str, str], Finding] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    slowest: tuple[float, str] = (0.0, "")
    preparing: tuple[str, ...] = ()

    def note(self, kind: str, number: tuple[int, int], tree: Any, verdict: Verdict) -> None:
        """Add the outcome of an input."""
        self.counts[kind, verdict.outcome] += 1
        self.cpu_seconds += verdict.seconds
        self.slowest = max(self.slowest, (verdict.seconds, f"{kind}:{number[0]}:{number[1]}"))
        if verdict.failed:
            key = (kind, verdict.outcome, verdict.place)
            known = self.findings.get(key)
            if known is None:
                self.findings[key] = Finding(kind, tree, verdict, number)
            else:
                known.count += 1
                if len(json.dumps(tree)) < len(json.dumps(known.tree)):
                    known.tree, known.verdict = tree, verdict

    def table(self) -> str:
        """Return the numbers of inputs by kind and class."""
        rows = [["kind", *CLASSES, "all"]]
        for kind in [*sorted({kind for kind, _ in self.counts}), "all"]:
            numbers = [
                sum(n for (k, c), n in self.counts.items() if kind in (k, "all") and c == one)
                for one in CLASSES
            ]
            rows.append([kind, *(f"{n:,}" for n in numbers), f"{sum(numbers):,}"])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(row[1:], widths[1:], strict=True))]
            )
            for row in rows
        ]
        slowest = f"slowest: {self.slowest[1]}, {self.slowest[0]:.2f} s"
        end = f"{self.seconds:,.0f} s, {self.cpu_seconds:,.0f} s of CPU time in inputs; {slowest}"
        return "\n".join([*lines, end])


def load_corpus(folder: Path) -> list[tuple[str, Any, str]]:
    """Return the inputs of a corpus folder: kind, tree and file name."""
    found = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text("utf-8"))
        found.append((content["kind"], content["input"], path.name))
    return found


def prepare() -> None:
    """Prepare this process for playing inputs."""
    from kvgym.workloads import base

    base.MAX_REQUESTS = MAX_REQUESTS
    warnings.simplefilter("ignore")
    os.environ.setdefault("KVGYM_PLUGINS", "0")


def play(kind: Kind, tree: Any) -> Verdict:
    """Return the outcome of an input, played in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="f", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        return judge(lambda: kind.run(tree, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shrink(
    tree: Any, verdict: Verdict, again: Callable[[Any], Verdict], seconds: float = 20.0
) -> tuple[Any, Verdict]:
    """Return the smallest input found that fails in the same way.

    Args:
        tree: the failing input.
        verdict: its outcome.
        again: plays another input.
        seconds: time limit.
    """
    end, tries, smallest = time.monotonic() + seconds, 0, True
    while smallest:
        smallest = False
        for candidate in smaller(tree):
            tries += 1
            if tries > TRIES or time.monotonic() > end:
                return tree, verdict
            found = again(candidate)
            if (found.outcome, found.place) == (verdict.outcome, verdict.place):
                tree, verdict, smallest = candidate, found, True
                break
    return tree, verdict


def _work(pipe: Connection, seed: int) -> None:
    """Play the tasks from a pipe and send the outcomes back; runs in a worker process."""
    prepare()
    kinds = all_kinds()
    known: set[tuple[str, str, str]] = set()
    limited = False
    while (task := pipe.recv()) is not None:
        kind = kinds[task[0]]
        with tempfile.TemporaryDirectory() as folder:
            kind.ready(Path(folder))
        for index in range(*task[1:]):
            pipe.send(("begin", kind.name, index))
            tree = kind.make(seed, index)
            verdict = play(kind, tree)
            key = (kind.name, verdict.outcome, verdict.place)
            if verdict.failed and verdict.outcome not in (HANG, MEMORY) and key not in known:
                known.add(key)
                tree, verdict = shrink(tree, verdict, lambda candidate, kind=kind: play(kind, candidate))  # type: ignore[misc]
            pipe.send(("end", kind.name, index, tree if verdict.failed else None, verdict))
        pipe.send(("done",))
        if not limited:  # only after the first batch, as loading takes much address space
            limited = True
            _limit_memory()


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        limit = pages * resource.getpagesize() + ROOM
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def plan(kinds: Mapping[str, Kind], cases: int, seed: int) -> list[tuple[str, int, int]]:
    """Return the tasks (kind, first index, end) in random order, with kinds in proportion to their weights."""
    total = sum(kind.weight for kind in kinds.values())
    tasks = []
    for kind in kinds.values():
        number = max(1, round(cases * kind.weight / total))
        tasks += [(kind.name, k, min(k + BATCH, number)) for k in range(0, number, BATCH)]
    random.Random(seed).shuffle(tasks)
    return tasks


def run(
    kinds: Mapping[str, Kind],
    cases: int,
    seed: int,
    jobs: int = 1,
    progress: Callable[[Report, int], None] | None = None,
) -> Report:
    """Play inputs in worker processes.

    Args:
        kinds: kinds to play, by name.
        cases: approximate number of inputs.
        seed: seed of the mutations; equal seeds give equal inputs.
        jobs: number of processes.
        progress: called now and then with the report so far and the total number of inputs.

    Returns:
        The outcomes; after Ctrl-C, those so far.
    """
    report, began = Report(), time.monotonic()
    tasks = plan(kinds, cases, seed)
    total = sum(end - first for _, first, end in tasks)
    tasks.reverse()
    players = [_Player(seed) for _ in range(max(1, min(jobs, len(tasks))))]
    reported = began - LOUD + QUIET
    try:
        while tasks or any(player.task for player in players):
            for player in players:
                if player.task is None and tasks:
                    player.give(tasks.pop())
            for player in players:
                if rest := player.receive(report):
                    tasks.append(rest)
            report.seconds = time.monotonic() - began
            report.preparing = tuple(dict.fromkeys(p.preparing for p in players if p.preparing))
            if progress is not None and time.monotonic() - reported > LOUD:
                reported = time.monotonic()
                progress(report, total)
    except KeyboardInterrupt:  # outcomes so far are valid
        pass
    finally:
        for player in players:
            player.end()
    report.seconds = time.monotonic() - began
    return report


class _Player:
    """Worker process; one that hangs or dies is replaced, and its current input is a finding."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, self._seed), daemon=True)
        self._process.start()
        other.close()
        self.task: tuple[str, int, int] | None = None
        self._at: int | None = None
        self.preparing = ""
        self._heard = time.monotonic()

    def give(self, task: tuple[str, int, int]) -> None:
        self.task, self._at, self.preparing = task, None, task[0]
        self._heard = time.monotonic()
        self._pipe.send(task)

    def receive(self, report: Report) -> tuple[str, int, int] | None:
        """Process its messages; return the rest of its task if it died."""
        if self.task is None:
            return None
        try:
            if not wait([self._pipe], timeout=0.2):
                loading = self._at is None  # perhaps compiling, which takes long on a busy machine
                if loading or time.monotonic() - self._heard < PATIENCE:
                    return None
                return self._replace(
                    report, Verdict(HANG, f"no message for {PATIENCE:g} s", "the whole process")
                )
            while self._pipe.poll():
                message = self._pipe.recv()
                self._heard = time.monotonic()
                self.preparing = ""
                if message[0] == "begin":
                    self._at = message[2]
                elif message[0] == "end":
                    report.note(message[1], (self._seed, message[2]), message[3], message[4])
                else:
                    self.task = None
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            return self._replace(
                report,
                Verdict(MEMORY if code == -9 else "foreign", f"exit status {code}", "the whole process"),
            )
        return None

    def _replace(self, report: Report, verdict: Verdict) -> tuple[str, int, int] | None:
        assert self.task is not None
        name, first, end = self.task
        at = first if self._at is None else self._at
        report.note(name, (self._seed, at), all_kinds()[name].make(self._seed, at), verdict)
        self.end()
        self._start()
        return (name, at + 1, end) if at + 1 < end else None

    def end(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._pipe.send(None)
            self._pipe.close()
        self._process.kill() if self.task is not None else self._process.join(10)
        if self._process.is_alive():
            self._process.kill()


def failures(report: Report) -> list[str]:
    """Return a paragraph for each finding: the failure, its smallest input, and the command that repeats it."""
    lines = []
    for finding in sorted(
        report.findings.values(), key=lambda f: (FAILURES.index(f.verdict.outcome), -f.count)
    ):
        name = f"{finding.kind}:{finding.number[0]}:{finding.number[1]}"
        text = json.dumps(finding.tree)
        lines.append(
            f"{finding.verdict.outcome}, {finding.count} times: {finding.verdict.place}\n"
            f"  {finding.verdict.message[:300]}\n"
            f"  smallest input: {text if len(text) < 1000 else text[:1000] + ' …'}\n"
            f"  python scripts/checks/fuzz.py --case {name}"
        )
    return lines


def save(report: Report, folder: Path) -> Sequence[Path]:
    """Write each finding to a file in the format of the corpus, and return the paths."""
    if report.findings:
        folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for finding in report.findings.values():
        name = "".join(
            c if c.isalnum() else "-"
            for c in f"{finding.kind} {finding.verdict.outcome} {finding.verdict.place}"
        )[:100]
        paths.append(folder / f"{name}.json")
        content = {
            "kind": finding.kind,
            "input": finding.tree,
            "was": f"{finding.verdict.outcome}: {finding.verdict.message}"[:300],
        }
        paths[-1].write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    return paths
