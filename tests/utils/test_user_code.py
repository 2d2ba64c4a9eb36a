"""Exceptions of users' policies, routers, observers and models name function and line, run by run."""

from __future__ import annotations

import contextlib
import pickle
import re
import types
import warnings
from pathlib import Path

import pytest

from helpers import raising_code
from helpers.raising_code import (
    NoParams,
    OutOfRangeModel,
    Raising,
    RaisingModel,
    RaisingObserver,
    RaisingRouter,
    WritesOutside,
    WrongArguments,
    fail,
)
from kvgym import make_batch_time, make_policy, simulate
from kvgym.baselines.first_come import FCFS
from kvgym.errors import LIMIT, ConfigError, RunError, UserCodeError
from kvgym.experiments.comparison import compare
from kvgym.experiments.scenario import load_scenario
from kvgym.policies.policy import POLICIES
from kvgym.simulator.system import System
from kvgym.utils.registry import Sources, load_plugins
from kvgym.utils.user_code import calling, is_foreign
from kvgym.workloads.table import RequestTable

UNIT = make_batch_time({"kind": "unit"})
TABLE = RequestTable([0, 0.5, 2], [3] * 3, [3, 2, 2])
ONE = System(kv_capacity=20, batch_time=UNIT, stall_limit=5)
TWO = ONE.replicate(2)
FAILING = {
    "key": "KeyError: 'key'",
    "stop": "StopIteration",
    "exit": "SystemExit: 3",
    "generator": "GeneratorExit",
    "memory": "MemoryError: memory",
}
SMALL = load_scenario("a100-llama2-70b").override(workload={"preset": "lmsys", "num_requests": 20, "rate": 5})


def line_of(text: str) -> int:
    source = Path(raising_code.__file__).read_text("utf-8").splitlines()
    return next(k for k, line in enumerate(source, 1) if text in line)


def named(error: UserCodeError, text: str, what: str) -> None:
    """Check that a message names a line of the module that raises, and what was raised."""
    assert re.search(rf"raising_code\.py:{line_of(text)}\) raised {re.escape(what)}", str(error)), error
    assert len(str(error)) <= LIMIT
    sent = pickle.loads(pickle.dumps(error))
    assert (str(sent), sent.details) == (str(error), error.details)


@pytest.mark.parametrize("how", FAILING)
@pytest.mark.parametrize("at", ["reset", "schedule", "blocking"])
def test_errors_of_a_policy(at, how):
    line = {"stop": "return next(iter", "exit": "sys.exit"}.get(how, "KeyboardInterrupt, ")
    for system in (ONE, TWO):
        with pytest.raises(UserCodeError, match=r"^policy 'raising': fail \(") as found:
            simulate(system, TABLE, Raising(at=at, how=how))
        named(found.value, line, FAILING[how])
        assert f'self.reach("{at}")' in found.value.details
        assert (found.value.result is None) == (at == "reset")


def test_the_users_function_is_named_not_the_library_it_calls():
    with pytest.raises(UserCodeError) as found:
        simulate(ONE, TABLE, Raising(at="schedule", how="library"))
    named(found.value, "reshape(5)", "ValueError: cannot reshape")
    with pytest.raises(UserCodeError) as found:
        simulate(ONE, TABLE, WrongArguments())
    named(found.value, "def schedule(self):", "TypeError: ")


def test_interrupts_pass():
    with pytest.raises(KeyboardInterrupt):
        simulate(ONE, TABLE, Raising(at="schedule", how="interrupt"))
    for at in ("joined", "decided", "ran", "ended"):
        with pytest.raises(KeyboardInterrupt) as found:
            simulate(ONE, TABLE, "fcfs", observer=RaisingObserver(at, "interrupt"))
        assert not found.value.result.completed or at == "ended"


def test_a_run_without_memory_leaves_the_others_of_a_comparison(monkeypatch):
    with pytest.warns(RuntimeWarning, match="1 of 2 runs failed"):
        found = compare(SMALL, [Raising(at="schedule", how="memory"), "fcfs"], seeds=1)
    assert "raised MemoryError: memory" in found.errors()["raising:at=schedule,how=memory"]

    def reset(self, system):
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr(FCFS, "reset", reset)
    with pytest.warns(RuntimeWarning, match="1 of 2 runs failed"):
        found = compare(SMALL, ["fcfs", "sarathi"], seeds=1)
    assert "not enough memory: Unable to allocate 9 TiB" in found.errors()["fcfs"]
    assert found.runs[1].error == ""


def test_bugs_in_kvgym_are_not_blamed_on_users(monkeypatch):
    monkeypatch.setattr(FCFS, "reset", lambda self, system: fail("key"))
    with pytest.raises(KeyError):
        simulate(ONE, TABLE, "fcfs")
    assert not is_foreign(FCFS)
    assert not is_foreign(make_policy("fcfs"))
    assert is_foreign(fail)
    assert is_foreign(object())
    with pytest.raises(ConfigError, match="as it is"), calling(fail, "policy", "it"):
        raise ConfigError("as it is")


