"""Content of pictures and texts of one moment of an episode, and the text.

Pictures and texts are drawn from a :class:`Scene` only, so they reveal no more than it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from kvgym.errors import ConfigError
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

TEXT_ROWS = 8
"""Upper limit of active, and of waiting, requests listed in a text."""

TEXT_BAR = 48
"""Characters of the memory bar of a text."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class MissingLibraryError(ConfigError, DependencyNotInstalled):
    """A library that is needed only to write picture files is not installed."""


def require_libraries(*names: str) -> None:
    """Check that libraries are installed.

    Args:
        *names: import names.

    Raises:
        MissingLibraryError: one is not; the message says how to install it.
    """
    sources = {
        "matplotlib": '"kvgym[pictures]"',
        "PIL": '"kvgym[pictures]"',
        "imageio_ffmpeg": '"kvgym[video]"',
    }
    for name in names:
        if find_spec(name) is None:
            raise MissingLibraryError(
                f"writing this picture file needs {name}; install it with: pip install {sources[name]}"
            )


@dataclass(frozen=True)
class Spans:
    """Spans of time in which requests waited, ran or were evicted; arrays have an entry per span.

    Attributes:
        row: index of the request in :attr:`Scene.rows`, int64 (m,).
        kind: IN_QUEUE, RUNNING, EVICTED or SERVED (ran and finished), int64 (m,).
        start: seconds, float64 (m,).
        end: seconds, float64 (m,).
    """

    row: Integers
    kind: Integers
    start: Floats
    end: Floats


@dataclass(frozen=True)
class Scene:
    """Everything that is drawn of one moment.

    Attributes:
        clock: seconds.
        iteration: batches executed.
        kv_capacity: tokens.
        kv_tokens: memory in use between two batches, tokens of whole blocks.
        peak_kv_tokens: largest memory in use during a batch so far, tokens of whole blocks.
        num_prefilling: active requests with part of the prompt not yet in memory.
        num_finished: requests finished so far.
        num_evictions: evictions so far.
        mean_latency: mean end-to-end latency of the finished requests, seconds; NaN without any.
        time: times of the history, seconds, float64 (s,); the last is the current one.
        kv: memory in use, tokens of whole blocks, float64 (s,).
        waiting: waiting requests, float64 (s,).
        active: active requests, float64 (s,).
        active_id: active requests in order of activation, int64 (a,).
        active_arrival: their arrival times, seconds, float64 (a,).
        prompt_len: their prompts, tokens, int64 (a,).
        prompt_kv: KV tokens of their prompts, int64 (a,).
        output_kv: KV tokens of their output, int64 (a,).
        num_output_tokens: their output tokens, int64 (a,).
        predicted_len: predicted output lengths, int64 (a,), UNKNOWN if there is none or it is not revealed.
        queue_id: waiting requests in queue order, int64 (q,).
        queue_arrival: their arrival times, seconds, float64 (q,).
        queue_prompt: their prompts, tokens, int64 (q,).
        queue_predicted: as ``predicted_len``, int64 (q,).
        rows: requests of the Gantt view in order of arrival, int64 (r,).
        spans: their spans.
    """

    clock: float
    iteration: int
    kv_capacity: int
    kv_tokens: int
    peak_kv_tokens: int
    num_prefilling: int
    num_finished: int
    num_evictions: int
    mean_latency: float
    time: Floats
    kv: Floats
    waiting: Floats
    active: Floats
    active_id: Integers
    active_arrival: Floats
    prompt_len: Integers
    prompt_kv: Integers
    output_kv: Integers
    num_output_tokens: Integers
    predicted_len: Integers
    queue_id: Integers
    queue_arrival: Floats
    queue_prompt: Integers
    queue_predicted: Integers
    rows: Integers
    spans: Spans


