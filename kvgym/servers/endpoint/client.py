"""Send requests to a server at given moments, whether or not earlier ones are answered, and measure the answers.

Needs the extra ``kvgym[observe]`` (httpx). All times are of one clock of this process; a token counts when its event
has been read. One event may bring several tokens: gaps are between events, lengths are those of the server's ``usage``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from kvgym.errors import ConfigError
from kvgym.servers.endpoint.mock import OWNER
from kvgym.servers.endpoint.prompts import PROBES, Prompts
from kvgym.servers.endpoint.target import APIS, Counters, Target
from kvgym.workloads.table import RequestTable

CONNECT = 10.0
"""Seconds to connect."""

FASTEST_TOKEN = 5e-5
"""Seconds per token below which an answer was not streamed but split: events of one packet are read that fast."""

STOPPED = "stopped before the answer was complete"
NO_USAGE = "no usage in the answer"
NOT_STREAMED = "the answer was not streamed"
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


def _client(timeout: float) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(
        limits=limits, timeout=httpx.Timeout(timeout, connect=min(CONNECT, timeout), pool=None)
    )


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
    async with _client(timeout) as client:
        target, owner = await _with_model(client, target)
        server = Server(target, Prompts(seed=seed))
        if owner.get("owned_by") == OWNER:
            server = replace(server, speed=float(owner.get("speed", 1.0)), simulated=True)
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


async def _with_model(client: httpx.AsyncClient, target: Target) -> tuple[Target, dict[str, Any]]:
    """Return the server with the name of its model, and what it says of the model."""
    try:
        answer = await client.get(f"{target.base}/models", headers=target.headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(_refusal(target, _failure(error, target))) from None
    if answer.status_code in (401, 403):
        raise ConfigError(_refusal(target, _status(answer.status_code, answer.text, target)))
    listed: list[Any] = []
    with contextlib.suppress(ValueError, TypeError, LookupError):
        listed = [each for each in answer.json()["data"] if isinstance(each["id"], str)]
    known = {each["id"]: each for each in listed}
    if target.model:
        return target, known.get(target.model, {})
    if not known:
        raise ConfigError(
            f"{target.base}/models: HTTP {answer.status_code}, no list of models; check the URL, or name the model: "
            "--served-model NAME"
        )
    model = next(iter(known))
    return replace(target, model=model), known[model]


async def _probe(
    client: httpx.AsyncClient, server: Server, words: int, number: int, timeout: float
) -> Measured:
    found = Measured(number, 0.0, (words, 4))
    prompt = server.prompts.words(words, abs(number))
    await _send(client, server, found, prompt, time.perf_counter, timeout)
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
    found: list[Measured],
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Send requests at their arrival times and wait for all answers.

    Args:
        server: from :func:`meet`.
        table: the requests.
        timeout: longest time for an answer, seconds.
        found: receives the requests when they are sent. After a KeyboardInterrupt it has those so far; unfinished ones
            have the reason :data:`STOPPED`.
        progress: called with a line of text after every answer.
    """
    try:
        asyncio.run(_send_all(server, table, timeout, found, progress))
    finally:
        for each in found:
            if each.reason == "" and each.output_len is None:
                each.reason = STOPPED


async def _send_all(
    server: Server,
    table: RequestTable,
    timeout: float,
    found: list[Measured],
    progress: Callable[[str], None],
) -> None:
    texts = [server.prompts.text(int(length), number) for number, length in enumerate(table.prompt_len)]
    arrivals = (table.arrival_time - table.arrival_time[:1].sum()).tolist()
    lengths = zip(table.prompt_len.tolist(), table.output_len.tolist(), strict=True)

    def now() -> float:
        return (time.perf_counter() - begun) * server.speed

    async def one(request: Measured, text: str) -> None:
        await _send(client, server, request, text, now, timeout)
        progress(f"request {request.number}")

    async with _client(timeout) as client:
        tasks = []
        begun = time.perf_counter()  # a client takes a tenth of a second to make
        for number, (at, wanted, text) in enumerate(zip(arrivals, lengths, texts, strict=True)):
            while (left := (at - now()) / server.speed) > 0:
                await asyncio.sleep(left)
            found.append(Measured(number, at, wanted))
            tasks.append(asyncio.create_task(one(found[-1], text)))
        await asyncio.gather(*tasks)


