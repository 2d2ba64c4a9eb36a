"""Servers that misbehave: every request has a row, with a reason where it cannot be compared."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import Counter

import numpy as np
import pytest

from kvgym.errors import LIMIT, ConfigError
from kvgym.servers.endpoint.client import Measured, lateness, meet, read_counters, send
from kvgym.servers.endpoint.log import RequestLog, notes, save_observed
from kvgym.servers.endpoint.prompts import Conversations, Prompts
from kvgym.servers.endpoint.target import Counters, Target
from kvgym.servers.validation.log_formats import parse_log
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

KEY = "sk-very-secret"


def stream(*events, done=True):
    """Return a whole answer of server-sent events, each in a packet of its own."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n"
    data = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return [head, *(f"data: {text}\n\n".encode() for text in data), *([b"data: [DONE]\n\n"] if done else [])]


def plain(status, content):
    body = content if isinstance(content, str) else json.dumps(content)
    return [f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()]


def text(words="a b"):
    return {"choices": [{"text": words, "finish_reason": None}]}


def usage(prompt, output):
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}


class Fake:
    """A server that answers by a function of the request's JSON, a list of packets; None = no answer at all."""

    def __init__(self, answer, metrics=""):
        self.answer, self.metrics, self.seen = answer, metrics, []
        self.models = {"data": [{"id": "m/8b"}, {"id": "other"}]}
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=300)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.listen, daemon=True).start()

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # also wakes accept()
        self.socket.close()

    def listen(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.serve, args=self.socket.accept()[:1], daemon=True).start()

    def serve(self, connection):
        with connection, connection.makefile("rb") as file, contextlib.suppress(OSError):
            first, headers = file.readline().decode().split(), {}
            while line := file.readline().decode().strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = file.read(int(headers.get("content-length", 0)))
            self.seen.append((first, headers, body))
            if first[1] == "/v1/models":
                packets = plain("200 OK", self.models)
            elif first[1] == "/metrics":
                packets = plain("200 OK" if self.metrics else "404 Not Found", self.metrics)
            else:
                packets = self.answer(json.loads(body))
            for packet in packets or ():
                connection.sendall(packet)
                threading.Event().wait(0.02)  # a busy machine reads packets that come sooner as one
            if packets is None:
                threading.Event().wait(5)


