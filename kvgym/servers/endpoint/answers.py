"""Answers of servers, checked in one place: their forms, sizes and times.

Whatever a server sends ends as a value or as an :class:`AnswerError` with a reason of one line. Every request has one
deadline from its connection to its last byte, and no answer has more than :data:`LARGEST` bytes. Redirects are not
followed, so that a key goes to the given address only. Encodings are not asked for, and are not decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, TypeVar

import aiohttp
from pydantic import BaseModel, Field, ValidationError

from kvgym.errors import KVGymError, cut
from kvgym.servers.endpoint.target import Target

CONNECT = 10.0
"""Seconds to connect."""

KEPT_ALIVE = 3.0
"""Seconds for which an idle connection is used again; servers close theirs after five or more."""

LARGEST = 1 << 26
"""Most bytes of an answer."""

LARGEST_EVENT = 1 << 20
"""Most bytes of one event of a stream."""

LONGEST_ERROR = 1 << 16
"""Bytes of a failed answer that are read for its message."""

NOT_STREAMED = "the answer was not streamed"
NO_OBJECT = "an event of the stream is not a JSON object"

Count = Annotated[int, Field(strict=True, ge=0, lt=2**31)]

_Checked = TypeVar("_Checked", bound=BaseModel)


class AnswerError(KVGymError):
    """An answer that cannot be used; the message is the reason."""


class PromptDetails(BaseModel):
    """Parts of a prompt: those that the prefix cache had."""

    cached_tokens: Count | None = None


class Usage(BaseModel):
    """Lengths of an answer, as the server counts them."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None


class Choice(BaseModel):
    """A part of an answer, of completions or of a chat."""

    text: Any = None
    delta: dict[str, Any] | None = None
    finish_reason: Any = None

    @property
    def has_output(self) -> bool:
        """Whether it brings output."""
        delta = self.delta or {}
        names = ("content", "reasoning_content", "reasoning", "tool_calls")
        return bool(self.text or any(delta.get(name) for name in names))

    @property
    def words(self) -> str:
        """Its text, "" where the output is none."""
        text = self.text or (self.delta or {}).get("content")
        return text if isinstance(text, str) else ""


class Event(BaseModel):
    """An event of a stream, or a whole answer."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


class Model(BaseModel):
    """A model that a server lists."""

    id: str
    owned_by: Any = None
    speed: Any = None


class Models(BaseModel):
    """The models of a server."""

    data: list[Model]


def checked(kind: type[_Checked], data: bytes) -> _Checked:
    """Return JSON of a server as an object.

    Raises:
        AnswerError: it is not JSON, or of another form.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False, include_context=False, include_input=False)
        place = ".".join(map(str, first["loc"]))
        if not place:
            raise AnswerError(NO_OBJECT) from None
        raise AnswerError(f"an event of the stream has a wrong {cut(place, 60)}: {first['msg']}") from None


def session() -> aiohttp.ClientSession:
    """Return a client for any number of connections."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_ALIVE),
        headers={"Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=True,
    )


@contextlib.asynccontextmanager
async def asking(
    client: aiohttp.ClientSession,
    target: Target,
    url: str,
    timeout: float,
    body: Mapping[str, Any] | None = None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Send a request and yield its answer, which has the status 200; read it with :func:`chunks`.

    Args:
        client: from :func:`session`.
        target: the server.
        url: the address.
        timeout: seconds from now to the last byte.
        body: JSON to post; None = get.

    Raises:
        AnswerError: there is no such answer, or reading it fails in the block.
    """
    method, data = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
    limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT, timeout), ceil_threshold=1e9)
    headers = {**target.headers, **({} if body is None else {"Content-Type": "application/json"})}
    try:
        async with client.request(
            method, url, data=data, headers=headers, timeout=limits, allow_redirects=False
        ) as answer:
            if answer.status != 200:
                raise AnswerError(await _status(answer, target))
            if (encoding := answer.headers.get("Content-Encoding", "identity").lower()) != "identity":
                raise AnswerError(f"the answer is encoded ({target.plain(encoding, 40)}), unasked")
            yield answer
    except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
        raise AnswerError(f"no connection ({target.plain(str(error), 100)})") from None
    except (TimeoutError, asyncio.TimeoutError):
        raise AnswerError(f"no complete answer within {timeout:g} s") from None
    except aiohttp.ServerDisconnectedError as error:
        raise AnswerError(f"{type(error).__name__}: the server closed the connection") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:  # some odd headers are ValueErrors in aiohttp
        raise AnswerError(target.plain(f"{type(error).__name__}: {error}", 80)) from None


async def _status(answer: aiohttp.ClientResponse, target: Target) -> str:
    """Return a failed status with the server's message, or with the address to which it sends on."""
    if 300 <= answer.status < 400:
        place = target.plain(answer.headers.get("Location", ""), 80)
        return f"HTTP {answer.status}: it sends on to {place or 'no address'}; give the final address"
    data = b""
    with contextlib.suppress(AnswerError):
        async for chunk in chunks(answer, LONGEST_ERROR):
            data += chunk
    text = data.decode(errors="replace")
    with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
        content = json.loads(text)
        error = content.get("error", content)
        text = str(error.get("message") or error.get("detail") or text)
    return f"HTTP {answer.status}{text and ': '}{target.plain(text)}"


async def chunks(answer: aiohttp.ClientResponse, most: int = LARGEST) -> AsyncIterator[bytes]:
    """Yield the bytes of an answer as they come.

    Raises:
        AnswerError: there are more than allowed.
    """
    total = 0
    async for chunk in answer.content.iter_any():
        total += len(chunk)
        if total > most:
            raise AnswerError(f"the answer has more than {most:,} bytes")
        yield chunk


async def fetch(client: aiohttp.ClientSession, target: Target, url: str, timeout: float) -> bytes:
    """Return what a server sends for an address.

    Raises:
        AnswerError: nothing that can be used.
    """
    async with asking(client, target, url, timeout) as answer:
        return b"".join([chunk async for chunk in chunks(answer)])


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the data of server-sent events, one line each, as they come.

    Raises:
        AnswerError: an event is too long.
    """
    rest = bytearray()
    async for chunk in chunks(answer):
        first, *others = chunk.split(b"\n")
        rest += first
        for following in others:
            if rest.startswith(b"data:"):
                yield bytes(rest[5:]).strip()
            rest = bytearray(following)
        if len(rest) > LARGEST_EVENT:
            raise AnswerError(f"an event of the stream has more than {LARGEST_EVENT:,} bytes")
    if rest.startswith(b"data:"):
        yield bytes(rest[5:]).strip()
