"""Wrong values that programs and files hand over are refused in the words of kvgym."""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
import time
import types

import numpy as np
import pytest
import yaml

from kvgym import make_batch_time, make_policy, make_router, make_workload, simulate
from kvgym.batch_time.deployments.load import parse_hardware
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError, InvalidDecisionError, KVGymError, WorkloadError
from kvgym.policies.hyperparameters import Weight
from kvgym.policies.policy import Decision, Policy, PolicyInfo, register_policy
from kvgym.policies.routing import Router, RouterInfo, register_router
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.utils.reading import MAX_KEYS, parse_yaml, shipped_texts
from kvgym.workloads.table import RequestTable

UNIT = make_batch_time({"kind": "unit"})
TABLE = RequestTable([0, 0.5, 2], [3] * 3, [3, 2, 2])
ONE = System(kv_capacity=20, batch_time=UNIT)
HUGE = 10**5000


class Says(Policy):
    info = PolicyInfo(name="says", summary="what it is given")

    def __init__(self, decision) -> None:
        self.decision = decision

    def schedule(self, view):
        return self.decision


def broken():
    yield 0
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "fields",
    [
        {"admit": None}, {"admit": 3}, {"admit": [HUGE]}, {"admit": broken()}, {"admit": [[0]]}, {"admit": "a"},
        {"evict": 5}, {"evict": [2**63]}, {"tokens": []}, {"tokens": None}, {"tokens": {"a": 1}},
        {"admit": [0], "tokens": {0: HUGE}}, {"wait_until": 10**400}, {"wait_until": 1j}, {"wait_until": "soon"},
        {"wait_until": np.complex128(1)}, {"put_back": 2**63}, {"put_back": 2**31}, {"put_back": HUGE},
        {"put_back": None},
    ],
    ids=lambda fields: "-".join(f"{k}:{type(v).__name__}" for k, v in fields.items()),
)  # fmt: skip
def test_decisions(fields):
    with pytest.raises(InvalidDecisionError, match=r"^policy 'says', iteration 0, t = 0 s: the decision "):
        simulate(ONE, TABLE, Says(Decision(**fields)))


