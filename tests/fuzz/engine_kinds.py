"""Kind of input: requests, settings and policies inside vLLM's scheduler, over the stand-in for it."""

from __future__ import annotations

import functools
import logging
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuzz.kinds import Kind, refuse
from fuzz.user_kinds import Code, UserPolicy
from helpers.servers import fake_vllm
from helpers.servers.fake_vllm import MEMORY, Request, Status, configuration
from kvgym.integrations.vllm import Scheduler, deciding, mirror, releases
from kvgym.simulator.system import System

STEPS = 4000
"""Steps after which a request that is still in the server is stuck: all inputs need far fewer."""

MOST_LINES = 60
"""Most lines of the log: the first, the tenth, the hundredth … case of each kind."""

EMPTY = ("_arrivals", "_arrived", "_foreign", "_rows", "_order", "_ends", "requests", "running", "waiting")
"""Containers that hold nothing when no request is in the server."""

KINDS: dict[str, dict[str, Any]] = {
    "image": {"mm_features": ["an image"]}, "streamed": {"resumable": True}, "pooling": {"pooling_params": "some"},
    "grammar": {"status": Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR},
}  # fmt: skip
"""Requests that the policy does not see, or not yet."""


class _InTurn(UserPolicy):
    """Decides by a list of answers, one after the other."""

    def __init__(self, says: Any) -> None:
        super().__init__(says)
        self.turn = 0

    def schedule(self, view: Any) -> Any:
        turns = self.says.get("turns")
        if isinstance(turns, list) and turns:
            self.turn += 1
            says = turns[self.turn % len(turns)]
            if isinstance(says, dict) and isinstance(says.get("tokens"), dict):  # keys in files are texts
                tokens = {int(k) if k.isdecimal() else k: n for k, n in says["tokens"].items()}
                says = {**says, "tokens": tokens}
            self.says["schedule"] = says
        return super().schedule(view)


def engine_seeds() -> list[Any]:
    unit = {"kind": "affine", "constant": 1.0}
    one = {"name": "chat", "rate": 1.0, "prompt_len": 9, "output_len": 5}
    claims = {
        "predicted_len": 4,
        "predicted_low": 2,
        "predicted_high": 9,
        "ttft_slo": 1.5,
        "tbt_slo": 0.1,
        "class": "code",
    }
    trusted = {"batch_time": unit, "trust_requests": True, "predictions": "requests", "ttft_slo": 2.0}
    settings: list[Any] = [
        {"policy": "fcfs", "batch_time": unit, "patience": 5.0},
        {"policy": "mc_sf:protection=0.1", "batch_time": unit, "predictions": "max_tokens"},
        {**trusted, "policy": "mc_sf"},
        {**trusted, "policy": "slai", "hyperparameters": {"token_budget": 16}, "tbt_slo": 0.5},
        {**trusted, "policy": "wait", "classes": [one, {**one, "name": "code"}], "seed": 3},
        {**trusted, "policy": "mc_longest", "predictions": "fuzzed:predict", "upper_bounds": True},
        {**trusted, "policy": "vllm_v1:policy=priority"},
        {**trusted, "policy": "sarathi:token_budget=8"},
    ]  # fmt: skip
    requests = [
        {"id": "a", "prompt": 9, "output": 5, "max_tokens": 20, "priority": -3, "extra": claims},
        {"id": "b\n", "prompt": 20, "output": 12, "extra": {**claims, "class": "chat"}, "step": 2},
        {"id": "c", "prompt": 3, "output": 2, "step": 4, "hit": 2},
        {"id": "d", "prompt": 30, "output": 9, "step": 5, "extra": {"predicted_len": 0, "tbt_slo": "\nno"}},
    ]  # fmt: skip
    events = [
        {"step": 3, "do": "abort", "what": 1}, {"step": 4, "do": "pause"}, {"step": 6, "do": "resume"},
        {"step": 7, "do": "preempt"}, {"step": 8, "do": "clock", "what": -3600.0}, {"step": 9, "do": "ready"},
    ]  # fmt: skip
    answers: list[Any] = [
        {"schedule": {"raise": "key", "text": "x\ny"}},
        {"schedule": {"wait_until": float("inf")}},
        {"turns": [{"admit": [0, 1, 2]}, {"evict": [0]}, {"admit": [0], "tokens": {"0": 2}}]},
        {"turns": [{"admit": [0]}, {"tokens": {"0": 0}}, {}, {"raise": "exit", "text": "\x1b[2K"}]},
        {"reset": {"raise": "stop", "text": ""}},
        {"schedule": 1, "blocking": 0},
    ]
    engine = {"blocks": 20, "block_size": 4, "budget": 64, "seqs": 3, "ahead": False, "rows": 32}
    made = [{"settings": s, "requests": requests, "events": events, "engine": engine} for s in settings]
    made += [{**made[0], "policy": answer} for answer in answers]
    made += [
        {**made[5], "predict": {"it": answer}}
        for answer in ([2, 4, 9], {"raise": "exit", "text": "\n"}, "many")
    ]
    kinds = [{**request, "kind": kind} for request, kind in zip(requests, KINDS, strict=True)]
    made += [
        {**made[2], "requests": kinds},
        {**made[6], "engine": {**engine, "ahead": True}, "requests": requests * 3},
    ]
    return made


