"""The mock server: its answers are OpenAI's, its times the simulator's."""

import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

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


def opened(method, url, body=None):
    """Return the answer to a request, whichever status it has."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    try:
        return urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=60)
    except urllib.error.HTTPError as error:
        return error


def events(answer):
    """Return the data of a stream, and the seconds at which it came."""
    found = []
    for line in map(bytes.decode, answer):
        if line := line.strip():
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
    with opened("POST", url, body) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        found = events(answer)
    *tokens, usage, done = [text for _, text in found]
    assert done == "[DONE]"
    assert json.loads(usage)["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
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
    text = opened("GET", Target.of(server.url).metrics_url).read().decode()
    assert Counters.of(text) == Counters(0.0, 400, 0.0)
    assert json.load(opened("GET", f"{server.url}/models"))["data"][0]["speed"] == 2.0


def test_clients_that_leave_disturb_no_other(server):
    with opened("POST", f"{server.url}/completions", {"prompt": "a", "max_tokens": 100, "stream": True}):
        pass
    answer = opened("POST", f"{server.url}/completions", {"prompt": "a", "max_tokens": 3})
    assert json.load(answer)["usage"]["completion_tokens"] == 3


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
    answer = opened(method, f"{server.url.removesuffix('/v1')}{path}", content.encode() or None)
    assert answer.status == status
    assert words in json.load(answer)["error"]["message"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nx", 413),
        (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 400),
        (b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
        (b"HEAD /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    ],
)
def test_requests_of_all_forms(server, capfd, sent, status):
    host, _, port = server.url.split("/")[2].partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(sent)
        assert connection.recv(1000).split()[1] == b"%d" % status
    assert opened("GET", f"{server.url}/models").status == 200
    assert capfd.readouterr().err == ""


def test_silent_connections_and_slow_bodies_end(server, monkeypatch):
    monkeypatch.setattr("kvgym.servers.endpoint.mock.PATIENCE", 0.2)
    host, _, port = server.url.split("/")[2].partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        assert connection.recv(100) == b""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_metrics_have_the_types_of_vllm(server):
    before = opened("POST", f"{server.url}/completions", {"prompt": "a b c", "max_tokens": 4}).read()
    assert before
    text = opened("GET", Target.of(server.url).metrics_url).read().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    types = {name: family.type for name, family in families.items()}
    assert types["vllm:kv_cache_usage_perc"] == types["vllm:num_requests_running"] == "gauge"
    for name in (
        "num_preemptions",
        "prompt_tokens",
        "generation_tokens",
        "prefix_cache_hits",
        "request_success",
    ):
        assert types[f"vllm:{name}"] == "counter"

    def values(name):
        (family,) = [family for family in families.values() if name.startswith(family.name)]
        return [sample.value for sample in family.samples if sample.name == name]

    assert values("vllm:generation_tokens_total") == [4]
    assert values("vllm:prompt_tokens_total") == [3]
    assert values("vllm:time_to_first_token_seconds_count") == [1]
    assert values("vllm:inter_token_latency_seconds_count") == [3]
    assert values("vllm:inter_token_latency_seconds_sum") == [pytest.approx(0.06)]
    assert values("vllm:e2e_request_latency_seconds_sum")[0] >= 0.08


def test_the_prefix_cache_hits_equal_text():
    cached = replace(SYSTEM, prefix_cache="scheduled")
    server = MockServer(OnlineRun(cached, make_policy("fcfs"), most=20), speed=100.0)
    server.start()
    try:
        first = " ".join(f"w{i}" for i in range(40))
        found = []
        turns = (first, first, f"{first} token token token token more", "x " + first)
        for prompt in turns:
            answer = opened("POST", f"{server.url}/completions", {"prompt": prompt, "max_tokens": 10})
            found.append(json.load(answer)["usage"]["prompt_tokens_details"]["cached_tokens"])
        # Blocks of 16: 40 + 10 tokens are 3 full blocks, of which a prompt of 40 has 2, and the third turn has
        # 40 + 4 of them, so again 2; another beginning has none.
        assert found == [0, 32, 32, 0]
        longer = f"{first}{' token' * 8} more"  # with the third block: 40 + 8 = 48
        answer = opened("POST", f"{server.url}/completions", {"prompt": longer, "max_tokens": 10})
        assert json.load(answer)["usage"]["prompt_tokens_details"]["cached_tokens"] == 48
        text = opened("GET", Target.of(server.url).metrics_url).read().decode()
        assert 'vllm:prefix_cache_hits_total{engine="0",model_name="kvgym"} 112.0' in text
    finally:
        server.close()


def test_a_run_has_an_end():
    server = MockServer(OnlineRun(SYSTEM, make_policy("fcfs"), most=1), speed=100.0)
    server.start()
    try:
        body = {"prompt": "a", "max_tokens": 1}
        assert opened("POST", f"{server.url}/completions", body).status == 200
        assert opened("POST", f"{server.url}/completions", body).status == 503
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
