"""Send requests to a server at given moments, whether or not earlier ones are answered, and measure the answers.

Needs the extra ``kvgym[observe]`` (aiohttp). All times are of one clock of this process; a token counts when its event
has been read. One event may bring several tokens: gaps are between events, lengths are those of the server's ``usage``.
In the closed loop of sessions, a later turn is sent when the turn before it has ended and its think time has passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import numpy as np

from kvgym.errors import ConfigError
from kvgym.servers.endpoint.answers import (
    CONNECT,
    NOT_STREAMED,
    AnswerError,
    Event,
    Model,
    Models,
    Usage,
    asking,
    checked,
    chunks,
    events,
    fetch,
    session,
)
from kvgym.servers.endpoint.prompts import PROBES, Conversations, Prompts
from kvgym.servers.endpoint.target import APIS, OWNER, Counters, Target
from kvgym.simulator.sessions import neighbours
from kvgym.workloads.table import RequestTable

FASTEST_TOKEN = 5e-5
"""Seconds per token below which an answer was not streamed but split: events of one packet are read that fast."""

STOPPED = "stopped before the answer was complete"
NO_USAGE = "no usage in the answer"
IN_ONE_PIECE = "the answer came in one piece"
NO_OUTPUT = "no output tokens"


@dataclass
class Measured:
    """A request and its answer.

    Attributes:
        number: its number.
        scheduled_time: when it was to be sent, seconds since the start.
        wanted: prompt and output tokens that were wanted.
        arrival_time: when it was sent, seconds since the start; None = not sent.
        token_times: when events with text came, seconds since the start.
        prompt_len: tokens, as the server counts them; None = not known.
        output_len: the same for the answer.
        cached_tokens: tokens of the prompt that the server's prefix cache had; None = not known.
        reason: why the answer cannot be compared, "" if it can.
        warm_up: whether it was only sent to warm the server up.
    """

    number: int
    scheduled_time: float
    wanted: tuple[int, int]
    arrival_time: float | None = None
    token_times: list[float] = field(default_factory=list)
    prompt_len: int | None = None
    output_len: int | None = None
    cached_tokens: int | None = None
    reason: str = ""
    warm_up: bool = False

    def row(self) -> dict[str, Any]:
        """Return the row of the log, JSON-able."""
        times, start = self.token_times, self.arrival_time or 0.0
        return {
            "request_id": self.number,
            "scheduled_time": round(self.scheduled_time, 6),
            "arrival_time": round(start, 6),
            "prompt_len": self.prompt_len,
            "output_len": self.output_len,
            "wanted_prompt_len": self.wanted[0],
            "wanted_output_len": self.wanted[1],
            "ttft": round(times[0] - start, 6) if times else None,
            "e2e_latency": round(times[-1] - start, 6) if times else None,
            "gaps": [round(b - a, 6) for a, b in itertools.pairwise(times)],
            **({} if self.cached_tokens is None else {"cached_tokens": self.cached_tokens}),
            "reason": self.reason or None,
            **({"warm_up": True} if self.warm_up else {}),
        }


@dataclass(frozen=True)
class Server:
    """A server that has answered.

    Attributes:
        target: with the name of its model.
        prompts: prompts of wanted lengths.
        ignore_eos: whether it takes the option by which answers have the wanted length.
        reports_usage: whether its answers end with their lengths.
        speed: simulated seconds per second, of ``kvgym server mock``; other servers 1.
        simulated: whether it is ``kvgym server mock``.
    """

    target: Target
    prompts: Prompts
    ignore_eos: bool = True
    reports_usage: bool = True
    speed: float = 1.0
    simulated: bool = False


def meet(target: Target, *, seed: int = 0, timeout: float = 60.0) -> Server:
    """Ask a server for its model, and measure the tokens of a word with two short requests.

    Args:
        target: the server; its model may be "".
        seed: seed of the prompts.
        timeout: longest time for an answer, seconds.

    Raises:
        ConfigError: no server answers, or it refuses the requests; the message has the reason and the remedy.
    """
    return asyncio.run(_meet(target, seed, timeout))


async def _meet(target: Target, seed: int, timeout: float) -> Server:
    async with session() as client:
        target, model = await _with_model(client, target, timeout)
        server = Server(target, Prompts(seed=seed))
        speed = model.speed
        if model.owned_by == OWNER and isinstance(speed, int | float) and 0 < speed < math.inf:
            server = replace(server, speed=float(speed), simulated=True)
        counts = []
        for number, words in enumerate(PROBES):
            found = await _probe(client, server, words, -1 - number, timeout)
            if found.reason.startswith("HTTP 400") and server.ignore_eos:
                server = replace(server, ignore_eos=False)
                found = await _probe(client, server, words, -1 - number, timeout)
            if found.reason and found.reason not in (NO_USAGE, NO_OUTPUT, IN_ONE_PIECE, NOT_STREAMED):
                raise ConfigError(_refusal(target, found.reason))
            counts.append(found.prompt_len)
    short, long = counts
    if short is None or long is None:
        return replace(server, reports_usage=False)
    return replace(server, prompts=Prompts.measured(short, long, seed))


async def _with_model(client: aiohttp.ClientSession, target: Target, timeout: float) -> tuple[Target, Model]:
    """Return the server with the name of its model, and what it says of the model."""
    url, listed, problem = f"{target.base}/models", list[Model](), "no list of models"
    try:
        listed = checked(Models, await fetch(client, target, url, timeout)).data
    except AnswerError as error:
        problem = str(error)
        if problem.startswith(("HTTP 401", "HTTP 403")) or not problem.startswith(("HTTP", "an event")):
            raise ConfigError(_refusal(target, problem)) from None
    known = {each.id: each for each in listed if each.id.isprintable()}
    if target.model:
        return target, known.get(target.model, Model(id=target.model))
    if not known:
        what = f"{problem}, no list of models" if problem.startswith("HTTP") else "no list of models"
        raise ConfigError(f"{url}: {what}; check the URL, or name the model: --served-model NAME")
    first = next(iter(known.values()))
    return replace(target, model=first.id), first


async def _probe(
    client: aiohttp.ClientSession, server: Server, words: int, number: int, timeout: float
) -> Measured:
    found = Measured(number, 0.0, (words, 4))
    await _send(client, server, found, [server.prompts.words(words, abs(number))], time.perf_counter, timeout)
    return found


def _refusal(target: Target, reason: str) -> str:
    """Return the message about a server that does not answer requests."""
    advice = {
        "HTTP 401": f"put its key into the environment variable {target.key_variable}, or name another: --api-key-env",
        "HTTP 403": f"check the key in the environment variable {target.key_variable}",
        "HTTP 404": f"check the URL; other models: --served-model, other kind of requests: --api {_other(target.api)}",
    }.get(reason[:8], "check that the server runs, and the URL" if not reason.startswith("HTTP") else "")
    return f"{target.url}: {reason}{advice and f'; {advice}'}"


def _other(api: str) -> str:
    return next(name for name in APIS if name != api)


def send(
    server: Server,
    table: RequestTable,
    *,
    timeout: float = 600.0,
    closed: bool = False,
    warm_up: int = 0,
    found: list[Measured],
    ended: Callable[[Measured], None] = lambda _: None,
) -> None:
    """Send requests at their arrival times and wait for all answers.

    Args:
        server: from :func:`meet`.
        table: the requests.
        timeout: longest time for an answer, seconds.
        closed: whether later turns of sessions wait for the answer before them and their think time.
        warm_up: first requests that only warm the server up.
        found: receives the requests when they are sent.
        ended: called with every request when its answer has ended, also after a KeyboardInterrupt: unfinished ones then
            have the reason :data:`STOPPED`.
    """
    asyncio.run(_Sending(server, table, timeout, closed, warm_up, found, ended).run())


class _Sending:
    """Requests that are being sent; arguments as of :func:`send`."""

    def __init__(
        self,
        server: Server,
        table: RequestTable,
        timeout: float,
        closed: bool,
        warm_up: int,
        found: list[Measured],
        ended: Callable[[Measured], None],
    ) -> None:
        self._server, self._table, self._timeout, self._warm_up = server, table, timeout, warm_up
        self._found, self._ended, self._begun = found, ended, 0.0
        self._conversations = Conversations(server.prompts, table)
        self._following = np.full(len(table), -1)
        first = np.ones(len(table), np.bool_)
        if closed and table.session_id is not None:
            before, self._following = neighbours(table.session_id)
            first = before < 0
        self._first = np.flatnonzero(first)
        self._texts = [self._conversations.first(int(i)) for i in self._first]

    def _now(self) -> float:
        return (time.perf_counter() - self._begun) * self._server.speed

    async def _until(self, at: float) -> None:
        while (left := (at - self._now()) / self._server.speed) > 0:
            await asyncio.sleep(left)

    async def run(self) -> None:
        """Send everything."""
        arrivals = (self._table.arrival_time - self._table.arrival_time[:1].sum()).tolist()
        async with session() as client:
            self._begun = time.perf_counter()  # a client takes a while to make
            tasks = []
            try:
                for i, parts in zip(self._first.tolist(), self._texts, strict=True):
                    await self._until(arrivals[i])
                    tasks.append(asyncio.create_task(self._session(client, i, arrivals[i], parts)))
                await asyncio.gather(*tasks)
            finally:  # before the client closes: those that are stopped end as such
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _session(self, client: aiohttp.ClientSession, i: int, at: float, parts: list[str]) -> None:
        """Send a request, and those that wait for its end."""
        table = self._table
        while True:
            request = Measured(i, at, (int(table.prompt_len[i]), int(table.output_len[i])))
            request.warm_up = i < self._warm_up
            self._found.append(request)
            words: list[str] | None = [] if (following := int(self._following[i])) >= 0 else None
            try:
                await _send(client, self._server, request, parts, self._now, self._timeout, words)
            except asyncio.CancelledError:
                request.reason = request.reason or STOPPED
                raise
            finally:
                self._ended(request)
            if words is None:
                return
            think = 0.0 if table.think_time is None else float(table.think_time[following])
            at = self._now() + max(think, 0.0)
            await self._until(at)
            parts = self._conversations.after(following, i, parts, "".join(words))
            i = following


async def _send(
    client: aiohttp.ClientSession,
    server: Server,
    request: Measured,
    parts: Sequence[str],
    now: Callable[[], float],
    timeout: float,
    words: list[str] | None = None,
) -> None:
    """Send a request and record its answer, also its text in ``words``; failures are recorded as its reason."""
    target = server.target
    body = target.body(parts, request.wanted[1], ignore_eos=server.ignore_eos)
    request.arrival_time = now()
    try:
        async with asking(client, target, target.url, timeout, body) as answer:
            if answer.content_type != "text/event-stream":
                data = b"".join([chunk async for chunk in chunks(answer)])
                with contextlib.suppress(AnswerError):
                    _count(request, checked(Event, data).usage)
                raise AnswerError(NOT_STREAMED)
            await _receive(answer, target, request, now, words)
    except AnswerError as error:
        request.reason = str(error)
        if request.token_times and not request.reason.startswith(("no complete", "error", "an event")):
            request.reason = f"broken off: {request.reason}"


async def _receive(
    answer: aiohttp.ClientResponse,
    target: Target,
    request: Measured,
    now: Callable[[], float],
    words: list[str] | None,
) -> None:
    """Record the events of a stream."""
    usage, ended = None, False
    async for data in events(answer):
        moment = now()
        if data == b"[DONE]":
            ended = True
            continue
        event = checked(Event, data)
        if event.error:
            raise AnswerError(target.plain(f"error in the stream: {_message(event.error)}"))
        choices, usage = event.choices or [], event.usage or usage
        if any(choice.has_output for choice in choices):
            request.token_times.append(moment)
        if words is not None:
            words += [choice.words for choice in choices]
        ended = ended or any(choice.finish_reason for choice in choices)
    _count(request, usage)
    request.reason = _problem(request, ended)


def _message(error: Any) -> str:
    """Return an error that a stream brings in a few words."""
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _count(request: Measured, usage: Usage | None) -> None:
    """Record the lengths of an answer's usage."""
    if usage is not None:
        request.prompt_len, request.output_len = usage.prompt_tokens, usage.completion_tokens
        details = usage.prompt_tokens_details
        request.cached_tokens = None if details is None else details.cached_tokens


