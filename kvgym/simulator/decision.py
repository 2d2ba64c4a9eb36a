"""Decisions in Python: what a worker does at an iteration boundary, and how it is written into the engine's tables."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import InvalidDecisionError, shown
from kvgym.simulator.policy_interface import PolicyDecision
from kvgym.simulator.tables import (
    ABORTED,
    ACTIVE,
    FAILED,
    FINISHED,
    FUTURE,
    OUTSIDE,
    RUN,
    SHED,
    TRANSFERRING,
    UNKNOWN,
    WAIT,
    WAITING,
)


@dataclass(frozen=True)
class Decision:
    """What a worker does until the next iteration boundary: evict, then admit, then run.

    Attributes:
        admit: ids of waiting requests to activate, in order.
        evict: ids of active requests to evict, in order.
        tokens: tokens to process in the next iteration by request id: a prefill chunk, 1 or 0 for a decode
            step, 0 = paused. Requests not named run in full: the whole prefill, or one decode step.
        wait_until: do not run a batch, but wait for the next arrival, at the latest until this time
            (seconds; ``math.inf`` = the next arrival). None = run a batch; an empty one stalls the worker
            for the time of an empty batch.
        put_back: number of requests selected before the memory check that then did not fit and stay in the queue;
            only metrics use it.
    """

    admit: Sequence[int] = ()
    evict: Sequence[int] = ()
    tokens: Mapping[int, int] = field(default_factory=dict)
    wait_until: float | None = None
    put_back: int = 0


def read_decision(made: PolicyDecision, active: NDArray[Any]) -> Decision:
    """Return the decision that a kernel has written into tables.

    Args:
        made: the tables.
        active: the active set, SLOT (number of active requests,).
    """
    d = made.record
    slots, admitted = made.evict[: d["num_evict"]].tolist(), made.admit[: d["num_admit"]].tolist()
    tokens: dict[int, int] = {}
    if d["explicit"] == 1:  # for requests that stay or are admitted; plans of evicted slots have no meaning
        planned = zip(active["request_id"].tolist(), active["planned"].tolist(), strict=True)
        evicted = set(slots)
        tokens = {i: count for k, (i, count) in enumerate(planned) if k not in evicted}
        tokens |= dict(zip(admitted, made.admit_tokens[: len(admitted)].tolist(), strict=True))
    return Decision(
        admit=tuple(admitted),
        evict=tuple(active["request_id"][slots].tolist()),
        tokens={i: count for i, count in tokens.items() if count != UNKNOWN},
        wait_until=None if d["act"] == RUN else float(d["wait_until"]),
        put_back=int(d["num_put_back"]),
    )


STATUS_NAMES = {
    FUTURE: "not here yet",
    WAITING: "waiting",
    ACTIVE: "active",
    FINISHED: "finished",
    TRANSFERRING: "between two workers",
    OUTSIDE: "without a worker",
    ABORTED: "given up by its user",
    FAILED: "lost with its worker",
    SHED: "refused by the router",
}
"""Names of the statuses of a request in messages."""


def enter_decision(
    decision: Decision,
    into: PolicyDecision,
    active: NDArray[Any],
    num_requests: int,
    *,
    refuse: Callable[[str], InvalidDecisionError],
    status_of: Callable[[int], str],
) -> None:
    """Write a decision into tables; the engine then checks whether the worker can carry it out.

    Args:
        decision: the decision.
        into: the tables to write; ``admit``, ``admit_tokens`` and ``evict`` are int32 (A,).
        active: the active set, SLOT (number of active requests,); ``planned`` is written.
        num_requests: number of requests in the run.
        refuse: returns the error for a mistake, e.g. "evicts request 3 …".
        status_of: returns the status of a request, for messages.

    Raises:
        InvalidDecisionError: the decision is not well-formed; nothing has been written.
    """

    def whole(value: Any, what: str) -> int:
        try:
            number = operator.index(value)
        except Exception:  # user code may raise any exception
            number = None
        if number is None or not -(2**63) <= number < 2**63:
            raise refuse(f"{what} {shown(value)}; expected a whole number")
        return number

    def listed(values: Any, what: str, expected: str) -> list[Any]:
        try:
            return list(values)
        except Exception:
            raise refuse(f"{what} {shown(values)}; expected {expected}") from None

    if not isinstance(decision, Decision):
        raise refuse(f"is {shown(decision)}; expected a kvgym.Decision")
    slots = {int(i): k for k, i in enumerate(active["request_id"])}
    given = decision.tokens
    if not isinstance(given, Mapping):
        raise refuse(f"gives tokens {shown(given)}; expected a mapping of request ids to tokens")
    admit = [whole(i, "admits request") for i in listed(decision.admit, "admits", "request ids")]
    evict = [whole(i, "evicts request") for i in listed(decision.evict, "evicts", "request ids")]
    tokens = {
        whole(i, "gives tokens to request"): t for i, t in listed(given.items(), "gives tokens", "pairs")
    }
    capacity = len(into.admit)
    if len(admit) > capacity or len(evict) > capacity:
        raise refuse(f"lists more requests than can ever be active ({capacity})")
    for i in evict:
        if i not in slots:
            raise refuse(f"evicts request {i}, which is {status_of(i)}, not active")
    for i in admit:
        if not 0 <= i < num_requests:
            raise refuse(f"admits request {i}, which is {status_of(i)}")
    running = (slots.keys() - evict) | set(admit)
    for i, count in tokens.items():
        if i not in running:
            raise refuse(f"gives tokens to request {i}, which is not in the next batch")
        tokens[i] = whole(count, f"to request {i} gives tokens:")
        if not 0 <= tokens[i] < 2**31:
            raise refuse(f"gives request {i} {tokens[i]} tokens; leave it out to run it in full")
    until: Any = math.inf if decision.wait_until is None else decision.wait_until
    try:
        until = float(until) if isinstance(until, int | float | np.integer | np.floating) else None
    except OverflowError:  # a number with hundreds of digits
        until = None
    if until is None:
        raise refuse(f"waits until {shown(decision.wait_until)}; expected seconds, or None to run a batch")
    put_back = whole(decision.put_back, "puts back")
    if not 0 <= put_back < 2**31:
        raise refuse(f"puts back {put_back} requests; expected a number from 0 to 2^31 - 1")
    record = into.record
    record["num_put_back"] = put_back
    record["act"] = RUN if decision.wait_until is None else WAIT
    record["wait_until"] = until
    record["explicit"] = 1 if tokens else 0
    record["num_admit"], record["num_evict"] = len(admit), len(evict)
    active["planned"] = [tokens.get(i, UNKNOWN) for i in slots]
    for j, i in enumerate(admit):
        into.admit[j], into.admit_tokens[j] = i, tokens.get(i, UNKNOWN)
    for j, i in enumerate(evict):
        into.evict[j] = slots[i]


def described_lengths(r: Any) -> str:
    """Return the lengths of a request that the policy may observe, of its REQUEST record, as text."""
    text = f"has a prompt of {int(r['prompt_len'])} tokens"
    if r["predicted_len"] != UNKNOWN:
        return f"{text} and a predicted output of {int(r['predicted_len'])}"
    if r["predicted_high"] != UNKNOWN:
        return f"{text} and a predicted output of {int(r['predicted_low'])} to {int(r['predicted_high'])}"
    return text
