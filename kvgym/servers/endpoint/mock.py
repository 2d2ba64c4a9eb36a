"""A small OpenAI-compatible server that answers with the simulator's times, in real time or faster.

It listens on 127.0.0.1 and answers ``/v1/completions`` and ``/v1/chat/completions``, streamed or not, ``/v1/models``,
``/health`` and ``/metrics`` (vLLM's names). An answer has as many tokens as requested (``max_tokens``), each in its own
event, at the moment at which the simulator delivers it. A prompt has a token per word; a list of token ids its length.
One asyncio loop in a thread does everything; the simulator never waits for a client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import threading
from collections import deque
from http import HTTPStatus
from typing import Any, NamedTuple

from kvgym.errors import ConfigError, KVGymError, WorkloadError
from kvgym.servers.endpoint.online import OnlineRun, Tokens
from kvgym.workloads.traces.conversations import count_words

HOST = "127.0.0.1"

OWNER = "kvgym server mock"
"""Owner of the model in ``/v1/models``, by which a client recognises this server."""

DEFAULT_OUTPUT = 16
"""Output tokens of a request that does not say how many, as with OpenAI's completions."""

LARGEST_HEAD, LARGEST_BODY = 1 << 16, 1 << 26
"""Most bytes of a request's head and body."""

PATIENCE = 60.0
"""Seconds after which a silent connection is closed."""

_SPIN = 0.0012
"""Seconds before a delivery from which the loop polls: timers of the system are up to a millisecond late."""

_WORD = " token"


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
    prompt_len: int
    output_len: int
    stream: bool
    usage: bool  # whether the stream ends with the usage


class _Answer:
    """An answer in progress."""

    def __init__(self, writer: asyncio.StreamWriter, asked: _Asked, name: str, model: str) -> None:
        self.writer, self.asked = writer, asked
        self.done = asyncio.Event()
        kind = "chat.completion" if asked.chat else "text_completion"
        self._about = {"id": name, "object": kind, "created": 0, "model": model}
        self._token = self._event(self._choice(_WORD, None))
        self._usage = {
            "prompt_tokens": asked.prompt_len,
            "completion_tokens": asked.output_len,
            "total_tokens": asked.prompt_len + asked.output_len,
        }

    def _choice(self, text: str, reason: str | None, *, whole: bool = False) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self.asked.chat:
            content = {"message" if whole else "delta": {"role": "assistant", "content": text}}
        return {"choices": [{"index": 0, **content, "finish_reason": reason}]}

    def _event(self, content: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self.asked.chat else "text_completion"
        return _chunk(f"data: {json.dumps({**self._about, 'object': kind, **content})}\n\n")

    def deliver(self, last: bool) -> None:
        """Send one more token."""
        if self.asked.stream:
            if not last:
                self.writer.write(self._token)
                return
            parts = [self._event(self._choice(_WORD, "length"))]
            if self.asked.usage:
                parts.append(self._event({"choices": [], "usage": self._usage}))
            self.writer.write(b"".join([*parts, _chunk("data: [DONE]\n\n"), b"0\r\n\r\n"]))
        elif last:
            choice = self._choice(_WORD * self.asked.output_len, "length", whole=True)
            self.writer.write(_response({**self._about, **choice, "usage": self._usage}))
        if last:
            self.done.set()

    def begin(self) -> None:
        """Send the head of a stream."""
        if self.asked.stream:
            head = "Content-Type: text/event-stream\r\nCache-Control: no-store\r\nTransfer-Encoding: chunked"
            self.writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode())