def _problem(request: Measured, ended: bool) -> str:
    """Return why a streamed answer cannot be compared, "" if it can."""
    if not ended:
        return "broken off: the stream ended early"
    if not request.token_times or request.output_len == 0:
        return NO_OUTPUT
    if request.prompt_len is None or request.output_len is None:
        return NO_USAGE
    if request.token_times[-1] - request.token_times[0] < FASTEST_TOKEN * (request.output_len - 1):
        return IN_ONE_PIECE
    return ""


def read_counters(target: Target, timeout: float = CONNECT) -> Counters:
    """Return the counters of a server; NaN if it has none, or does not answer within a time, seconds."""
    return asyncio.run(_read_counters(target, timeout))


async def _read_counters(target: Target, timeout: float) -> Counters:
    try:
        async with session() as client:
            data = await fetch(client, target, target.metrics_url, timeout)
    except AnswerError:
        return Counters()
    return Counters.of(data.decode(errors="replace"))


def lateness(found: Sequence[Measured]) -> float:
    """Return how late requests were sent, the 99th percentile in seconds; 0 without any."""
    late = sorted(each.arrival_time - each.scheduled_time for each in found if each.arrival_time is not None)
    return max(0.0, late[math.ceil(0.99 * len(late)) - 1]) if late else 0.0
