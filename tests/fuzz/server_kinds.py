"""Kind of input for observed servers: answers of any bytes, speed and end, and kills of either side."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fuzz.kinds import Kind, raw, refuse

KEY = "sk-very-secret"
PATIENCE = 0.25
"""Seconds that the client waits for an answer."""

KILLS = {name: getattr(signal, name) for name in ("SIGKILL", "SIGTERM") if hasattr(signal, name)}
"""Signals to ``kvgym server observe`` in the middle of a measurement."""

LONGEST = 60.0
"""Seconds after which an input has hung, also where it only waits."""

OK = "HTTP/1.1 200 OK\r\n"
STREAM = f"{OK}Content-Type: text/event-stream\r\nConnection: close\r\n\r\n"
TOKEN = 'data: {"choices": [{"text": " a", "finish_reason": null}]}\n\n'
CHAT = 'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": null}]}\n\n'
USAGE = (
    'data: {"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 4, "prompt_tokens_details": '
    '{"cached_tokens": 16}}}\n\n'
)
DONE = "data: [DONE]\n\n"
METRICS = (
    'vllm:num_preemptions_total{engine="0"} 3.0\nvllm:request_success_total{engine="0"} 5.0\n'
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="2588"} 1.0\n'
)


def whole(text: str, head: str = "") -> str:
    """Return an answer of a text."""
    return f"{OK}{head}Connection: close\r\nContent-Length: {len(text)}\r\n\r\n{text}"


MODELS = whole(json.dumps({"data": [{"id": "m/8b", "owned_by": "kvgym server mock", "speed": 2.0}]}))
PROBE = [STREAM, TOKEN, TOKEN, USAGE, DONE]


def tree(*packets: str | bytes, **changes: Any) -> dict[str, Any]:
    """Return an input: the packets that answer a request, and what else the server does."""
    plain = {"models": raw(MODELS), "metrics": raw(whole(METRICS)), "probes": 2, "pause": 0.002, "times": 1}
    return {**plain, "end": "close", "packets": [raw(packet) for packet in packets], **changes}


def server_seeds() -> list[Any]:
    zipped = gzip.compress(b"x" * 10_000_000)
    chunked = f"{OK}Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [
        tree(*PROBE),
        tree(*PROBE, probes=0),
        tree(STREAM, CHAT, CHAT, USAGE, DONE),
        tree(chunked, f"{len(TOKEN):x}\r\n{TOKEN}\r\n", f"{len(USAGE):x}\r\n{USAGE}\r\n", "0\r\n\r\n"),
        tree(whole('{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 5}}')),
        tree(STREAM, TOKEN, end="reset"),
        tree(STREAM, TOKEN, end="stay"),
        tree(STREAM, TOKEN, end="die"),
        tree(STREAM, TOKEN, end="stay", kill="SIGKILL", after=0.1),
        tree(*PROBE, kill="SIGTERM", after=0.1),
        tree(STREAM, *TOKEN, pause=0.03),  # a trickle
        tree(STREAM, TOKEN * 1000, times=3000),
        tree(STREAM, "data: " + "x" * 60_000, times=3000),
        tree(OK + "X: " + "x" * 60_000, times=50),
        tree("HTTP/1.1 100 Continue\r\n\r\n", times=500),
        tree(f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/{KEY}\r\nContent-Length: 0\r\n\r\n"),
        tree(f"{OK}Content-Encoding: gzip\r\nContent-Length: {len(zipped)}\r\n\r\n".encode() + zipped),
        tree(whole("\u00fc\ud7ff", "Content-Type: text/html; charset=nothing\r\n").encode()),
        tree(f"HTTP/1.1 500 Oops\r\nConnection: close\r\n\r\n{json.dumps({'error': {'message': KEY}})}"),
        tree(STREAM, f'data: {{"error": {{"message": "out of memory {KEY}"}}}}\n\n'),
        tree(STREAM, "data: " + "[" * 50_000 + "\n\n"),
        tree(f"{OK}Content-Length: {'9' * 5000}\r\n\r\n"),
    ]


class Server:
    """Answers as the present input says; every connection has a thread."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.left = 0
        self._open: set[socket.socket] = set()
        self._start()

    def _start(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=300)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._listen, args=[self._socket], daemon=True).start()

    def set(self, content: Any) -> None:
        """Answer by another input."""
        if self._socket.fileno() < 0:
            self._start()
        self.given = content if isinstance(content, dict) else {}
        probes = self.given.get("probes")
        self.left = probes if isinstance(probes, int) and 0 <= probes < 10 else 2

    def _listen(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has died
            while True:
                connection, _ = listening.accept()
                self._open.add(connection)
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _die(self) -> None:
        """Reset all connections and accept no others, as a server does that is killed."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError, IndexError):  # closed at either end
            connection.settimeout(5)
            place = self._asked(connection)
            given = self.given
            if place.startswith("/v1/models"):
                connection.sendall(_bytes(given.get("models")))
            elif place.startswith("/metrics"):
                connection.sendall(_bytes(given.get("metrics")))
            elif self.left > 0:
                self.left -= 1
                for packet in PROBE:
                    connection.sendall(packet.encode())
            else:
                self._answer(connection, given)
        self._open.discard(connection)

    def _answer(self, connection: socket.socket, given: dict[str, Any]) -> None:
        packets = given.get("packets")
        packets = packets[:100] if isinstance(packets, list) else [packets]
        pause, times, end = given.get("pause"), given.get("times"), given.get("end")
        for packet in packets:
            connection.sendall(_bytes(packet))
            time.sleep(pause if isinstance(pause, float) and 0 <= pause < 0.1 else 0.0)
        for _ in range(times - 1 if isinstance(times, int) and times < 10_000 else 0):
            connection.sendall(_bytes(packets[-1] if packets else b""))
        if end == "stay":
            time.sleep(2 * PATIENCE)
        elif end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif end == "die":
            self._die()

    @staticmethod
    def _asked(connection: socket.socket) -> str:
        """Read a request and return its path."""
        with connection.makefile("rb") as file:
            place, length = file.readline().split()[1].decode(), 0
            while line := file.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            file.read(length)
        return place


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@functools.cache
def server() -> Server:
    """Return the server of this process."""
    return Server()


def play_server(content: Any, folder: Path) -> None:
    """Measure a server: every request has a row without the key, whatever it answers and when either side dies."""
    import numpy as np

    from kvgym.servers.endpoint.client import Measured, meet, read_counters, send
    from kvgym.servers.endpoint.log import RequestLog, save_observed
    from kvgym.servers.endpoint.target import Target
    from kvgym.servers.validation.served import read_served
    from kvgym.workloads.table import RequestTable

    server().set(content)
    kill, after = (content.get(name) if isinstance(content, dict) else None for name in ("kill", "after"))
    if isinstance(kill, str) and kill in KILLS:
        _kill_observe(KILLS[kill], after if isinstance(after, float) and 0 <= after < 0.5 else 0.0, folder)
        return
    began = time.monotonic()
    try:
        met = meet(Target.of(server().url, key=KEY), timeout=PATIENCE)
        before = read_counters(met.target, PATIENCE)
        table = RequestTable.from_columns(arrival_time=np.zeros(3), prompt_len=[30] * 3, output_len=[4] * 3)
        found: list[Measured] = []
        with contextlib.closing(RequestLog(folder)) as log:
            send(met, table, timeout=PATIENCE, found=found, ended=log.add)
        save_observed(
            folder, met, found, (before, read_counters(met.target, PATIENCE)), workload="w", command="c"
        )
        rows = (folder / "requests.jsonl").read_text()
        refuse(rows.count("\n") != 3, "a request has no row")
        refuse(KEY in rows + (folder / "observed.json").read_text(), "the key is in a file")
        refuse(
            any(len(each.reason) > 200 or not each.reason.isprintable() for each in found), "a long reason"
        )
        read_served(folder)
    finally:
        refuse(time.monotonic() - began > LONGEST, "an answer had no deadline")


def _kill_observe(number: signal.Signals, after: float, folder: Path) -> None:
    """Send a signal to the command some seconds after its log is there: all rows that it has are whole."""
    from kvgym.servers.validation.served import read_served

    rows = "0,30,4\n" * 3 + "1000,30,4\n"  # it would wait for the last one
    (folder / "trace.csv").write_text(f"arrival_time,prompt_len,output_len\n{rows}")
    command = [sys.executable, "-m", "kvgym", "server", "observe", server().url, "--trace", "trace.csv"]
    log, limit = folder / "r" / "requests.jsonl", time.monotonic() + LONGEST
    with (
        (folder / "said").open("wb") as said,
        subprocess.Popen(
            [*command, "--timeout", f"{4 * PATIENCE}", "--no-progress", "-o", "r"],
            cwd=folder, env={**os.environ, "OPENAI_API_KEY": KEY}, stdout=said, stderr=said,
        ) as process,
    ):  # fmt: skip
        while process.poll() is None and not log.exists():
            refuse(time.monotonic() > limit, "an answer had no deadline")
            time.sleep(0.01)
        time.sleep(after)
        process.send_signal(number)
        process.wait(LONGEST)
    text = (folder / "said").read_text(errors="replace")
    refuse("Traceback" in text or "bug in kvgym" in text, "it ended in a traceback")
    refuse(KEY in text, "the key was printed")
    if not log.exists():  # the server was refused before
        return
    kept = log.read_text()
    refuse(kept != "" and not kept.endswith("\n"), "a row is not whole")
    found = [json.loads(row) for row in kept.splitlines()]
    about = json.loads((folder / "r" / "observed.json").read_text())
    refuse(KEY in kept + json.dumps(about), "the key is in a file")
    if process.returncode == 130:
        refuse(about["sent"] != len(found), "a request has no row")
    else:
        refuse(process.returncode != -number, f"it ended with {process.returncode}")
        refuse(about["sent"] is not None, "the file says that the measurement went on to its end")
    read_served(folder / "r")


SERVER = Kind("server", server_seeds, play_server)