def choose_rows(active: Integers, waiting: Integers, finished: Integers, rows: int | None) -> Integers:
    """Return the requests of the Gantt view, in order of arrival.

    Active requests come first (at most 60 % of the rows), then the head of the queue (20 %), then the latest
    finished ones; remaining rows go to the head of the queue and to further active requests.

    Args:
        active: ids in order of activation.
        waiting: ids in queue order.
        finished: ids, the latest last.
        rows: upper limit of requests, None = all.
    """
    if rows is None:
        return np.sort(np.concatenate((active, waiting, finished)))
    num_active = min(len(active), rows * 3 // 5)
    num_waiting = min(len(waiting), rows // 5)
    num_finished = min(len(finished), rows - num_active - num_waiting)
    num_waiting = min(len(waiting), rows - num_active - num_finished)
    num_active = min(len(active), rows - num_waiting - num_finished)
    chosen = (
        active[len(active) - num_active :],
        waiting[:num_waiting],
        finished[len(finished) - num_finished :],
    )
    return np.sort(np.concatenate(chosen))


# ---------------------------------------------------------------- text


def text_frame(scene: Scene) -> str:
    """Return a scene as plain text: clock, memory, counts, the latest active requests, the head of the queue."""
    capacity, kv = scene.kv_capacity, scene.kv_tokens
    bar = memory_bar(int(scene.prompt_kv.sum()), kv, capacity, TEXT_BAR)
    ends = "" if kv <= int((scene.prompt_kv + scene.output_kv).sum()) else " or unfilled"
    oldest = scene.clock - float(scene.queue_arrival.min()) if len(scene.queue_id) else 0.0
    latency = "" if np.isnan(scene.mean_latency) else f", mean latency {scene.mean_latency:.2f} s"
    lines = [
        f"t = {scene.clock:.3f} s   iteration {scene.iteration:,}",
        f"memory   [{bar}] {kv:,} / {capacity:,}",
        f"         # prompt, = generated{ends}; {kv / capacity:.0%} in use, peak {scene.peak_kv_tokens:,} tokens",
        f"queue    {len(scene.queue_id):,} waiting" + (f", oldest for {oldest:.2f} s" if oldest else ""),
        f"active   {len(scene.active_id):,} requests, {scene.num_prefilling:,} in prefill",
        f"so far   {scene.num_finished:,} finished{latency}, {scene.num_evictions:,} evictions",
    ]
    heading = f"{'request':>9}{'age (s)':>10}{'prompt':>9}{'predicted':>11}"
    if len(scene.active_id):
        lines += ["", f"active   {heading}{'generated':>11}{'KV tokens':>11}"]
        for k in range(len(scene.active_id) - 1, max(len(scene.active_id) - TEXT_ROWS, 0) - 1, -1):
            lines.append(
                " " * 9
                + f"{scene.active_id[k]:>9}{scene.clock - scene.active_arrival[k]:>10.2f}"
                + f"{scene.prompt_len[k]:>9,}{_known(scene.predicted_len[k]):>11}"
                + f"{scene.num_output_tokens[k]:>11,}{scene.prompt_kv[k] + scene.output_kv[k]:>11,}"
            )
        lines += _rest(len(scene.active_id), "activated earlier")
    if len(scene.queue_id):
        lines += ["", f"waiting  {heading}"]
        for k in range(min(len(scene.queue_id), TEXT_ROWS)):
            lines.append(
                " " * 9
                + f"{scene.queue_id[k]:>9}{scene.clock - scene.queue_arrival[k]:>10.2f}"
                + f"{scene.queue_prompt[k]:>9,}{_known(scene.queue_predicted[k]):>11}"
            )
        lines += _rest(len(scene.queue_id), "behind them")
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


def _known(length: int) -> str:
    return "?" if length == UNKNOWN else f"{length:,}"


def _rest(count: int, where: str) -> list[str]:
    return [f"{'...':>18} {count - TEXT_ROWS:,} more {where}"] if count > TEXT_ROWS else []
