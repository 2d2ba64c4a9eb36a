"""Decisions of SGLang's router, recorded in front of small servers that hold requests open until they are let go.

    python scripts/conformance router --version 0.3.2 --decisions 1000

The router (a Rust program in the wheel ``sglang-router``) runs in a process of its own with the policy ``cache_aware``.
One request is routed at a time, so that the state before each decision is known: the open requests of each worker, as
the router reports them, and what each request has in common with those that went to a worker before, in characters.
kvgym's ``cache_aware`` decides by the same facts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from conformance.wheel import default_cache, unpacked
from kvgym.baselines.routing.prefix_caches import CacheAware
from kvgym.compiling.kernel import uncompiled
from kvgym.compiling.records import records
from kvgym.errors import ConfigError, KVGymError
from kvgym.kernels import UNKNOWN, RouterView
from kvgym.simulator.prefix.host_memory import BELOW
from kvgym.simulator.tables import CONTENT, PREFIX, PROBLEM, REQUEST, SLOT, WORKER

EPISODE = 50
"""Decisions of one router, before another is started with other settings."""

PATIENCE = 30.0
"""Seconds until the router or a server must have answered."""


@dataclass(frozen=True)
class Decision:
    """What is known before a decision, and the decision.

    Attributes:
        threshold: share of the prompt that a match must exceed.
        absolute: requests by which loads must differ.
        ratio: factor by which they must differ.
        prompt: characters of the request.
        matches: characters that it has in common with a request that was sent to each worker before.
        open: open requests of each worker.
        chosen: the worker to which the router sent it.
    """

    threshold: float
    absolute: int
    ratio: float
    prompt: int
    matches: tuple[int, ...]
    open: tuple[int, ...]
    chosen: int

    @property
    def kind(self) -> str:
        """What decides: the loads, the match, or the fewest requests."""
        most, least = max(self.open), min(self.open)
        if most - least > self.absolute and most > self.ratio * least:
            return "loads differ"
        return "match" if max(self.matches) > self.threshold * self.prompt else "no match"

    def equals(self, ours: int) -> bool:
        """Return whether a worker is as good as the chosen one for the router, which breaks ties by no rule."""
        values = self.matches if self.kind == "match" else self.open
        return values[ours] == values[self.chosen]


class _Workers:
    """Servers that hold each request open until it is let go."""

    def __init__(self, count: int) -> None:
        self.arrived: dict[str, int] = {}
        self.let_go: dict[str, threading.Event] = {}
        self.changed = threading.Condition()
        self.servers = [self._serve(k) for k in range(count)]
        self.urls = [f"http://127.0.0.1:{server.server_address[1]}" for server in self.servers]

    def _serve(self, k: int) -> ThreadingHTTPServer:
        workers = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

            def do_GET(self) -> None:
                self.answer({"status": "ok"})

            def do_POST(self) -> None:
                text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
                with workers.changed:
                    workers.arrived[text] = k
                    event = workers.let_go[text] = threading.Event()
                    workers.changed.notify_all()
                event.wait()
                self.answer({"text": "", "meta_info": {"finish_reason": {"type": "stop"}}})

            def answer(self, value: dict[str, Any]) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Print nothing when a connection ends."""

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def worker_of(self, text: str) -> int:
        """Wait for a request; return the worker to which it was sent."""
        with self.changed:
            if not self.changed.wait_for(lambda: text in self.arrived, PATIENCE):
                raise ConfigError(f"the router sent no request within {PATIENCE:g} s")
            return self.arrived[text]

    def close(self) -> None:
        """End the servers."""
        for event in self.let_go.values():
            event.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()