@pytest.fixture
def fake():
    made = []

    def make(*arguments):
        made.append(Fake(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


def words(given):
    return len((given.get("prompt") or given["messages"][0]["content"]).split())


def good(given):
    """A server with two tokens per word, seven more per prompt, and several tokens per event."""
    return stream(text(), text(""), text(), usage(7 + 2 * words(given), given["max_tokens"]))


def observe(server, prompts=(40,), outputs=(4,), apart=0.01, **options):
    table = RequestTable.from_columns(
        arrival_time=np.arange(len(prompts)) * apart, prompt_len=prompts, output_len=outputs
    )
    found: list[Measured] = []
    send(server, table, found=found, **options)
    return found


def test_lengths_are_reached_without_a_tokenizer(fake):
    server = fake(good)
    met = meet(Target.of(server.url, key=KEY))
    assert met.target.model == "m/8b"
    assert (met.prompts.tokens_per_word, met.prompts.fixed_tokens) == (2, 7)
    assert (met.speed, met.simulated, met.ignore_eos) == (1.0, False, True)
    found = observe(met, (107, 7, 57), (5, 5, 5))
    assert [each.prompt_len for each in found] == [107, 9, 57]  # at least one word
    assert [each.reason for each in found] == [""] * 3
    for each in found:
        row = each.row()
        assert 0 < row["ttft"] < row["e2e_latency"]
        assert len(row["gaps"]) == 1  # the event without text brought no token
    body = json.loads(server.seen[-1][2])
    assert (body["max_tokens"], body["stream"], body["ignore_eos"]) == (5, True, True)
    assert body["stream_options"] == {"include_usage": True}
    assert all(headers["authorization"] == f"Bearer {KEY}" for _, headers, _ in server.seen)


def answers_then(rest):
    """Two good answers for the probes, then others."""
    count = iter(range(10**6))
    return lambda given: good(given) if next(count) < 2 else rest(given)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda _: plain("500 Oops", {"error": {"message": f"out of memory with {KEY}"}}),
         "HTTP 500: out of memory with ***"),
        (lambda _: plain("503 Busy", "<html>busy</html>"), "HTTP 503: <html>busy</html>"),
        (lambda _: stream(text(), text()), "no usage in the answer"),
        (lambda _: stream(text(), done=False), "broken off: the stream ended early"),
        (lambda _: stream(usage(9, 0)), "no output tokens"),
        (lambda _: stream(text(), usage(9, 40)), "the answer came in one piece"),
        (lambda _: stream("{", done=False), "an event of the stream is not a JSON object"),
        (lambda _: stream(text(), usage(9, -1)), "an event of the stream has a wrong usage.completion_tokens: Input"),
        (lambda _: stream('{"usage": {"prompt_tokens": ' + "9" * 5000 + "}}"), "an event of the stream"),
        (lambda _: stream({"choices": {}}), "an event of the stream has a wrong choices: Input"),
        (lambda _: plain("302 Found\r\nLocation: http://elsewhere/", ""), "HTTP 302: it sends on to http://elsewhere/"),
        (lambda _: plain("200 OK\r\nContent-Encoding: gzip", "x"), "the answer is encoded (gzip), unasked"),
        (lambda _: plain("200 OK\r\nContent-Length: " + "9" * 5000, ""), "ClientResponseError"),
        (lambda _: [stream()[0], b"data: " + b"x" * (1 << 21)], "an event of the stream has more than 1,048,576 bytes"),
        (lambda _: stream("[1]"), "an event of the stream is not a JSON object"),
        (lambda _: stream(text(), {"error": {"message": KEY}}), "error in the stream: ***"),
        (lambda _: plain("200 OK", usage(9, 4)), "the answer was not streamed"),
        (lambda _: [], "broken off"),
        (lambda _: None, "no complete answer within 0.3 s"),
    ],
)  # fmt: skip
def test_reasons(fake, tmp_path, answer, reason):
    met = meet(Target.of(fake(answers_then(answer)).url, key=KEY))
    (found,) = observe(met, timeout=0.3 if "0.3 s" in reason else 60)
    expected = "ServerDisconnectedError" if reason == "broken off" else reason
    assert found.reason.startswith(expected)
    assert found.row()["reason"] == found.reason
    with contextlib.closing(RequestLog(tmp_path)) as log:
        log.add(found)
    save_observed(tmp_path, met, [found], (Counters(), Counters()), workload="w", command="c")
    about = json.loads((tmp_path / "observed.json").read_text())
    assert (about["sent"], about["complete"], about["num_evictions"]) == (1, 0, None)
    assert KEY not in (tmp_path / "observed.json").read_text() + (tmp_path / "requests.jsonl").read_text()


def test_a_server_that_dies_in_the_middle(fake, tmp_path):
    server = fake(answers_then(good))
    met = meet(Target.of(server.url))
    dying = iter(range(100))

    def answer(given):
        if next(dying) < 1:
            return good(given)
        server.close()
        return stream(text(), done=False)

    server.answer = answer
    found = observe(met, (40,) * 5, (4,) * 5, apart=0.05)
    assert found[0].reason == ""
    assert found[1].reason == "broken off: the stream ended early"
    assert found[1].row()["ttft"] > 0
    assert found[4].reason.startswith("no connection")
    with contextlib.closing(RequestLog(tmp_path)) as rows:
        for each in found:
            rows.add(each)
    save_observed(tmp_path, met, found, (Counters(3), Counters(5)), workload="w", command="c")
    log = parse_log(tmp_path / "requests.jsonl")
    assert len(log.rows) == sum(not each.reason for each in found)
    assert log.num_evictions == 2


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (lambda _: plain("401 No", {"error": {"message": f"bad key {KEY}"}}),
         ("HTTP 401: bad key ***", "MY_KEY", "--api-key-env")),
        (lambda _: plain("404 No", {"message": "no such model"}), ("no such model", "--served-model", "--api chat")),
        (lambda _: plain("500 No", ""), ("HTTP 500",)),
        (lambda _: [b"SSH-2.0-OpenSSH\r\n"], ("ClientResponseError", "check that the server runs")),
    ],
)  # fmt: skip
def test_refusals_are_explained_before_anything_is_sent(fake, answer, parts):
    target = Target.of(fake(answer).url, key=KEY, key_variable="MY_KEY")
    with pytest.raises(ConfigError) as caught:
        meet(target)
    message = str(caught.value)
    assert len(message) <= LIMIT
    for part in parts:
        assert part in message
    assert KEY not in message
    assert KEY not in repr(target)


