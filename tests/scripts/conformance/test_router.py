"""Decisions of SGLang's router, recorded by ``scripts/conformance router --freeze``, are still those of kvgym's."""

from dataclasses import replace
from pathlib import Path

import pytest
from conformance import router

RECORDED = Path(__file__).parent / "routing" / "sglang-router-0.3.2.jsonl"

ROUTER = """
import http.server, json, sys, urllib.request

class Router:
    def __init__(self, args): self.args = args

    @classmethod
    def from_args(cls, args): return cls(args)

    def start(self):
        urls, loads = self.args.worker_urls, {url: 0 for url in self.args.worker_urls}

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_): pass
            def answer(self, value):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())
            def do_GET(self):
                self.answer({"workers": [{"url": u, "load": loads[u], "is_healthy": True} for u in urls]})
            def do_POST(self):
                body, url = self.rfile.read(int(self.headers["Content-Length"])), min(urls, key=loads.get)
                loads[url] += 1
                urllib.request.urlopen(urllib.request.Request(url + "/generate", body)).read()
                loads[url] -= 1
                self.answer({})

        http.server.ThreadingHTTPServer((self.args.host, self.args.port), Handler).serve_forever()
"""


def test_recorded_decisions_are_equal():
    decisions = router.read(RECORDED)
    assert {decision.kind for decision in decisions} == {"loads differ", "match", "no match"}
    assert all(decision.equals(router.play(decision)) for decision in decisions)
    text = router.described(decisions)
    assert text.startswith(f"{len(decisions)} decisions, {len(decisions)} equal\n")
    assert "no match: 16 of 16" in text


def test_other_settings_are_noticed():
    decisions = router.read(RECORDED)
    for change in ({"threshold": 1.0}, {"threshold": 0.0}, {"absolute": 0, "ratio": 1.0}):
        assert not all(d.equals(router.play(replace(d, **change))) for d in decisions)


def test_a_file_is_read_as_it_was_written(tmp_path):
    decisions = router.read(RECORDED)
    router.write(tmp_path / "copy", "0.3.2", decisions)
    assert (tmp_path / "copy").read_bytes() == RECORDED.read_bytes()
    assert len(router.choose(decisions, 3)) == 9


def test_decisions_are_recorded_one_by_one(tmp_path, capsys):
    """A router that takes the fewest requests, in place of SGLang's."""
    package = tmp_path / "sglang_router"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "router_args.py").write_text("from types import SimpleNamespace as RouterArgs\n")
    (package / "router.py").write_text(ROUTER)
    with pytest.raises(SystemExit) as stopped:
        router.main(["--source", str(tmp_path), "--decisions", "30", "--freeze", str(tmp_path / "file")])
    assert stopped.value.code == 1  # matches do not decide there
    text = capsys.readouterr().out
    assert text.startswith("sglang-router 0.3.2: 30 decisions, ")
    found = router.read(tmp_path / "file")
    assert found
    assert all(d.open[d.chosen] == min(d.open) for d in found)


def test_a_router_that_does_not_start_is_explained(tmp_path):
    with pytest.raises(SystemExit, match="error: the router does not start"):
        router.main(["--source", str(tmp_path), "--decisions", "1"])
