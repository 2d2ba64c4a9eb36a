"""Kinds of input: return values and exceptions of user code, and arguments of public functions."""

from __future__ import annotations

import functools
import inspect
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fuzz.kinds import Kind
from kvgym.errors import ConfigError
from kvgym.policies.policy import Decision, Policy, PolicyInfo
from kvgym.policies.routing import Router, RouterInfo
from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel
from kvgym.simulator.observer import Observer

RAISED: dict[str, Any] = {
    "key": KeyError, "stop": StopIteration, "exit": SystemExit, "recursion": RecursionError, "system": OSError,
    "generator": GeneratorExit, "division": ZeroDivisionError, "unicode": UnicodeError, "assertion": AssertionError,
}  # fmt: skip
"""Exceptions by name."""


class Code:
    """User code with methods that raise or return what the input specifies, and valid values by default."""

    def __init__(self, says: Any) -> None:
        self.says = says if isinstance(says, dict) else {}

    def answer(self, method: str, usual: Any = None) -> Any:
        found = self.says.get(method, usual)
        if isinstance(found, dict) and isinstance(found.get("raise"), str):
            raise RAISED.get(found["raise"], ValueError)(found.get("text"))
        return found


class UserPolicy(Policy, Code):
    info = PolicyInfo(
        name="fuzzed", summary="behaves as the input specifies", evicts=True, chunks_prefill=True
    )

    def reset(self, system: Any) -> None:
        self.answer("reset")

    def schedule(self, view: Any) -> Any:
        first = view.waiting.request_id[:1].tolist() if view.num_active < 2 else []
        found = self.answer("schedule", {"admit": first} if view.iteration % 3 else {})
        if isinstance(found, dict) and found.keys() <= Decision.__dataclass_fields__.keys():
            return Decision(**found)
        return found

    def blocking(self, view: Any) -> Any:
        return self.answer("blocking")


class _Router(Router, Code):
    info = RouterInfo(name="fuzzed", summary="behaves as the input specifies")
    reassigns = sheds = True

    def reset(self, num_workers: int, seed: Any) -> None:
        self.answer("reset")

    def route(self, view: Any) -> Any:
        return self.answer("route", view.candidates[0])

    def reassign(self, view: Any) -> Any:
        return self.answer("reassign")


class _Observer(Observer, Code):
    def joined(self, *arguments: Any) -> None:
        self.answer("joined")

    def moved(self, *arguments: Any) -> None:
        self.answer("moved")

    def decided(self, *arguments: Any) -> None:
        self.answer("decided")

    def ran(self, *arguments: Any) -> None:
        self.answer("ran")

    def waited(self, *arguments: Any) -> None:
        self.answer("waited")

    def ended(self, *arguments: Any) -> None:
        self.answer("ended")


@batch_time_kernel
def sum_of(load: Any, params: Any) -> float:
    total = 0.0
    for k in range(len(params)):
        total += params[k]
    return total


class _Model(BatchTimeModel, Code):
    kernel = sum_of

    def params(self) -> Any:
        return self.answer("params", np.ones(1))


