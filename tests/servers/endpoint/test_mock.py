"""The mock server: its answers are OpenAI's, its times the simulator's."""

import http.client
import json
import time

import httpx
import pytest

from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError, KVGymError
from kvgym.policies.policy import make_policy
from kvgym.servers.endpoint.mock import MockServer, asked
from kvgym.servers.endpoint.online import OnlineRun
from kvgym.servers.endpoint.target import Counters, Target
from kvgym.simulator.system import System

SYSTEM = System(kv_capacity=400, block_size=16, batch_time=AffineBatchTime(constant=0.02))


@pytest.fixture
def server():
    made = MockServer(OnlineRun(SYSTEM, make_policy("fcfs"), most=20), model="m", speed=2.0)
    made.start()
    yield made
    made.close()


def events(answer):
    """Return the data of a stream, and the seconds at which it came."""
    found = []
    for line in answer.iter_lines():
        if line:
            assert line.startswith("data: ")
            found.append((time.perf_counter(), line.removeprefix("data: ")))
    return found


@pytest.mark.parametrize("chat", [False, True])
def test_streams(server, chat):
    prompt = {"messages": [{"role": "user", "content": "a b c"}]} if chat else {"prompt": "a b c"}
    body = {
        **prompt,
        "model": "any",
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    url = f"{server.url}/{'chat/' if chat else ''}completions"
    started = time.perf_counter()
    with httpx.stream("POST", url, json=body) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        found = events(answer)
    *tokens, usage, done = [text for _, text in found]
    assert done == "[DONE]"
    assert json.loads(usage)["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    choices = [json.loads(text)["choices"][0] for text in tokens]
    assert [(c["delta"]["content"] if chat else c["text"]) for c in choices] == [" token"] * 5
    assert [c["finish_reason"] for c in choices] == [None] * 4 + ["length"]
    assert found[0][0] - started > 0.009  # a batch of 20 ms at twice real time
    assert found[4][0] - started > 0.049


def test_whole_answers_on_one_connection(server):
    connection = http.client.HTTPConnection(server.url.split("/")[2])
    for prompt, length in (("a b", 2), ([1, 2, 3], 3), ([[1, 2, 3, 4]], 4)):
        connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 2}))
        answer = json.load(connection.getresponse())
        assert answer["usage"]["prompt_tokens"] == length
        assert answer["choices"][0]["text"] == " token token"
    connection.request("GET", "/health")
    assert connection.getresponse().read() == b"{}"
    connection.close()


def test_counters(server):
    text = httpx.get(Target.of(server.url).metrics_url).text
    assert Counters.of(text) == Counters(0.0, 400, 0.0)
    assert httpx.get(f"{server.url}/models").json()["data"][0]["speed"] == 2.0


def test_clients_that_leave_disturb_no_other(server):
    with httpx.stream(
        "POST", f"{server.url}/completions", json={"prompt": "a", "max_tokens": 100, "stream": True}
    ):
        pass
    answer = httpx.post(f"{server.url}/completions", json={"prompt": "a", "max_tokens": 3})
    assert answer.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "words"),
    [
        ("GET", "/nothing", "", 404, "valid are POST /v1/completions"),
        ("POST", "/v1/completions", "{", 400, "not JSON"),
        ("POST", "/v1/completions", "[]", 400, "JSON object"),
        ("POST", "/v1/completions", '{"prompt": {"a": 1}}', 400, "expected a text"),
        ("POST", "/v1/chat/completions", '{"messages": 3}', 400, "messages"),
        ("POST", "/v1/completions", '{"prompt": "a", "max_tokens": -1}', 400, "max_tokens = -1"),
        ("POST", "/v1/completions", '{"prompt": "a", "n": 2}', 400, "n must be 1"),
        ("POST", "/v1/completions", '{"prompt": "a", "max_tokens": 400}', 400, "can never be served"),
    ],
)
def test_requests_that_have_no_answer(server, method, path, content, status, words):
    answer = httpx.request(method, f"{server.url.removesuffix('/v1')}{path}", content=content)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_bytes_that_are_no_http(server):
    import socket

    host, _, port = server.url.split("/")[2].partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"hello\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert httpx.get(f"{server.url}/models").status_code == 200


def test_a_run_has_an_end():
    server = MockServer(OnlineRun(SYSTEM, make_policy("fcfs"), most=1), speed=100.0)
    server.start()
    try:
        body = {"prompt": "a", "max_tokens": 1}
        assert httpx.post(f"{server.url}/completions", json=body).status_code == 200
        assert httpx.post(f"{server.url}/completions", json=body).status_code == 503
    finally:
        server.close()


def test_ports_and_speeds(server):
    run = OnlineRun(SYSTEM, make_policy("fcfs"), most=1)
    with pytest.raises(KVGymError, match="choose another"):
        MockServer(run, port=int(server.url.split(":")[2].split("/")[0]))
    with pytest.raises(ConfigError, match="speed = -1"):
        MockServer(run, speed=-1)


def test_parts_of_messages_count():
    content = [{"type": "text", "text": "a b"}, {"type": "text", "text": "c"}]
    body = {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": content}]}
    found = asked(json.dumps({**body, "max_completion_tokens": 7}).encode(), chat=True)
    assert (found.prompt_len, found.output_len, found.stream, found.usage) == (4, 7, False, False)
