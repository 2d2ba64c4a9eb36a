"""Server of a live page, for browsers on this machine only.

It listens on 127.0.0.1. Every path begins with a random token, so that other pages and users of this machine cannot
guess it, and the header ``Host`` must name this machine, so that a page of another site that resolves its name to
127.0.0.1 gets nothing. The page loads nothing from anywhere else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kvgym.cli.watch.source import Source
from kvgym.errors import ConfigError, KVGymError
from kvgym.report.colours import PALETTE

HOST = "127.0.0.1"

PATIENCE = 10.0
"""Longest time that a request for a state waits for a change, seconds."""

LARGEST = 1000
"""Most bytes of a posted control."""


def page() -> tuple[bytes, str]:
    """Return the page, and the hash of its script for the policy of its content."""
    assets = files("kvgym.cli.watch") / "assets"
    shared = files("kvgym.report") / "assets"
    style = (shared / "page.css").read_text("utf-8")
    own = (assets / "page.js").read_text("utf-8").replace("COLOURS", json.dumps(PALETTE))
    script = (shared / "figures.js").read_text("utf-8") + own
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = (assets / "page.html").read_text("utf-8")
    text = text.replace("/* style of reports */", style).replace("/* script */", script)
    return text.encode(), f"sha256-{digest}"


class _Handler(BaseHTTPRequestHandler):
    """Answers of a :class:`WatchServer`."""

    server: WatchServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "kvgym", ""
    timeout = 30  # of a silent connection, seconds

    def do_GET(self) -> None:
        """Send the page or a state."""
        try:
            address = urlsplit(self.path)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "this is no address")
            return
        place = self._place(address.path)
        if place == "":
            policy = "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; "
            policy += f"script-src '{self.server.script}'"
            self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8", policy)
        elif place == "state":
            try:
                given = {name: int(values[0]) for name, values in parse_qs(address.query).items()}
                known = {name: given[name] for name in ("version", "epoch", "rows")} if given else {}
                if known.get("rows", 0) < 0:
                    raise ValueError
            except (KeyError, ValueError):
                self._refuse(HTTPStatus.BAD_REQUEST, "state takes whole numbers version, epoch and rows")
                return
            state = self.server.source.state(**known, timeout=PATIENCE)
            if self.server.source.stopped:
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "kvgym watch has ended")
                return
            self._send(HTTPStatus.OK, json.dumps(state, allow_nan=False).encode(), "application/json")
        elif place is not None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def do_POST(self) -> None:
        """Change the speed, or pause or continue."""
        if self._place(self.path) != "control":
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isdecimal() and len(length) < 10 and int(length) <= LARGEST):
            self._refuse(HTTPStatus.BAD_REQUEST, f"a control has at most {LARGEST} bytes")
            return
        try:
            self.server.source.control(json.loads(self.rfile.read(int(length))))
        except (ConfigError, ValueError, RecursionError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        self._send(HTTPStatus.OK, b"{}", "application/json")

    def _place(self, path: str) -> str | None:
        """Return the path behind the token; None, with an answer sent, for strangers."""
        begin = f"/{self.server.token}/"
        known = self.headers.get("Host", "") in self.server.hosts
        if known and secrets.compare_digest(path[: len(begin)].encode(), begin.encode()):
            return path[len(begin) :]
        self._refuse(HTTPStatus.FORBIDDEN, "open the address that kvgym watch has printed")
        return None

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self.close_connection = True  # what else was sent is not read
        self._send(status, text.encode(), "text/plain; charset=utf-8")

    def _send(
        self, status: HTTPStatus, content: bytes, kind: str, policy: str = "default-src 'none'"
    ) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind, "Content-Length": str(len(content)), "Content-Security-Policy": policy,
            "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY", **({"Connection": "close"} if self.close_connection else {}),
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def handle(self) -> None:
        """Serve a connection; a browser may end it at any time."""
        try:
            super().handle()
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""


class WatchServer(ThreadingHTTPServer):
    """Serves the page of a source.

    Args:
        source: the source; its thread runs from :meth:`start` to :meth:`close`.
        port: port on 127.0.0.1; 0 chooses a free one.

    Attributes:
        url: address of the page.

    Raises:
        KVGymError: the port cannot be used.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, source: Source, port: int = 0) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise KVGymError(
                f"port {port} of {HOST} cannot be used: {error.strerror}; choose another, or 0"
            ) from None
        self.source, self.token = source, secrets.token_urlsafe(16)
        number = self.server_address[1]
        self.hosts = {f"{HOST}:{number}", f"localhost:{number}"}
        self.url = f"http://{HOST}:{number}/{self.token}/"
        self.page, self.script = page()
        self._running = [threading.Thread(target=f, daemon=True) for f in (source.run, self.serve_forever)]

    def start(self) -> None:
        """Start the source and the server in threads."""
        for thread in self._running:
            thread.start()

    def close(self) -> None:
        """End the source and the server."""
        self.source.stop()
        if self._running[1].is_alive():
            self.shutdown()
        self.server_close()
        if self._running[0].is_alive():
            self._running[0].join(5)