def _chunk(text: str) -> bytes:
    data = text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def _response(content: Any, status: HTTPStatus = HTTPStatus.OK, kind: str = "application/json") -> bytes:
    data = (content if isinstance(content, str) else json.dumps(content)).encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}"
    return f"{head}\r\n\r\n".encode() + data


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
        server = await asyncio.start_server(self._connection, sock=self._socket, limit=LARGEST_HEAD)
        self._origin = self._loop.time()
        self._task = self._loop.create_task(self._play())
        self._ready.set()
        try:
            await self._task
        finally:
            server.close()

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
                last = i in finished
                answer = self._answers.pop(i) if last else self._answers[i]
                if not answer.writer.is_closing():
                    answer.deliver(last)
                elif last:
                    answer.done.set()

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

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection; a client may end it at any time."""
        with contextlib.suppress(
            ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError
        ):
            try:
                while await self._exchange(reader, writer):
                    pass
            except BadRequestError as error:
                writer.write(_response(_error(error), error.status))
                await writer.drain()
            finally:
                writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read a request and answer it; return whether the connection stays open."""
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        method, path, version = (*first.split(" "), "", "")[:3]
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        length = headers.get("content-length", "0")
        if not version.startswith("HTTP/1.") or "transfer-encoding" in headers or not length.isdecimal():
            raise BadRequestError("expected HTTP/1.1 with a Content-Length")
        if int(length) > LARGEST_BODY:
            raise BadRequestError(
                f"a body of at most {LARGEST_BODY:,} bytes", HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            )
        body = await asyncio.wait_for(reader.readexactly(int(length)), PATIENCE)
        try:
            await self._answer(method, path.partition("?")[0].rstrip("/"), body, writer)
        except BadRequestError as error:
            writer.write(_response(_error(error), error.status))
        await writer.drain()
        return version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"

    async def _answer(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        """Answer a request.

        Raises:
            BadRequestError: it has no answer.
        """
        if (method, path) == ("POST", "/v1/completions"):
            await self._complete(asked(body, chat=False), writer)
        elif (method, path) == ("POST", "/v1/chat/completions"):
            await self._complete(asked(body, chat=True), writer)
        elif (method, path) == ("GET", "/v1/models"):
            model = {"id": self.model, "object": "model", "owned_by": OWNER, "speed": self.speed}
            writer.write(_response({"object": "list", "data": [model]}))
        elif (method, path) == ("GET", "/metrics"):
            writer.write(_response(self._metrics(), kind="text/plain; version=0.0.4"))
        elif (method, path) == ("GET", "/health"):
            writer.write(_response({}))
        else:
            raise BadRequestError(
                f"{method} {path}: valid are POST /v1/completions and /v1/chat/completions, GET /v1/models, /metrics "
                "and /health",
                HTTPStatus.NOT_FOUND,
            )

    async def _complete(self, wanted: _Asked, writer: asyncio.StreamWriter) -> None:
        """Enter a request into the run and wait until it has been answered."""
        try:
            i = self._run.add(self._now, wanted.prompt_len, wanted.output_len)
        except WorkloadError as error:
            raise BadRequestError(str(error)) from None
        except ConfigError as error:
            raise BadRequestError(str(error), HTTPStatus.SERVICE_UNAVAILABLE) from None
        answer = self._answers[i] = _Answer(writer, wanted, f"cmpl-{i}", self.model)
        answer.begin()
        self._changed.set()
        await answer.done.wait()

    def _metrics(self) -> str:
        """Return counters in the form and under the names of vLLM."""
        w, system = self._run.worker, self._run.system
        label = f'model_name="{self.model}"'
        blocks = system.usable_capacity // system.block_size
        return "".join(
            f"# TYPE {name.removesuffix('_total')} {kind}\n{name}{{{labels}}} {value}\n"
            for name, kind, labels, value in (
                ("vllm:num_requests_running", "gauge", label, w["num_active"]),
                ("vllm:num_requests_waiting", "gauge", label, w["num_waiting"]),
                ("vllm:num_preemptions_total", "counter", label, w["total_evicted"]),
                ("vllm:request_success_total", "counter", label, w["total_finished"]),
                (
                    "vllm:cache_config_info", "gauge",
                    f'block_size="{system.block_size}",num_gpu_blocks="{blocks}"', 1,
                ),
            )
        )  # fmt: skip


def _error(error: BadRequestError) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": "invalid_request_error", "code": error.status.value}}


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
    prompt_len = _chat_len(given.get("messages")) if chat else _prompt_len(given.get("prompt"))
    output = given.get("max_completion_tokens") or given.get("max_tokens") or DEFAULT_OUTPUT
    if not isinstance(output, int) or not 1 <= output < 2**31:
        raise BadRequestError(f"max_tokens = {output!r:.40}; expected a whole number ≥ 1")
    if given.get("n") not in (None, 1):
        raise BadRequestError("n must be 1")
    options = given.get("stream_options")
    usage = isinstance(options, dict) and bool(options.get("include_usage"))
    return _Asked(chat, max(prompt_len, 1), output, bool(given.get("stream")), usage)


def _prompt_len(prompt: Any) -> int:
    """Return the length of a prompt: words of a text, or token ids."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        (prompt,) = prompt
    if isinstance(prompt, str):
        return count_words(prompt)
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        return len(prompt)
    raise BadRequestError("prompt: expected a text or a list of token ids, one per request")


def _chat_len(messages: Any) -> int:
    """Return the length of messages, words."""
    try:
        contents = [message.get("content") or "" for message in messages]
        texts = [c if isinstance(c, str) else " ".join(part["text"] for part in c) for c in contents]
    except (TypeError, LookupError, AttributeError):
        raise BadRequestError("messages: expected a list of messages with a text as content") from None
    return sum(map(count_words, texts))