async def _send(
    client: httpx.AsyncClient,
    server: Server,
    request: Measured,
    prompt: str,
    now: Callable[[], float],
    timeout: float,
) -> None:
    """Send a request and record its answer; failures are recorded as its reason."""
    target = server.target
    body = target.body(prompt, request.wanted[1], ignore_eos=server.ignore_eos)
    request.arrival_time = now()
    try:
        await asyncio.wait_for(_receive(client, target, request, body, now), timeout)
    except (httpx.ReadTimeout, TimeoutError, asyncio.TimeoutError):
        request.reason = f"no complete answer within {timeout:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        request.reason = _failure(error, target)
        if request.token_times:
            request.reason = f"broken off: {request.reason}"


def _failure(error: Exception, target: Target) -> str:
    """Return what went wrong in a few words."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"no connection ({target.plain(str(error), 60) or type(error).__name__})"
    return target.plain(f"{type(error).__name__}: {error}", 80)


def _status(status: int, text: str, target: Target) -> str:
    """Return a failed status with the server's message."""
    with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError):
        content = json.loads(text)
        error = content.get("error", content)
        text = str(error.get("message") or error.get("detail") or text)
    return f"HTTP {status}{text and ': '}{target.plain(text)}"


async def _receive(
    client: httpx.AsyncClient,
    target: Target,
    request: Measured,
    body: dict[str, Any],
    now: Callable[[], float],
) -> None:
    usage: dict[str, Any] = {}
    ended = False
    async with client.stream("POST", target.url, json=body, headers=target.headers) as answer:
        if answer.status_code != 200:
            request.reason = _status(
                answer.status_code, (await answer.aread()).decode(errors="replace"), target
            )
            return
        if "text/event-stream" not in answer.headers.get("content-type", ""):
            with contextlib.suppress(ValueError, AttributeError):
                usage = json.loads(await answer.aread()).get("usage") or {}
            _count(request, usage)
            request.reason = NOT_STREAMED
            return
        async for data in _events(answer.aiter_bytes()):
            moment = now()
            if data == "[DONE]":
                ended = True
                continue
            try:
                event = json.loads(data)
                choices = event.get("choices") or []
                usage = event.get("usage") or usage
            except (ValueError, AttributeError):
                request.reason = "an event of the stream is not a JSON object"
                return
            if error := event.get("error"):
                request.reason = target.plain(f"error in the stream: {json.dumps(error)}")
                return
            if any(_has_text(choice) for choice in choices):
                request.token_times.append(moment)
            ended = ended or any(choice.get("finish_reason") for choice in choices)
    _count(request, usage)
    request.reason = _problem(request, ended)


def _count(request: Measured, usage: dict[str, Any]) -> None:
    """Record the lengths of an answer's usage."""
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    request.prompt_len = prompt if isinstance(prompt, int) else None
    request.output_len = output if isinstance(output, int) else None


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


def _has_text(choice: Any) -> bool:
    """Return whether a choice of an event brings output."""
    delta = choice.get("delta") or {}
    return bool(
        choice.get("text")
        or any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls"))
    )


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the data of server-sent events, one line each, as they come."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode(errors="replace")
    if rest.startswith(b"data:"):
        yield rest[5:].strip().decode(errors="replace")


def read_counters(target: Target) -> Counters:
    """Return the counters of a server; NaN if it has none."""
    with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL):
        answer = httpx.get(target.metrics_url, headers=target.headers, timeout=CONNECT)
        if answer.status_code == 200:
            return Counters.of(answer.text)
    return Counters()


def lateness(found: Sequence[Measured]) -> float:
    """Return how late requests were sent, the 99th percentile in seconds; 0 without any."""
    late = sorted(each.arrival_time - each.scheduled_time for each in found if each.arrival_time is not None)
    return max(0.0, late[math.ceil(0.99 * len(late)) - 1]) if late else 0.0
