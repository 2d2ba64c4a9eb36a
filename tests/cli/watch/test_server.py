"""The server of live pages over HTTP: the page, states, control, and access."""

from __future__ import annotations

import http.client
import json
import re
import socket

import pytest

from kvgym.cli.watch.server import HOST, LARGEST, WatchServer
from kvgym.errors import KVGymError


def ask(server, path="", method="GET", body=None, **headers):
    """Return status, headers and text of an answer."""
    connection = http.client.HTTPConnection(HOST, server.server_address[1], timeout=30)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read().decode()
    connection.close()
    return found


@pytest.fixture
def server(live_run, serve):
    return serve(live_run())


def test_the_page_loads_nothing_else(server):
    status, headers, text = ask(server, f"/{server.token}/")
    assert status == 200
    assert headers["Content-Type"].startswith("text/html")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert server.script in policy
    assert headers["Cache-Control"] == "no-store"
    assert not re.search(r"(src|href)=|@import|url\((?!#)", text)
    assert "http" not in text.replace("http://www.w3.org", "")


def test_states_and_control(server):
    place = f"/{server.token}/"
    state = json.loads(ask(server, f"{place}state")[2])
    while state["status"] != "finished":
        known = f"version={state['version']}&epoch={state['epoch']}&rows=0"
        state = json.loads(ask(server, f"{place}state?{known}")[2])
    assert dict(state["tiles"])["Finished"] == "20 of 20"
    assert ask(server, f"{place}control", "POST", json.dumps({"speed": 3}))[0] == 200
    assert server.source.speed == 3
    for wrong in (b"{}", b"[", b'{"speed": -1}', b"x" * (LARGEST + 1), b"[" * 900):
        assert ask(server, f"{place}control", "POST", wrong)[0] == 400
    for wrong in ("version=x", "version=1", "version=1&epoch=0&rows=-1"):
        assert ask(server, f"{place}state?{wrong}")[0] == 400
    assert ask(server, f"{place}other")[0] == ask(server, f"{place}state", "POST", "{}")[0] == 404


def test_strangers_get_nothing(server):
    """Without the token, or by the name of another site that resolves to this machine (DNS rebinding)."""
    port, place = server.server_address[1], f"/{server.token}/"
    for path in ("/", "/state", f"/{server.token}", f"/{'x' * len(server.token)}/"):
        assert ask(server, path)[0] == 403
    for name in (f"evil.example:{port}", HOST, f"{HOST}:{port + 1}", ""):
        for path, method in ((place, "GET"), (f"{place}state", "GET"), (f"{place}control", "POST")):
            status, _, text = ask(server, path, method, "{}" if method == "POST" else None, Host=name)
            assert (status, text) == (403, "open the address that kvgym watch has printed")
    assert ask(server, place, Host=f"localhost:{port}")[0] == 200
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, place, "PUT")[0] == 501


@pytest.mark.parametrize(
    "sent",
    [
        "GET http://[::1/ HTTP/1.1\r\n\r\n",
        "POST /{}/control HTTP/1.1\r\nHost: {}\r\nContent-Length: " + "9" * 5000 + "\r\n\r\n",
    ],
)
def test_requests_of_all_forms(server, capfd, sent):
    name = f"{HOST}:{server.server_address[1]}"
    with socket.create_connection((HOST, server.server_address[1]), timeout=30) as connection:
        connection.sendall(sent.format(server.token, name).encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    assert capfd.readouterr().err == ""


def test_a_used_port(server, live_run):
    with pytest.raises(KVGymError, match=r"port \d+ of 127.0.0.1 cannot be used: .*; choose another, or 0"):
        WatchServer(live_run(), server.server_address[1])


def test_every_server_has_another_token(server, live_run, serve):
    assert len({server.token, *(serve(live_run()).token for _ in range(3))}) == 4