_START = """
import sys
sys.path.insert(0, sys.argv[1])
from sglang_router.router import Router
from sglang_router.router_args import RouterArgs
import json
Router.from_args(RouterArgs(**json.loads(sys.argv[2]))).start()
"""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def _router(folder: Path, urls: Sequence[str], **settings: Any) -> Iterator[str]:
    """Run the router in front of servers; yield its address."""
    port = _free_port()
    arguments = {
        "worker_urls": list(urls), "host": "127.0.0.1", "port": port, "policy": "cache_aware",
        "log_level": "error", "disable_retries": True, "prometheus_host": "127.0.0.1",
        "prometheus_port": _free_port(), **settings,
    }  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(folder), json.dumps(arguments)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address, end = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE
        while len(_loads(address)) < len(urls):
            if time.monotonic() > end or process.poll() is not None:
                raise ConfigError("the router does not start")
            time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


def _loads(address: str) -> dict[str, int]:
    """Return the open requests of each healthy worker, as the router counts them; empty until it answers."""
    try:
        with urllib.request.urlopen(f"{address}/workers", timeout=PATIENCE) as answer:
            workers = json.load(answer)["workers"]
    except OSError:
        return {}
    return {worker["url"]: int(worker["load"]) for worker in workers if worker["is_healthy"]}


def _send(address: str, text: str) -> threading.Thread:
    """Send a request in a thread of its own, which ends with the answer."""
    body = json.dumps({"text": text, "sampling_params": {"max_new_tokens": 1}}).encode()
    request = urllib.request.Request(f"{address}/generate", body, {"Content-Type": "application/json"})

    def wait() -> None:
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=600) as answer:
            answer.read()

    sender = threading.Thread(target=wait, daemon=True)
    sender.start()
    return sender


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    pairs = zip(one, other, strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def record_episode(folder: Path, seed: int, count: int = EPISODE) -> list[Decision]:
    """Return decisions of one router with random settings, on requests that begin with common texts.

    Args:
        folder: files of the wheel.
        seed: of settings and requests.
        count: decisions.

    Raises:
        ConfigError: the router does not start or answer.
    """
    draw = random.Random(seed)
    settings = {
        "cache_threshold": draw.choice([0.3, 0.3, 0.5, 0.8]),
        "balance_abs_threshold": draw.choice([64, 1, 2, 4]),
        "balance_rel_threshold": draw.choice([1.5, 1.0, 1.25, 2.0]),
    }
    common = ["".join(draw.choice("abcdefgh") for _ in range(200)) for _ in range(draw.randint(1, 4))]
    workers = _Workers(draw.randint(2, 5))
    sent: list[list[str]] = [[] for _ in workers.urls]
    running: list[tuple[str, threading.Thread]] = []
    most, found = draw.choice([2, 6, 20]) * len(workers.urls), list[Decision]()
    try:
        with _router(folder, workers.urls, **settings) as address:
            while len(found) < count:
                while len(running) > draw.randint(0, most):
                    text, sender = running.pop(draw.randrange(len(running)))
                    workers.let_go[text].set()
                    sender.join(PATIENCE)
                loads = _settled(address, workers, running)
                beginning = draw.choice(common)[: draw.randint(0, 200)]
                text = f"{beginning}|{seed}.{len(found)}." + "z" * draw.randint(0, 100)
                matches = tuple(max((_common(text, old) for old in texts), default=0) for texts in sent)
                running.append((text, _send(address, text)))
                chosen = workers.worker_of(text)
                sent[chosen].append(text)
                found.append(Decision(*settings.values(), len(text), matches, loads, chosen))
    finally:
        workers.close()
    return found


def _settled(address: str, workers: _Workers, running: Sequence[tuple[str, Any]]) -> tuple[int, ...]:
    """Return the open requests of each worker, as soon as the router counts as many as there are."""
    held = Counter(workers.arrived[text] for text, _ in running)
    expected = tuple(held[k] for k in range(len(workers.urls)))
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        loads = _loads(address)
        if tuple(loads.get(url, -1) for url in workers.urls) == expected:
            return expected
        time.sleep(0.005)
    raise ConfigError(f"the router counts {loads}, but {expected} requests are open")


def play(decision: Decision) -> int:
    """Return the worker that kvgym's ``cache_aware`` takes by the same facts; a character is a token."""
    count = len(decision.open)
    router = CacheAware(threshold=decision.threshold, absolute=decision.absolute, ratio=decision.ratio)
    router.reset(count, np.random.SeedSequence(0))
    problems, workers = records(PROBLEM, count), records(WORKER, count)
    requests, prefix = records(REQUEST, 1), records(PREFIX, 1)
    contents = records(CONTENT, count, decision.prompt)
    problems["prefix_unit"], workers["outstanding_requests"] = 1, decision.open
    requests["num_prefill_left"] = prefix["length"] = decision.prompt
    contents["unit"] = UNKNOWN
    for k, match in enumerate(decision.matches):
        contents["unit"][k, :match] = 0
    chain, changed = np.arange(decision.prompt, dtype=np.int32), np.zeros((count, 0))
    view = RouterView(
        problems, workers, requests, records(SLOT, count, 1), contents, changed, records(BELOW, count, 0), chain,
        prefix, clock=0.0, request=0, first=0, last=count, boundary=UNKNOWN, session=UNKNOWN, previous=UNKNOWN,
        open=np.zeros(0, np.uint8), backlog=np.zeros(0, np.int64), caches_known=0.0, begin=0,
    )  # fmt: skip
    return int(uncompiled(router.kernel)(view, *router.arguments()))


def described(decisions: Sequence[Decision]) -> str:
    """Return how many decisions kvgym makes in the same way, by what decides."""
    equal, total = Counter[str](), Counter[str]()
    for decision in decisions:
        total[decision.kind] += 1
        equal[decision.kind] += decision.equals(play(decision))
    lines = [f"{sum(total.values())} decisions, {sum(equal.values())} equal"]
    return "\n".join([*lines, *(f"  {kind}: {equal[kind]} of {total[kind]}" for kind in sorted(total))])


def write(path: Path, version: str, decisions: Sequence[Decision]) -> None:
    """Write a file of decisions: a line of JSON for the router, and one for each decision."""
    lines = [{"router": "sglang-router", "version": version}, *map(asdict, decisions)]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), "utf-8")