def user_seeds() -> list[Any]:
    failing: dict[str, tuple[str, ...]] = {
        "policy": ("reset", "schedule", "blocking"), "router": ("reset", "route", "reassign"), "model": ("params",),
        "observer": ("joined", "decided", "ran", "ended"),
    }  # fmt: skip
    raising = [
        {part: {method: {"raise": name, "text": "x"}}, "workers": workers}
        for part, methods in failing.items()
        for method in methods
        for name, workers in (("key", 1), ("stop", 2))
    ]
    decision = {"admit": [0, 1], "evict": [], "tokens": {}, "wait_until": None, "put_back": 0}
    answers: list[Any] = [
        {"policy": {"schedule": decision}},
        {"policy": {"schedule": {"evict": [0], "wait_until": 3.5}}},
        {"policy": {"schedule": {}, "blocking": 1}},
        {"router": {"route": 1}, "workers": 2},
        {"router": {"reassign": [0, 1]}, "workers": 2},
        {"model": {"params": [0.5]}},
        {"model": {"params": [0.5, 1e-3]}, "workers": 2},
        {
            "workers": 2,
            "fleet": {"failures": {"mtbf": "5s", "repair": 0.5, "at": [[1, 0]]}, "keep_tokens": True},
        },
        {
            "workers": 2,
            "fleet": {"failures": {"at": [[1, 0], [2.5, 1]]}, "on_loss": "fail", "retry_delay": "1s"},
        },
        {
            "workers": 2,
            "fleet": {"users": {"patience": 1.5, "again": {"probability": 0.5, "delay": 1, "most": 2}}},
        },
        {"workers": 2, "fleet": {"users": {"again": {"most": 3}}}, "router": {"route": -2}},
        {},
    ]
    return [*raising, *answers]


def _fleet(settings: Any) -> Any:
    """Return a fleet of two places with these settings; None without any."""
    from kvgym.experiments.fleet.groups import FleetSettings
    from kvgym.simulator.fleet import Pool

    if not isinstance(settings, dict):
        return None
    try:
        given = FleetSettings.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(f"fleet: {error.error_count()} fields are wrong") from None
    return given.fleet((Pool(2, most=2, least=1, startup=0.5, drain_limit=1.0),))


def play_user(content: Any, folder: Path) -> None:
    from kvgym.metrics.compute import compute_metrics
    from kvgym.policies.runner import simulate
    from kvgym.simulator.system import System
    from kvgym.workloads.table import RequestTable

    content = content if isinstance(content, dict) else {}
    clustered = isinstance(content.get("workers"), int) and content["workers"] > 1
    table = RequestTable([0, 0, 0.5, 2, 2], [4] * 5, [3, 2, 2, 5, 1])
    system = System(40, _Model(content.get("model")), stall_limit=20, horizon=1e9)
    if clustered:
        system = replace(system.replicate(2), fleet=_fleet(content.get("fleet")))
    simulated = simulate(
        system,
        table,
        UserPolicy(content.get("policy")),
        router=_Router(content.get("router")) if clustered else None,
        observer=_Observer(content["observer"]) if "observer" in content else None,
    )
    compute_metrics(simulated)


USER = Kind("user", user_seeds, play_user, odd=True, weight=3)


@functools.cache
def calls() -> dict[str, tuple[Any, Any, dict[str, Any]]]:
    """Return public functions by name, with the names of their arguments and valid values of some."""
    from helpers.public_calls import ELSEWHERE, PUBLIC, RUNS, parameters_of

    found = {}
    for name, function in PUBLIC.items():
        named, needed = parameters_of(name)
        slow = name.partition(":")[2] in RUNS
        tried = [p.name for p in named if p.name not in ELSEWHERE and (p.name in needed or not slow)]
        if tried:
            found[name] = function, tried, needed
    return found


def call_seeds() -> list[Any]:
    return [{"call": name, "give": {part: None}} for name, (_, tried, _) in calls().items() for part in tried]


def play_call(content: Any, folder: Path) -> None:
    """Call a function with valid arguments, except for the given ones; ignore names that it does not have."""
    content = content if isinstance(content, dict) else {}
    name, given = content.get("call"), content.get("give")
    if not isinstance(name, str) or name not in calls() or not isinstance(given, dict):
        return
    function, tried, needed = calls()[name]
    chosen = {part: value for part, value in given.items() if part in tried}
    if not chosen:
        return
    before = Path.cwd()
    inside = folder / "here"  # paths may lead one folder up
    inside.mkdir(parents=True, exist_ok=True)
    os.chdir(inside)
    try:
        made = function(**{**needed, **chosen})
        if inspect.isgenerator(made):
            next(made, None)
    finally:
        os.chdir(before)


CALL = Kind("call", call_seeds, play_call, odd=True, weight=3, quick=False)