def play_engine(content: Any, folder: Path) -> None:
    content = content if isinstance(content, dict) else {}
    with pytest.MonkeyPatch.context() as patch:
        fake_vllm.install(patch)
        patch.delenv("KVGYM_VLLM", raising=False)
        releases.scheduler_class.cache_clear()
        patch.setattr(mirror, "System", functools.partial(System, stall_limit=50))
        answers = Code(content.get("predict"))
        patch.setitem(sys.modules, "fuzzed", SimpleNamespace(predict=lambda request: answers.answer("it")))
        engine = _dictionary(content.get("engine"))
        patch.setattr(deciding, "LEAST_ROWS", _whole(engine.get("rows"), 8, 64))
        if "policy" in content:
            policy = _InTurn(content["policy"])
            patch.setattr(deciding, "choose_policy", lambda _: (policy, policy.info.needs))
        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        deciding.logger.addHandler(handler)
        try:
            _Run(content, engine).play()
        finally:
            deciding.logger.removeHandler(handler)
    refuse(
        not all(line.isprintable() and len(line) < 500 for line in lines), "a message is more than one line"
    )
    refuse(len(lines) > MOST_LINES, "requests or policies fill the log")


class _Run:
    """A server with the requests and events of an input."""

    def __init__(self, content: dict[str, Any], engine: dict[str, Any]) -> None:
        numbers = {
            "blocks": _whole(engine.get("blocks"), 20, 60), "block_size": 4, "seqs": _whole(engine.get("seqs"), 1, 8),
            "budget": _whole(engine.get("budget"), 8, 200), "asynchronous": engine.get("ahead") is True,
        }  # fmt: skip
        self.blocks, self.ahead = numbers["blocks"], numbers["asynchronous"]
        self.clock = self.step = 0
        self.offset = 0.0  # of the clock that may be set
        self.scheduler: Any = Scheduler(configuration(content.get("settings"), **numbers), MEMORY)
        self.scheduler.now = lambda: float(self.clock)
        self.scheduler.wall = lambda: self.clock + self.offset
        self.scheduler._origin = 0.0
        self.requests = [_dictionary(request) for request in _listed(content.get("requests"))[:60]]
        self.events = [_dictionary(event) for event in _listed(content.get("events"))[:60]]
        self.names: set[str] = set()

    def play(self) -> None:
        """Serve all requests, and check that none is left."""
        scheduler, under_way = self.scheduler, deque[Any]()
        last = max([0, *(_whole(x.get("step"), 0, 50) for x in (*self.requests, *self.events))])
        while self.step <= last or scheduler.requests or under_way:
            refuse(self.step > STEPS, "requests stay in the server for ever")
            self._begin_step(self.step)
            self.step += 1
            output = scheduler.schedule()
            ran = bool(output.num_scheduled_tokens)
            if ran:
                under_way.append(output)
            else:
                self.clock += 1 + int(scheduler._usual_patience) // 4
            if under_way and (len(under_way) > self.ahead or not ran):
                self.clock += 1
                scheduler.update_from_output(under_way.popleft(), None)
        for name in EMPTY:
            refuse(bool(getattr(scheduler, name)), f"requests that have left are held in {name}")
        refuse(any(request is not None for request in scheduler._known), "requests that have left are held")
        refuse(len(scheduler._gone) > len(scheduler._known), "rows that have ended are held")
        refuse(scheduler.free != self.blocks, "blocks are not free")

    def _begin_step(self, step: int) -> None:
        scheduler = self.scheduler
        for request in self.requests:
            if _whole(request.get("step"), 0, 50) == step:
                self._add(request)
        for event in self.events:
            if _whole(event.get("step"), 0, 50) == step:
                self._do(_text(event.get("do")), event.get("what"))
        if step == 50:  # no request waits for ever for what comes from outside
            self._do("resume", None)
            self._do("ready", None)
        trusted = scheduler._reader._settings.trust_requests
        refuse(
            not trusted and bool(scheduler._mirror.workload["priority"].any()), "a claim of a request counts"
        )

    def _add(self, request: dict[str, Any]) -> None:
        """Add a request with the values that vLLM lets through."""
        name, scheduler = _text(request.get("id")), self.scheduler
        if name in self.names:  # vLLM makes ids unique
            return
        self.names.add(name)
        prompt = _whole(request.get("prompt"), 1, 40)
        made = Request(
            name, prompt, _whole(request.get("output"), 1, 20), scheduler.wall(),
            priority=_whole(request.get("priority"), -(2**63), 2**63 - 1),
            max_tokens=_whole(request.get("max_tokens", 30), 1, 40),
        )  # fmt: skip
        made.hit = _whole(request.get("hit"), 0, prompt - 1)
        made.sampling_params.extra_args = request.get("extra")
        vars(made).update(KINDS.get(_text(request.get("kind")), {}))
        scheduler.add_request(made)

    def _do(self, what: str, value: Any) -> None:
        """Let something happen to the server from outside."""
        scheduler = self.scheduler
        if what == "abort":
            names = list(scheduler.requests)
            for name in names[: _whole(value, 0, len(names))]:
                scheduler.finish_requests(name, Status.FINISHED_ABORTED)
        elif what in ("pause", "resume"):
            scheduler._pause_state.name = "PAUSED_NEW" if what == "pause" else "UNPAUSED"
        elif what == "preempt" and scheduler.running:
            scheduler._preempt_request(scheduler.running.pop(), 0.0)
        elif what == "clock":
            self.offset += _whole(value, -(10**6), 10**6)
        elif what == "ready":
            for request in scheduler.requests.values():
                if scheduler._is_blocked_waiting_status(request.status):
                    request.status = Status.WAITING


def _whole(value: Any, low: int, high: int) -> int:
    """Return a whole number within limits; other values are the low one."""
    usual = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return min(max(int(value), low), high) if usual else low


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "odd"


def _dictionary(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


VLLM = Kind("vllm", engine_seeds, play_engine, odd=True, weight=2)