@pytest.mark.parametrize(
    "given", [None, {}, types.SimpleNamespace(wait_until=None), "fcfs", Decision, object()]
)
def test_anything_but_a_decision(given):
    with pytest.raises(InvalidDecisionError, match=r"the decision is .*; expected a kvgym.Decision"):
        simulate(ONE, TABLE, Says(given))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: simulate(ONE, TABLE, "fcfs", compiled="no"), "compiled = 'no'; expected True or False"),
        (lambda: simulate(ONE, TABLE, "fcfs", compiled=1), "compiled = 1"),
        (lambda: simulate(ONE, TABLE, "fcfs", log="no"), "log = 'no'; expected True or False"),
        (lambda: Simulation(ONE, TABLE, log=None), "log = None"),
        (lambda: ServingEnv(compiled="no"), "compiled"),
        *[
            (lambda factor=factor: TABLE.faster(factor), "factor = .*; expected a finite number > 0")
            for factor in (-1, 0, math.nan, math.inf, "2", None, True)
        ],
        (lambda: Weight("x", "y", "z"), "Weight: default = 'y'; expected float"),
        (lambda: Weight("x", 0.0, "z"), "Weight: step = 'z'; expected float"),
        (lambda: Weight(3, 0.0, 1.0), "Weight: name = 3; expected str"),
        (lambda: Weight("x", True, 1.0), "Weight: default = True"),
        (lambda: Weight("x", 0.0, 0.0), "Weight 'x': default 0, step 0, .* expected .* a step > 0"),
        (lambda: Weight("x", 2.0, 1.0, 0.0, 1.0), "expected low ≤ default ≤ high"),
        (lambda: Weight("x", 0.0, 1.0, size=0), "a size ≥ 1"),
        (lambda: PolicyInfo(name="x", summary=3), "PolicyInfo: summary = 3; expected str"),
        (lambda: PolicyInfo(name="x", summary="", evicts="no"), "PolicyInfo: evicts = 'no'; expected bool"),
        (lambda: RouterInfo(name="x", summary=None), "RouterInfo: summary = None; expected str"),
    ],
)
def test_arguments_that_seemed_to_work(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("chosen", [(HUGE, 0), (0, HUGE), (0,), broken(), 5])
def test_moves(chosen):
    class Moves(Router):
        info, reassigns = RouterInfo(name="moves", summary=""), True

        def route(self, view):
            return 0

        def reassign(self, view):
            return chosen

    with pytest.raises(InvalidDecisionError, match="router 'moves'"):
        simulate(ONE.replicate(2), TABLE, "fcfs", router=Moves())


def test_tables_are_checked_whichever_way_they_are_made():
    columns = TABLE.columns()
    for name, wrong in (
        ("arrival_time", [0, np.nan, 1]), ("prompt_len", [1, 2]), ("prompt_len", [0, 1, 1]), ("output_len", None),
        ("class_id", ["a", "b", "c"]), ("predicted_low", [1, 1, 1]), ("prompt_len", 5),
    ):  # fmt: skip
        with pytest.raises(WorkloadError):
            RequestTable(**{**columns, name: wrong})
        with pytest.raises(WorkloadError):
            dataclasses.replace(TABLE, **{name: wrong})
    for about in ({"notes": 5}, {"notes": [1]}, {"notes": "text"}, {"classes": 5}, {"classes": [None]}):
        with pytest.raises(WorkloadError, match=r"notes =|classes ="):
            RequestTable(**columns, **about)
    backwards = {name: column[::-1] for name, column in columns.items()}
    made = RequestTable(**backwards, notes=["a"])
    assert made.arrival_time.tolist() == [0, 0.5, 2]
    assert made.output_len.tolist() == [3, 2, 2]
    assert made.notes == ("a",)
    with pytest.raises(ValueError, match="read-only"):
        made.prompt_len[0] = 5
    assert made.output_len.dtype == np.int64


def test_needs_are_a_set():
    for needs in (("true_length",), ["true_length"], {"true_length": 1}, iter(["true_length"])):
        info = PolicyInfo(name="says", summary="", needs=needs)
        assert info.needs == frozenset({"true_length"})
        assert info.clairvoyant
        policy = type("Knows", (Says,), {"info": info})(Decision(admit=[0]))
        with pytest.raises(KVGymError):
            simulate(ONE, TABLE, policy)  # as 0 is not there any more, and not for its needs
    for wrong in (5, None, "slo", [1], [None], [[]], ["slow"]):
        with pytest.raises(ConfigError, match="policy 'says'"):
            PolicyInfo(name="says", summary="", needs=wrong)
        with pytest.raises(ConfigError, match="policy 'says'"):
            PolicyInfo(name="says", summary="", uses=wrong)


def test_names_are_texts():
    for wrong in (5, None, "", [], b"name"):
        with pytest.raises(ConfigError, match="name of a policy"):
            PolicyInfo(name=wrong, summary="")
        with pytest.raises(ConfigError, match="name of a router"):
            RouterInfo(name=wrong, summary="")
    nameless = type("Nameless", (Says,), {"info": 5})
    with pytest.raises(ConfigError, match=r"Nameless.info = 5; expected a PolicyInfo"):
        register_policy(nameless)
    with pytest.raises(ConfigError, match=r"Nameless.info = 5"):
        make_policy(nameless(Decision()))
    router = type("Nameless", (Router,), {"info": None, "route": lambda self, view: 0})
    with pytest.raises(ConfigError, match="expected a RouterInfo"):
        register_router(router)
    with pytest.raises(ConfigError, match="expected a RouterInfo"):
        make_router(router())


def test_keys_that_are_no_texts():
    for fields in (
        {"limits": {3: 5}},
        {"limits": {None: 1}},
        {"limits": {0: 1}},
        {3: 5},
        {"classes": [{3: 5}]},
    ):
        with pytest.raises(ConfigError):
            make_workload({"preset": "lmsys", **fields})


def test_environment_arguments_of_an_agent(tmp_path):
    from kvgym.agents import NumpyModel, load_agent
    from kvgym.agents.library import load_model

    model = load_model("ppo_noisy")
    assert isinstance(model, NumpyModel)
    for name in ("name", "model", "self", "cls", "nothing"):
        model.header.env_arguments[name] = "x"
        model.save(tmp_path / "agent.npz")
        del model.header.env_arguments[name]
        with pytest.raises(ConfigError, match=name):
            load_agent(tmp_path / "agent.npz")


def test_hardware_with_batch_times_that_are_not_numbers():
    whole = yaml.load(shipped_texts("hardware")["llama2-70b-a100-tp2"], Loader=yaml.CSafeLoader)
    where = [path for path in paths(whole) if path[0] == "tables" and not isinstance(path[-1], int)]
    refused = 0
    for place in where[:6]:
        for value in (1e308, 10**400):
            changed = copy.deepcopy(whole)
            within = changed
            for part in place[:-1]:
                within = within[part]
            within[place[-1]] = value
            try:
                hardware = parse_hardware(yaml.dump(changed, Dumper=yaml.CSafeDumper), "x")
            except ConfigError as error:
                refused += "a batch would take" in str(error)
                continue
            with np.errstate(all="ignore"):
                assert hardware.batch_time()(num_decodes=9, decode_context=900) >= 0
    assert refused


def paths(tree, path=()):
    if isinstance(tree, dict):
        return [found for key, value in tree.items() for found in paths(value, (*path, key))]
    if isinstance(tree, list):
        return [found for key, value in enumerate(tree[:2]) for found in paths(value, (*path, key))]
    return [path] if isinstance(tree, int | float) and not isinstance(tree, bool) else []


@pytest.mark.parametrize("indent", ["", "system:\n  "])
def test_thousands_of_unknown_keys_are_refused_at_once(indent):
    from kvgym.experiments.scenario import Scenario
    from kvgym.utils.reading import validate_fields

    text = indent + (indent.rpartition("\n")[2]).join(f"key{k}: 1\n" for k in range(300_000))
    started = time.process_time()
    with pytest.raises(ConfigError, match=rf"a mapping of more than {MAX_KEYS:,} keys"):
        parse_yaml(text, "scenario")
    few = parse_yaml(text[: text.index("key9999:")], "scenario")
    with pytest.raises(ConfigError, match=r"Field required|no such field") as found:
        validate_fields(Scenario, few, "scenario")
    assert "more mistakes" in found.value.details
    assert len(found.value.details) < 200_000
    assert time.process_time() - started < 15
    assert sys.getsizeof(found.value.details) < 1_000_000
