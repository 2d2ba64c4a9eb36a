"""Content of pictures and texts of one moment of an episode, and the texts.

Pictures and texts are drawn from a :class:`Scene` only, so they reveal no more than it holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvgym.report.chart import Panel
from kvgym.report.colours import PALETTE
from kvgym.simulator.tables import UNKNOWN

# Kinds of spans (Spans.kind).
IN_QUEUE, RUNNING, EVICTED, SERVED = 0, 1, 2, 3

SPANS = {
    IN_QUEUE: ("waiting", "#d0d7de", 0.3),
    RUNNING: ("running", PALETTE[0], 0.8),
    EVICTED: ("evicted", PALETTE[1], 0.8),
    SERVED: ("finished", PALETTE[2], 0.8),
}
"""Name, colour and bar height (in a row of height 1) of each kind of span."""

ROLES = ("mixed", "prefill", "decode")

TEXT_ROWS, TEXT_WORKERS = 8, 32
"""Upper limits of active, and of waiting, requests listed in a text, and of workers."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Spans:
    """Spans of time in which requests waited, ran or were evicted; arrays have an entry per span.

    Attributes:
        row: index of the request in :attr:`WorkerScene.rows`, int64 (m,).
        kind: IN_QUEUE, RUNNING, EVICTED or SERVED (ran and finished), int64 (m,).
        start: seconds, float64 (m,).
        end: seconds, float64 (m,).
    """

    row: Integers
    kind: Integers
    start: Floats
    end: Floats


@dataclass(frozen=True)
class Listed:
    """Active requests in order of activation, or waiting ones in queue order; arrays have an entry per request.

    Attributes:
        request_id: int64 (m,).
        arrival_time: seconds, float64 (m,).
        prompt_len: tokens, int64 (m,).
        predicted_len: predicted output, tokens, int64 (m,); UNKNOWN if there is none or it is not revealed.
        num_output_tokens: generated so far, int64 (m,).
        kv_tokens: KV held, tokens, int64 (m,).
    """

    request_id: Integers
    arrival_time: Floats
    prompt_len: Integers
    predicted_len: Integers
    num_output_tokens: Integers
    kv_tokens: Integers

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.request_id)

    @property
    def prompt_kv(self) -> Integers:
        """KV tokens of their prompts, int64 (m,)."""
        return np.minimum(self.kv_tokens, self.prompt_len)

    def row(self, k: int, now: float) -> str:
        """Return the line of a text about a request, without what only active ones have."""
        predicted = "?" if self.predicted_len[k] == UNKNOWN else f"{self.predicted_len[k]:,}"
        return (
            f"{self.request_id[k]:>18}{now - self.arrival_time[k]:>10.2f}{self.prompt_len[k]:>9,}"
            f"{predicted:>11}"
        )


@dataclass(frozen=True)
class Scene:
    """What is drawn of one moment of any number of workers.

    Attributes:
        clock: seconds.
        num_arrived: requests that have arrived.
        num_finished: requests finished so far.
        mean_latency: their mean end-to-end latency, seconds; NaN without any.
        workers: the records of the workers, dtype WORKER, (r,).
        kv_capacity: tokens, int64 (r,).
        time: times of the history, seconds, float64 (s,); the last is the current one.
        kv: memory in use between two batches, tokens of whole blocks, float64 (r, s).
        waiting: waiting requests, float64 (r, s).
        unfinished: requests sent to a worker that have not finished there, float64 (r, s).
    """

    clock: float
    num_arrived: int
    num_finished: int
    mean_latency: float
    workers: NDArray[np.void]
    kv_capacity: Integers
    time: Floats
    kv: Floats
    waiting: Floats
    unfinished: Floats

    def total(self, name: str) -> int:
        """Return the sum of a column over all workers."""
        return int(self.workers[name].sum())

    @property
    def latency(self) -> str:
        """The mean latency in words; empty without any."""
        return "" if np.isnan(self.mean_latency) else f", mean latency {self.mean_latency:.2f} s"


