"""A small OpenAI-compatible server that answers with the simulator's times, in real time or faster.

It listens on 127.0.0.1 and answers ``/v1/completions`` and ``/v1/chat/completions``, streamed or not, ``/v1/models``,
``/health`` and ``/metrics``. An answer has as many tokens as requested (``max_tokens``), each in its own event, at the
moment at which the simulator delivers it. A prompt has a token per word; a list of token ids its length. Needs the
extra ``kvgym[observe]``: aiohttp does the HTTP in one loop in a thread; the simulator never waits for a client.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, NamedTuple

from aiohttp import web
from prometheus_client import generate_latest

from kvgym.errors import ConfigError, KVGymError, WorkloadError
from kvgym.servers.endpoint.mock_metrics import MockMetrics
from kvgym.servers.endpoint.online import OnlineRun, Tokens
from kvgym.servers.endpoint.target import OWNER

HOST = "127.0.0.1"

DEFAULT_OUTPUT = 16
"""Output tokens of a request that does not say how many, as with OpenAI's completions."""

LARGEST_BODY = 1 << 26
"""Most bytes of a request's body."""

PATIENCE = 60.0
"""Seconds after which a silent connection is closed, and in which a body must arrive."""

_SPIN = 0.0012
"""Seconds before a delivery from which the loop polls: timers of the system are up to a millisecond late."""

_TOKEN = "token"
_WORD = f" {_TOKEN}"

