"""Random workloads for comparisons with an engine, and the records that are compared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvgym.batch_time import AffineBatchTime

CONSTANT, PER_TOKEN = 2.0**-8, 2.0**-14
"""Seconds per batch, and per token: powers of two, so that clocks are exact and comparable bit by bit."""

BATCH_TIME = AffineBatchTime(CONSTANT, per_prefill_token=PER_TOKEN, per_decode_token=PER_TOKEN)


STEP_LIMIT = 4000
"""Batches after which a schedule counts as one without an end; the longest with an end has some hundred."""


def duration(tokens: int) -> float:
    """Return the seconds of a batch with a number of tokens, as :data:`BATCH_TIME` does."""
    return CONSTANT + PER_TOKEN * tokens


@dataclass(frozen=True)
class Case:
    """A workload and the settings of a scheduler.

    Attributes:
        arrival: seconds, ascending.
        prompt: tokens.
        output: tokens.
        priority: kvgym's; larger values are more important.
        blocks: blocks of memory that requests can use.
        block_size: tokens of a block.
        settings: hyperparameters of kvgym's policy, which has the engine's names.
        texts: for each request a text that others may have, and the number of its tokens, output included, that are
            the beginning of it. Empty = no prefix caching.
        sessions: number of each request's session; requests of a session, in order, are its turns. Empty = no sessions.
        think: seconds from the end of a turn to the next one; with sessions, only first turns arrive at ``arrival``.
        depth: most drafts of a decode; 0 = no speculation.
        lookahead: tokens of memory reserved beyond those of a batch.
        by_batch: ranges of requests in the batch and their drafts; empty = always ``depth``.
        right: for each request the drafts that are right after 0, 1, … output tokens.
        host_blocks: blocks of the memory of the host; 0 = none.
        load_time: seconds per block from there.
        store_time: seconds per block to it.
        prompt_only: whether only prompts are stored.
    """

    arrival: tuple[float, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    priority: tuple[int, ...]
    blocks: int
    block_size: int
    settings: dict[str, Any]
    texts: tuple[tuple[int, int], ...] = ()
    sessions: tuple[int, ...] = ()
    think: tuple[float, ...] = ()
    depth: int = 0
    lookahead: int = 0
    by_batch: tuple[tuple[int, int, int], ...] = ()
    right: tuple[tuple[int, ...], ...] = ()
    host_blocks: int = 0
    load_time: float = 0.0
    store_time: float = 0.0
    prompt_only: bool = False

    def content(self, i: int, end: int) -> tuple[str, int, int]:
        """Return a name for the last block of the first ``end`` tokens of request ``i``; equal names, equal text."""
        text, common = self.texts[i]
        return ("text", text, end) if end <= common else ("request", i, end)


@dataclass(frozen=True)
class Step:
    """One batch.

    Attributes:
        time: when it starts, seconds.
        running: running requests before the decision, in order.
        waiting: waiting requests before the decision, in order. For SGLang in the order of its policy, each with the
            tokens that it would find; none where the policy does not sort them.
        preempted: requests preempted by the decision, in order.
        tokens: request and its tokens, in the order in which requests were admitted. With prefix caching, tokens with
            KV after the batch, hits included.
        blocks: blocks in use while the batch runs.
        cached: blocks in the prefix cache that no request holds, meanwhile.
        empty: whether the engine ran steps without tokens before this batch; they count with it. It is not compared.
        drafts: with speculation, drafts that the batch verifies, then those that each running request has after it. Its
            tokens are prompt tokens or output tokens made.
        transfers: with a memory of the host, the loads so far, the blocks that were loaded and stored, and those there.
        unlike: what the engine does since the batch before and kvgym does otherwise, a class of differences; "" for
            nothing. It is not compared.
    """

    time: float
    running: tuple[int, ...]
    waiting: tuple[Any, ...]
    preempted: tuple[int, ...]
    tokens: tuple[tuple[int, int], ...]
    blocks: int
    cached: int = 0
    empty: bool = False
    drafts: tuple[int, ...] = ()
    transfers: tuple[int, ...] = ()
    unlike: str = ""


@dataclass(frozen=True)
class Schedule:
    """All batches of a run, and the first-token and finish times of its requests, seconds.

    A run without an end has :data:`STEP_LIMIT` batches, and NaN for the times that it does not reach.
    """

    steps: tuple[Step, ...]
    first_token: tuple[float, ...]
    finish: tuple[float, ...]

    @property
    def ends(self) -> bool:
        """Whether all requests finish."""
        return not np.isnan(self.finish).any()


COMPARED = ("time", "running", "waiting", "preempted", "tokens", "blocks", "cached", "drafts", "transfers")
"""Fields of :class:`Step` that are compared."""


def difference(ours: Schedule, theirs: Schedule, compared: Sequence[str] = COMPARED) -> str:
    """Return the first difference between two schedules, one line; "" if they are equal."""
    for k, (a, b) in enumerate(zip(ours.steps, theirs.steps, strict=False)):
        for name in compared:
            if getattr(a, name) != getattr(b, name):
                return f"step {k}, {name}: {getattr(a, name)} here, {getattr(b, name)} in the engine"
    for name in ("first_token", "finish"):
        if not np.array_equal(getattr(ours, name), getattr(theirs, name), equal_nan=True):
            return f"{name} times: {getattr(ours, name)} here, {getattr(theirs, name)} in the engine"
    if len(ours.steps) != len(theirs.steps):
        return f"{len(ours.steps)} steps here, {len(theirs.steps)} in the engine"
    return ""


def draw_requests(draw: random.Random) -> dict[str, Any]:
    """Return columns of 2 to 14 requests, in bursts and at even gaps; some arrive together."""
    count = draw.randint(2, 14)
    gap = draw.choice([0, 4, 16, 64])
    arrival, clock = [], 0
    for _ in range(count):
        clock += draw.randint(0, gap)
        arrival.append(clock * CONSTANT)
    longest = draw.choice([6, 20, 60])
    return {
        "arrival": tuple(arrival),
        "prompt": tuple(draw.randint(1, longest) for _ in range(count)),
        "output": tuple(draw.randint(1, draw.choice([3, 20, 60])) for _ in range(count)),
        "priority": tuple(draw.randint(-2, 2) for _ in range(count)),
    }


def draw_texts(seed: int, requests: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return a text for each request, one of three at most, and how much of it the request begins with."""
    draw = random.Random(f"texts of {seed}")
    count, least = draw.randint(1, 3), draw.choice([0.0, 0.0, 0.8])
    lengths = [p + o for p, o in zip(requests["prompt"], requests["output"], strict=True)]
    return tuple((draw.randrange(count), int(tokens * draw.uniform(least, 1.0))) for tokens in lengths)