@dataclass(frozen=True)
class WorkerScene(Scene):
    """What is drawn of one moment of a worker.

    Attributes:
        active: the active requests.
        queue: the waiting requests.
        rows: requests of the Gantt view in order of arrival, int64.
        spans: their spans.
    """

    active: Listed
    queue: Listed
    rows: Integers
    spans: Spans

    def text(self) -> str:
        """Return clock, memory, counts, the latest active requests, and the head of the queue, in 80 columns."""
        active, queue, capacity = self.active, self.queue, int(self.kv_capacity[0])
        used, peak = self.total("kv_allocated"), self.total("peak_kv_tokens")
        bar = memory_bar(int(active.prompt_kv.sum()), used, capacity, 48)
        ends = "" if used <= int(active.kv_tokens.sum()) else " or unfilled"
        oldest = self.clock - float(queue.arrival_time.min()) if len(queue) else 0.0
        lines = [
            f"t = {self.clock:.3f} s   iteration {self.total('iteration'):,}",
            f"memory   [{bar}] {used:,} / {capacity:,}",
            f"         # prompt, = generated{ends}; {used / capacity:.0%} in use, peak {peak:,} tokens",
            f"queue    {len(queue):,} waiting" + (f", oldest for {oldest:.2f} s" if oldest else ""),
            f"active   {len(active):,} requests, {self.total('num_prefilling'):,} in prefill",
            f"so far   {self.num_finished:,} finished{self.latency}, {self.total('total_evicted'):,} evictions",
        ]
        heading = f"{'request':>9}{'age (s)':>10}{'prompt':>9}{'predicted':>11}"
        if len(active):
            lines += ["", f"active   {heading}{'generated':>11}{'KV tokens':>11}"]
            for k in range(len(active) - 1, max(len(active) - TEXT_ROWS, 0) - 1, -1):
                held = f"{active.num_output_tokens[k]:>11,}{active.kv_tokens[k]:>11,}"
                lines.append(active.row(k, self.clock) + held)
            lines += _rest(len(active), "activated earlier")
        if len(queue):
            lines += ["", f"waiting  {heading}"]
            lines += [queue.row(k, self.clock) for k in range(min(len(queue), TEXT_ROWS))]
            lines += _rest(len(queue), "behind them")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Choice:
    """A request to be routed, and the workers it may go to.

    Attributes:
        clock: when it must be routed, or the time of the end, seconds.
        request: the request, UNKNOWN at the end.
        handover: whether it comes from a prefill worker.
        prompt_len: its prompt, tokens.
        predicted_len: its predicted output, tokens; UNKNOWN if there is none or it is not revealed.
        candidate: whether it may go there, bool (r,).
        incoming: requests in transfer from a prefill worker, int64 (r,).
    """

    clock: float
    request: int
    handover: bool
    prompt_len: int
    predicted_len: int
    candidate: NDArray[np.bool_]
    incoming: Integers

    def headline(self) -> str:
        """Return a line about the request."""
        if self.request == UNKNOWN:
            return "nothing left to route"
        predicted = (
            "" if self.predicted_len == UNKNOWN else f", {self.predicted_len:,} output tokens predicted"
        )
        what = "prefilled request" if self.handover else "request"
        return f"{what} {self.request}: {self.prompt_len:,} prompt tokens{predicted}"


@dataclass(frozen=True)
class ClusterScene(Scene):
    """What is drawn of one moment of a cluster.

    Attributes:
        choice: the request to be routed.
    """

    choice: Choice

    def text(self) -> str:
        """Return the moment as plain text, at most 80 columns wide."""
        lines = [
            f"t = {self.clock:.3f} s   {self.num_finished:,} finished, {self.total('total_evicted'):,} evictions",
            self.choice.headline(),
            "",
            f"{'worker':>8} {'role':<8}{'memory':<26}{'in use':>9}{'active':>8}{'waiting':>9}{'incoming':>10}",
        ]
        for k, worker in enumerate(self.workers[:TEXT_WORKERS]):
            used, capacity = int(worker["kv_allocated"]), int(self.kv_capacity[k])
            lines.append(
                f"{'>' if self.choice.candidate[k] else ' '}{k:>7} {ROLES[worker['role']]:<8}"
                f"[{memory_bar(0, used, capacity, 22)}]  {used / capacity:>9.0%}{worker['num_active']:>8,}"
                f"{worker['num_waiting']:>9,}{self.choice.incoming[k]:>10,}"
            )
        if len(self.workers) > TEXT_WORKERS:
            lines.append(f"{'...':>8} {len(self.workers) - TEXT_WORKERS:,} more workers")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Sized:
    """A pool of a fleet.

    Attributes:
        target: workers that are wanted.
        ready: ready workers, and so on.
        starting: those that start.
        draining: those that drain.
        most: places.
        ongoing: unfinished requests.
        kv: mean share of the memory in use of ready workers.
    """

    target: int
    ready: int
    starting: int
    draining: int
    most: int
    ongoing: int
    kv: float


@dataclass(frozen=True)
class FleetScene(Scene):
    """What is drawn of one moment of a fleet.

    Attributes:
        panels: workers, load and first tokens over time, as reports have them.
        pools: the pools now.
    """

    panels: tuple[Panel, ...]
    pools: tuple[Sized, ...]

    def text(self) -> str:
        """Return the moment as plain text, at most 80 columns wide."""
        lines = [
            f"t = {self.clock:.1f} s   {self.num_arrived:,} arrived, {self.num_finished:,} finished{self.latency}",
            "",
            f"{'pool':>6}{'target':>8}{'ready':>8}{'starting':>10}{'draining':>10}{'ongoing':>10}{'memory':>9}",
        ]
        for g, pool in enumerate(self.pools):
            lines.append(
                f"{g:>6}{pool.target:>8}{pool.ready:>8}{pool.starting:>10}{pool.draining:>10}{pool.ongoing:>10,}"
                f"{pool.kv:>9.0%}   {'#' * pool.ready}{'+' * pool.starting}{'-' * pool.draining}"[:80]
            )
        return "\n".join(lines) + "\n"


def memory_bar(prompt: int, used: int, capacity: int, width: int) -> str:
    """Return a bar of ``width`` characters: ``#`` prompt, ``=`` generated, ``.`` free; rounded down.

    Args:
        prompt: tokens of prompts, of each request alone; they take at most the memory in use.
        used: memory in use, tokens.
        capacity: tokens.
        width: characters.
    """
    filled, prompts = used * width // capacity, min(prompt, used) * width // capacity
    return "#" * prompts + "=" * (filled - prompts) + "." * (width - filled)


def _rest(count: int, where: str) -> list[str]:
    return [f"{'...':>18} {count - TEXT_ROWS:,} more {where}"] if count > TEXT_ROWS else []