def test_servers_without_options(fake):
    def strict(given):
        return plain("400 No", "unknown field ignore_eos") if "ignore_eos" in given else good(given)

    met = meet(Target.of(fake(strict).url))
    assert not met.ignore_eos
    assert "ignore_eos" in notes(met, [], (Counters(), Counters()))[0]
    silent = meet(Target.of(fake(lambda _: stream(text(), text())).url))
    assert not silent.reports_usage
    assert silent.prompts == Prompts()


def test_counters_of_any_form_are_data(fake):
    text = (
        'vllm:num_preemptions_total{engine="0"} many\nvllm:request_success_total 1e400\n'
        f'vllm:cache_config_info{{block_size="{"9" * 5000}",num_gpu_blocks="2"}} 1\n'
    )
    found = read_counters(Target.of(fake(good, text).url))
    assert np.isnan([found.evictions, found.kv_capacity, found.answered]).all()


def test_counters_of_vllm(fake):
    text = (
        "# HELP vllm:num_preemptions_total x\n"
        'vllm:num_preemptions_total{engine="0",model_name="m"} 3.0\nvllm:num_preemptions_total{engine="1"} 4.0\n'
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="2588"} 1.0\n'
        'vllm:request_success_total{engine="0",finished_reason="stop"} 5.0\n'
        'vllm:request_success_total{engine="0",finished_reason="length"} 2.0\n'
    )
    assert read_counters(Target.of(fake(good, text).url)) == Counters(7.0, 41408, 7.0)
    nothing = read_counters(Target.of(fake(good).url))
    assert np.isnan([nothing.evictions, nothing.kv_capacity, nothing.answered]).all()
    assert np.isnan(read_counters(Target.of("http://127.0.0.1:9")).evictions)


@pytest.mark.parametrize(
    ("answered", "warm_up", "noted"), [(2, 0, True), (2, 297, True), (2, 298, False), (300, 0, False)]
)
def test_a_log_that_begins_at_the_start_of_the_server_is_noted(fake, answered, warm_up, noted):
    met = meet(Target.of(fake(good).url))
    found = [Measured(i, 0.0, (1, 1), arrival_time=0.0, warm_up=i < warm_up) for i in range(400)]
    said = " ".join(notes(met, found, (Counters(answered=answered), Counters())))
    assert ("begins at the server's start, after 2 requests" in said) is noted
    assert notes(met, found, (Counters(), Counters())) == []  # a server without counters


def test_lateness_is_noted():
    found = [Measured(i, float(i), (1, 1), arrival_time=i + (0.05 if i == 7 else 0.0)) for i in range(20)]
    assert lateness(found) == pytest.approx(0.05)
    assert lateness([]) == 0


@pytest.mark.parametrize(
    ("url", "api", "expected"),
    [
        ("http://localhost:8000", None, "http://localhost:8000/v1/completions"),
        ("http://localhost:8000/", "chat", "http://localhost:8000/v1/chat/completions"),
        ("https://host/v1/", None, "https://host/v1/completions"),
        ("https://host/v1/chat/completions", None, "https://host/v1/chat/completions"),
        ("https://host/x/v1/completions", "completions", "https://host/x/v1/completions"),
        ("https://host/openai", None, "https://host/openai/v1/completions"),
        ("https://host/v1beta/openai", None, "https://host/v1beta/openai/completions"),
    ],
)
def test_addresses(url, api, expected):
    assert Target.of(url, api=api).url == expected