def draw_sessions(seed: int, requests: dict[str, Any]) -> dict[str, Any]:
    """Return columns of requests of which about a third are later turns of sessions, with texts, sessions and think.

    A later turn begins with the prompt and the output of the turn before it. Sessions may have the same text.
    """
    draw = random.Random(f"sessions of {seed}")
    texts, prompts, outputs = list(draw_texts(seed, requests)), list(requests["prompt"]), requests["output"]
    sessions: list[int] = []
    last: dict[int, int] = {}
    for i in range(len(prompts)):
        session = draw.choice([*last, i, i]) if draw.random() < 0.7 else i
        sessions.append(session)
        if session in last:
            before = last[session]
            text = texts[before] if before != session else (draw.choice([100 + session, 0]), 0)
            prompts[i] = prompts[before] + outputs[before] + draw.randint(1, 20)
            texts[before], texts[i] = ((text[0], prompts[k] + outputs[k]) for k in (before, i))
        last[session] = i
    think = tuple(draw.choice([0, 0, 1, 4, 16, 64]) * CONSTANT for _ in sessions)
    columns = {"prompt": tuple(prompts), "texts": tuple(texts), "sessions": tuple(sessions), "think": think}
    return requests | columns


def draw_drafts(seed: int, requests: dict[str, Any]) -> dict[str, Any]:
    """Return the drafts of a workload: depth, lookahead, a table of depths in every third, and what is right."""
    draw = random.Random(f"drafts of {seed}")
    depth = draw.randint(1, 5)
    low, high = sorted(draw.sample(range(2, 9), 2))
    table = ((1, low, depth), (low + 1, high, draw.randint(0, depth)), (high + 2, 64, 0))
    skill = draw.choice([0, 2, depth, 7])
    right = tuple(tuple(draw.randint(0, skill) for _ in range(tokens + 1)) for tokens in requests["output"])
    return {
        "depth": depth,
        "lookahead": depth if draw.random() < 0.6 else 0,
        "by_batch": table if draw.random() < 0.33 else (),
        "right": right,
    }


def draw_memory(draw: random.Random, requests: dict[str, Any], beyond: int = 0) -> dict[str, int]:
    """Return blocks of 1 to 16 tokens: as many as the longest request takes, or up to three times as many.

    Args:
        draw: the random numbers.
        requests: columns of the requests.
        beyond: tokens that a request takes beyond its prompt and output.
    """
    longest = beyond + max(p + o for p, o in zip(requests["prompt"], requests["output"], strict=True))
    size = draw.choice([1, 2, 4, 16, 16])
    least = max(2, -(-longest // size))
    return {"block_size": size, "blocks": least + draw.randint(0, draw.choice([1, least, 2 * least]))}