@pytest.mark.parametrize("at", ["reset", "route", "reassign", "compiled_rule"])
def test_errors_of_a_router(at):
    for how in ("key", "stop", "exit"):
        with pytest.raises(UserCodeError, match=r"^router 'raising': fail \(.* raised ") as found:
            simulate(TWO, TABLE, "fcfs", router=RaisingRouter(at=at, how=how))
        assert f'self.reach("{at}")' in found.value.details


@pytest.mark.parametrize("at", ["joined", "decided", "ran", "ended"])
def test_errors_of_an_observer(at):
    for how, what in FAILING.items():
        observer = RaisingObserver(at, how)
        with pytest.raises(
            UserCodeError, match=rf"^observer RaisingObserver: fail .* raised {what}"
        ) as found:
            simulate(ONE, TABLE, "fcfs", observer=observer)
        assert observer.heard[-1] == "ended"
        assert found.value.result.completed == (at == "ended")


@pytest.mark.parametrize("at", ["joined", "moved", "decided", "ran", "waited"])
@pytest.mark.parametrize("how", ["key", "interrupt"])
def test_an_observer_gets_every_event_once(at, how):
    """Also after an exception: no event is repeated or skipped."""
    from helpers.runs.random_runs import RandomPolicy
    from kvgym.policies.contract.cases import Shuffling

    table = RequestTable([0.0] * 12, [3] * 12, [5] * 12)
    heard = []
    for place in ("", at):
        observer = RaisingObserver(place, how)
        with contextlib.suppress(RunError, KeyboardInterrupt):
            simulate(TWO, table, RandomPolicy(1, table), router=Shuffling(0.3), observer=observer)
        heard.append(observer.heard)
    undisturbed, disturbed = heard
    assert at in undisturbed
    until = undisturbed.index(at) + 1
    assert disturbed[:until] == undisturbed[:until]


def test_errors_of_a_batch_time_model():
    for system in (System(20, RaisingModel()), System(20, RaisingModel()).replicate(2)):
        with pytest.raises(UserCodeError, match=r"^batch-time model RaisingModel: fail \(") as found:
            simulate(system, TABLE, "fcfs")
        named(found.value, "KeyboardInterrupt, ", "KeyError")


def test_errors_of_uncompiled_kernels():
    with pytest.raises(UserCodeError) as found:
        simulate(ONE, TABLE, WritesOutside(), compiled=False)
    named(found.value, "decision.admit[view.problem", "IndexError")
    for system in (System(20, OutOfRangeModel()), System(20, OutOfRangeModel()).replicate(2)):
        with pytest.raises(UserCodeError) as found:
            simulate(system, TABLE, "fcfs", compiled=False)
        named(found.value, "return params[7", "IndexError")
    with pytest.raises(UserCodeError, match="policy 'no_params'"):
        simulate(ONE, TABLE, NoParams())


def test_errors_of_constructors_and_sources(monkeypatch):
    monkeypatch.setitem(POLICIES._items, "raising", Raising)
    with pytest.raises(UserCodeError, match="policy 'raising': fail"):
        make_policy("raising:at=__init__")
    sources = Sources([])
    sources.add(fail, lambda: fail("stop"))
    with pytest.raises(UserCodeError, match="source fail: fail"):
        sources.find("stop")
    with pytest.raises(UserCodeError, match="source"):
        sources.names()


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("how", ["stop", "exit", "unsendable"])
def test_a_comparison_continues_with_the_others(jobs, how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compare(SMALL, ["fcfs", Raising(at="schedule", how=how)], seeds=2, jobs=jobs)
    assert [bool(run.error) for run in found.runs] == [False, False, True, True]
    assert all(run.completed_once for run in found.runs[:2])
    assert "raising_code.py:" in found.runs[2].error


@pytest.mark.parametrize("at", ["hyperparameters", "content"])
def test_errors_of_a_policys_description(at, tmp_path):
    with pytest.raises(UserCodeError, match="policy or router 'raising': fail"):
        compare(SMALL, ["fcfs", Raising(at=at)], seeds=1, folder=tmp_path)


@pytest.mark.parametrize("how", ["exit", "key"])
def test_a_plugin_that_fails_is_a_warning(monkeypatch, how):
    class Entry:
        value, dist = "acme.policies", types.SimpleNamespace(name="acme")

        def load(self):
            fail(how)

    monkeypatch.setenv("KVGYM_PLUGINS", "1")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Entry()])
    with pytest.warns(UserWarning, match=r"policies of acme \(acme.policies\) cannot be loaded"):
        load_plugins("kvgym.policies", "policies")