def test_keys_that_no_header_takes_are_not_shown():
    with pytest.raises(ConfigError, match="MY_KEY") as caught:
        Target.of("http://host", key="sk-1\nsk-2", key_variable="MY_KEY")
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("models", ["<html>hello</html>", {"data": [{"id": 3}]}, {"data": {}}, "[" * 10**5])
def test_pages_are_no_lists_of_models(fake, models):
    server = fake(good)
    server.models = models
    with pytest.raises(ConfigError, match=r"no list of models; check the URL"):
        meet(Target.of(server.url))


def test_a_speed_is_only_that_of_the_mock_server(fake):
    for speed, owner in (("x", "kvgym server mock"), (-1, "kvgym server mock"), (3, "another")):
        server = fake(good)
        server.models = {"data": [{"id": "m", "owned_by": owner, "speed": speed}]}
        assert meet(Target.of(server.url)).speed == 1.0


def shared_table(**columns):
    """Return three requests, of which two begin with the same 32 tokens, and the third goes on after the first."""
    return RequestTable.from_columns(
        arrival_time=[0.0, 0.01, 0.02], prompt_len=[40, 40, 60], output_len=[8, 8, 8],
        hashes=BlockHashes.from_rows([[1, 2, 3], [1, 2, 4], [1, 2, 3, 5]], [48, 48, 64], 16), **columns,
    )  # fmt: skip


def test_equal_hashes_give_equal_text(fake):
    prompts = Prompts(tokens_per_word=1.6, fixed_tokens=5)
    first, second, third = (Conversations(prompts, shared_table()).first(i)[0].split() for i in range(3))
    assert [len(first), len(second), len(third)] == [
        22,
        22,
        34,
    ]  # round((40 - 5) / 1.6), round((60 - 5) / 1.6)
    assert first[:20] == second[:20] == third[:20]  # the two blocks end at word 32 / 1.6 = 20
    assert first[:22] == third[:22]
    assert first[20:] != second[20:]
    alone = [prompts.text(40, i).split() for i in range(2)]
    assert alone[0][:3] != alone[1][:3]


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_turns_of_closed_sessions_wait_for_the_answer_and_contain_it(fake, api):
    server = fake(good)
    met = meet(Target.of(server.url, api=api))
    table = shared_table(session_id=[0, 1, 0], turn=[1, 1, 2], think_time=[0.0, 0.0, 0.3])
    found: list[Measured] = []
    send(met, table, closed=True, found=found)
    by_number = {each.number: each for each in found}
    ended = by_number[0].token_times[-1]
    assert by_number[2].scheduled_time >= ended + 0.3
    assert by_number[2].arrival_time >= by_number[2].scheduled_time
    bodies = [json.loads(body) for *_, body in server.seen[-3:]]
    if api == "chat":
        first, last = bodies[0]["messages"], bodies[2]["messages"]
        assert [each["role"] for each in last] == ["user", "assistant", "user"]
        assert last[:2] == [*first, {"role": "assistant", "content": "a ba b"}]
    else:
        assert bodies[2]["prompt"].startswith(f"{bodies[0]['prompt']}a ba b ")


@pytest.mark.parametrize(
    ("url", "api"),
    [
        ("localhost:8000", None), ("ftp://host", None), ("http://", None), ("http://host:x", None), ("", None),
        ("http://host?key=1", None), ("http://me:pw@host", None), ("http://host#x", None),
        ("http://host/v1/completions", "chat"), ("http://host", "x"),
    ],
)  # fmt: skip
def test_addresses_that_are_none(url, api):
    with pytest.raises(ConfigError) as caught:
        Target.of(url, api=api)
    assert "pw" not in str(caught.value).replace("password", "")
    assert len(str(caught.value)) <= LIMIT


def test_200_answers_at_once_that_are_none(fake):
    odd = [
        lambda given: stream(text(), "{"),
        lambda given: [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000],
        lambda given: stream(text(), done=False),
        lambda given: plain("500 Oops", "no"),
        lambda given: [],
    ]
    count = iter(range(10**6))
    met = meet(Target.of(fake(answers_then(lambda given: odd[next(count) % 5](given))).url))
    found = observe(met, (20,) * 200, (4,) * 200, apart=0.0)
    reasons = Counter(each.reason[:20] for each in found)
    assert sum(reasons.values()) == 200
    assert "" not in reasons
    assert len(reasons) == 5