_SILENT = logging.getLogger("kvgym.mock")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class BadRequestError(KVGymError):
    """A request that the server does not answer.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


class _Asked(NamedTuple):
    """What a request asks for."""

    chat: bool
    words: list[str]  # the prompt, a word per token
    output_len: int
    stream: bool
    usage: bool  # whether the stream ends with the usage

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.words)


class _Answer:
    """An answer in progress; times are simulated seconds."""

    def __init__(self, asked: _Asked, name: str, model: str, arrival: float) -> None:
        self.asked, self.arrival, self.last = asked, arrival, arrival
        self.given, self.cached, self.more = 0, 0, asyncio.Event()
        kind = "text_completion"
        if asked.chat:
            kind = "chat.completion.chunk" if asked.stream else "chat.completion"
        self._about = {"id": name, "object": kind, "created": 0, "model": model}

    def _choice(self, text: str, reason: str | None) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self.asked.chat:
            content = {"delta" if self.asked.stream else "message": {"role": "assistant", "content": text}}
        return {"choices": [{"index": 0, **content, "finish_reason": reason}]}

    def _usage(self) -> dict[str, Any]:
        prompt, output = self.asked.prompt_len, self.asked.output_len
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def _event(self, content: dict[str, Any]) -> bytes:
        return f"data: {json.dumps({**self._about, **content})}\n\n".encode()

    def whole(self) -> dict[str, Any]:
        """Return the whole answer."""
        return {
            **self._about,
            **self._choice(_WORD * self.asked.output_len, "length"),
            "usage": self._usage(),
        }

    async def stream(self, response: web.StreamResponse) -> None:
        """Send the tokens as they come, and the end."""
        sent, length, token = 0, self.asked.output_len, self._event(self._choice(_WORD, None))
        while sent < length:
            await self.more.wait()
            self.more.clear()
            count, sent = self.given - sent, self.given
            data = token * (count - 1 if sent == length else count)
            if sent == length:
                data += self._event(self._choice(_WORD, "length"))
                data += self._event({"choices": [], "usage": self._usage()}) if self.asked.usage else b""
                data += b"data: [DONE]\n\n"
            await response.write(data)


class MockServer:
    """Serves the times of a run.

    Args:
        run: the run, without requests.
        model: name of the model.
        speed: simulated seconds per second.
        port: port on 127.0.0.1; 0 chooses a free one.

    Attributes:
        url: address, up to ``/v1``.

    Raises:
        ConfigError: the speed is not a positive number.
        KVGymError: the port cannot be used.
    """

    def __init__(self, run: OnlineRun, *, model: str = "kvgym", speed: float = 1.0, port: int = 0) -> None:
        if not 0 < speed < math.inf:
            raise ConfigError(f"speed = {speed}: expected simulated seconds per second > 0")
        self.model, self.speed = model, speed
        self._run, self._answers, self._pending = run, dict[int, _Answer](), deque[Tokens]()
        self._metrics = MockMetrics(run, model)
        self._timers: dict[Any, asyncio.TimerHandle] = {}  # of connections without a request so far
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        try:
            self._socket = socket.create_server((HOST, port))
        except OSError as error:
            raise KVGymError(
                f"port {port} of {HOST} cannot be used: {error.strerror}; choose another, or 0"
            ) from None
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}/v1"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> None:
        """Start to serve, in a thread."""
        self._run.warm_up()
        self._thread.start()
        self._ready.wait()

    def wait(self) -> None:
        """Wait until the server ends, and raise the error that ended it."""
        while self._thread.is_alive():  # with a timeout, so that Ctrl-C is handled
            self._thread.join(0.5)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the server and its connections."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()
        self._socket.close()

    # ------------------------------------------------------------ the simulator

    def _serve(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass
        except Exception as error:  # raised by wait()
            self._error = error

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=_SILENT,
            keepalive_timeout=PATIENCE,
            shutdown_timeout=0.1,
        )
        await runner.setup()
        connection = runner.server
        assert connection is not None
        server = await self._loop.create_server(lambda: self._limited(connection()), sock=self._socket)
        self._origin = self._loop.time()
        self._task = self._loop.create_task(self._play())
        self._ready.set()
        try:
            await self._task
        finally:
            server.close()
            await runner.cleanup()

    @property
    def _now(self) -> float:
        """The moment, in simulated seconds."""
        return (self._loop.time() - self._origin) * self.speed

    async def _play(self) -> None:
        """Advance the run with the clock, and deliver its tokens when their time has come."""
        while True:
            now = self._now
            self._deliver(now)
            self._pending += self._run.advance(now)
            self._deliver(now)
            await self._until(self._pending[0].time if self._pending else self._run.due)

    def _deliver(self, now: float) -> None:
        while self._pending and self._pending[0].time <= now:
            tokens = self._pending.popleft()
            finished = set(tokens.finished.tolist())
            for i in tokens.request_id.tolist():
                answer = self._answers[i] if i not in finished else self._answers.pop(i)
                if answer.given == 0:
                    answer.cached = self._run.cached(i)
                    self._metrics.first(tokens.time - answer.arrival)
                else:
                    self._metrics.next(tokens.time - answer.last)
                answer.given, answer.last = answer.given + 1, tokens.time
                if i in finished:
                    self._metrics.finished(
                        tokens.time - answer.arrival, answer.asked.prompt_len, answer.given
                    )
                answer.more.set()

    async def _until(self, time: float) -> None:
        """Wait for a moment, or for the next arrival if that is earlier."""
        self._changed.clear()
        left = (time - self._now) / self.speed
        if left > _SPIN:
            timer = self._loop.call_later(left - _SPIN, self._changed.set) if left < math.inf else None
            await self._changed.wait()
            if timer is not None:
                timer.cancel()
        else:
            await asyncio.sleep(0)
            while self._now < time and not self._changed.is_set():
                await asyncio.sleep(0)

    # ------------------------------------------------------------ HTTP

    def _limited(self, connection: web.RequestHandler) -> web.RequestHandler:
        """Return a new connection, which is closed unless it soon brings the head of a request."""

        def end() -> None:
            del self._timers[connection]
            connection.force_close()

        self._timers[connection] = self._loop.call_later(PATIENCE, end)
        return connection

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=LARGEST_BODY, middlewares=[self._answered])
        application.add_routes(
            [
                web.post("/v1/completions", self._complete),
                web.post("/v1/chat/completions", self._complete),
                web.get("/v1/models", self._models),
                web.get("/metrics", self._metrics_page),
                web.get("/health", self._health),
            ]
        )
        return application

    @web.middleware
    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer a request, one without an answer by an error as OpenAI's."""
        if (timer := self._timers.pop(request.protocol, None)) is not None:
            timer.cancel()
        try:
            return await handler(request)
        except BadRequestError as error:
            status, text = error.status.value, str(error)
        except web.HTTPRequestEntityTooLarge:
            status, text = 413, f"a body of at most {LARGEST_BODY:,} bytes"
        except web.HTTPException as error:
            status = error.status
            text = (
                f"{request.method} {request.path[:80]}: {error.reason}; valid are POST /v1/completions and "
                "/v1/chat/completions, GET /v1/models, /metrics and /health"
            )
        content = {"error": {"message": text, "type": "invalid_request_error", "code": status}}
        return web.json_response(content, status=status)

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": self.model, "object": "model", "owned_by": OWNER, "speed": self.speed}
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _metrics_page(self, request: web.Request) -> web.Response:
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(
            body=generate_latest(self._metrics.registry), headers={"Content-Type": content_type}
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        """Enter a request into the run and answer it."""
        if (size := request.content_length or 0) > LARGEST_BODY:
            raise web.HTTPRequestEntityTooLarge(LARGEST_BODY, size)
        try:
            body = await asyncio.wait_for(request.read(), PATIENCE)
        except (TimeoutError, asyncio.TimeoutError):
            raise BadRequestError(
                f"no whole body within {PATIENCE:g} s", HTTPStatus.REQUEST_TIMEOUT
            ) from None
        wanted = asked(body, chat=request.path.endswith("/chat/completions"))
        tokens = [*wanted.words, *[_TOKEN] * wanted.output_len]
        now = self._now
        try:
            i = self._run.add(now, wanted.prompt_len, wanted.output_len, tokens)
        except WorkloadError as error:
            raise BadRequestError(str(error)) from None
        except ConfigError as error:
            raise BadRequestError(str(error), HTTPStatus.SERVICE_UNAVAILABLE) from None
        answer = self._answers[i] = _Answer(wanted, f"cmpl-{i}", self.model, now)
        self._changed.set()
        if not wanted.stream:
            while answer.given < wanted.output_len:
                await answer.more.wait()
                answer.more.clear()
            return web.json_response(answer.whole())
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        await answer.stream(response)
        return response


def asked(body: bytes, *, chat: bool) -> _Asked:
    """Return what a request asks for.

    Args:
        body: JSON as of OpenAI's API.
        chat: whether it has messages instead of a prompt.

    Raises:
        BadRequestError: a field is wrong.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequestError("the body is not JSON") from None
    if not isinstance(given, dict):
        raise BadRequestError("the body is not a JSON object")
    words = _chat_words(given.get("messages")) if chat else _prompt_words(given.get("prompt"))
    output = given.get("max_completion_tokens") or given.get("max_tokens") or DEFAULT_OUTPUT
    if not isinstance(output, int) or isinstance(output, bool) or not 1 <= output < 2**31:
        raise BadRequestError(f"max_tokens = {output!r:.40}; expected a whole number ≥ 1")
    if given.get("n") not in (None, 1):
        raise BadRequestError("n must be 1")
    options = given.get("stream_options")
    usage = isinstance(options, dict) and bool(options.get("include_usage"))
    return _Asked(chat, words or [""], output, bool(given.get("stream")), usage)


def _prompt_words(prompt: Any) -> list[str]:
    """Return the tokens of a prompt: words of a text, or token ids."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        (prompt,) = prompt
    if isinstance(prompt, str):
        return prompt.split()
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        return [hex(token) for token in prompt]
    raise BadRequestError("prompt: expected a text or a list of token ids, one per request")


def _chat_words(messages: Any) -> list[str]:
    """Return the words of messages."""
    try:
        contents = [message.get("content") or "" for message in messages]
        texts = [c if isinstance(c, str) else " ".join(part["text"] for part in c) for c in contents]
    except (TypeError, LookupError, AttributeError):
        raise BadRequestError("messages: expected a list of messages with a text as content") from None
    return " ".join(texts).split()