def read(path: Path) -> list[Decision]:
    """Return the decisions of a file."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()[1:]]
    return [Decision(**(v | {name: tuple(v[name]) for name in ("matches", "open")})) for v in lines]


def choose(decisions: Sequence[Decision], each: int = 16) -> list[Decision]:
    """Return decisions of every kind, spread over all of them, in which the workers differ."""
    chosen = []
    for kind in sorted({decision.kind for decision in decisions}):
        some = [d for d in decisions if d.kind == kind and any(not d.equals(k) for k in range(len(d.open)))]
        chosen += some[:: max(1, len(some) // each)][:each]
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 1 if a decision is not equal."""
    reader = argparse.ArgumentParser(
        "python scripts/conformance router",
        description="Compare cache_aware with decisions of SGLang's router.",
    )
    add = reader.add_argument
    add("--version", default="0.3.2", help="release of sglang-router, default 0.3.2")
    add(
        "--source",
        type=Path,
        metavar="FOLDER",
        help="folder with the package sglang_router, in place of its wheel",
    )
    add("--cache", type=Path, metavar="FOLDER", help=f"folder for wheels, default {default_cache()}")
    add("--decisions", type=int, default=1000, help="number of decisions, default 1000")
    add("--first", type=int, default=0, metavar="SEED", help="first episode, default 0")
    add("--freeze", type=Path, metavar="FILE", help="record some decisions for the tests")
    options = reader.parse_args(arguments)
    decisions: list[Decision] = []
    try:
        folder = options.source or unpacked(
            "sglang-router", options.version, options.cache or default_cache(), (".py", ".so")
        )
        for seed in range(options.first, options.first + -(-options.decisions // EPISODE)):
            decisions += record_episode(folder, seed, min(EPISODE, options.decisions - len(decisions)))
    except KVGymError as error:
        raise SystemExit(f"error: {error}") from None
    print(f"sglang-router {options.version}: {described(decisions)}")
    if options.freeze:
        write(options.freeze, options.version, choose(decisions))
    if not all(decision.equals(play(decision)) for decision in decisions):
        raise SystemExit(1)
