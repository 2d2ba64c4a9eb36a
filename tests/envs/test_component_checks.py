"""Errors of components when they are created, registered, compiled or checked."""

import numpy as np
import pytest

from kvgym.envs import (
    ObservationPart,
    RewardTerm,
    check_component,
    observation_kernel,
    open_environment,
    register_observation,
    register_reward,
    reward_kernel,
)
from kvgym.envs.scheduling.components import OBSERVATIONS, REWARDS
from kvgym.errors import ConfigError, ContractError, KernelError, UnknownNameError

ONE = (("one", "a number"),)
TWO = (*ONE, ("two", "another"))


@observation_kernel
def too_much(where, out):
    e = open_environment(where)
    out[0] = e.run.w.num_active


@observation_kernel
def no_number(where, out):
    e = open_environment(where)
    out[0] = np.nan if e.run.w.num_active > 0 else 0.0


@observation_kernel
def forgetful(where, out):
    e = open_environment(where)
    out[0] = 0.5
    if e.run.w.num_active == 0:
        out[1] = 0.5


@observation_kernel
def clairvoyant(where, out):
    e = open_environment(where)
    out[0] = 1.0 / (1.0 + e.run.workload[0].output_len)


@observation_kernel
def counting(where, out):
    e = open_environment(where)
    e.episode.num_ignored += 1
    out[0] = 1.0 / (1.0 + e.episode.num_ignored)


@reward_kernel
def endless(where, before, memory):
    e = open_environment(where)
    return np.inf if e.run.w.num_finished > 0 else 0.0


@reward_kernel
def meddling(where, before, memory):
    e = open_environment(where)
    e.episode.latency = 0.0
    return 0.0


@reward_kernel
def misspelt(where, before, memory):
    e = open_environment(where)
    return e.run.w.clok - before


@reward_kernel
def misnamed(where, before, memory):
    e = open_environment(where)
    return e.episod.latency


@pytest.fixture
def registered():
    """Return a function that registers a component until the test ends."""
    held = []

    def register(made):
        registry = REWARDS if isinstance(made, RewardTerm) else OBSERVATIONS
        (register_reward if isinstance(made, RewardTerm) else register_observation)(made)
        held.append((registry, made.name))
        return made.name

    yield register
    for registry, name in held:
        del registry._items[name]


@pytest.mark.parametrize("name", [*REWARDS, *OBSERVATIONS])
def test_built_in_components_pass(name):
    check_component(name, steps=80)


@pytest.mark.parametrize(
    ("kernel", "features", "says"),
    [
        (too_much, ONE, "writes 3 as number 0, 'one', outside its bounds, from 0 to 1"),
        (no_number, ONE, "writes nan as number 0, 'one', which must be finite"),
        (forgetful, TWO, "does not write number 1, 'two', every time"),
        (clairvoyant, ONE, "reveals hidden information: true lengths"),
        (counting, ONE, "writes another number 0, 'one', when observed again; it must not have state"),
    ],
)
def test_parts_of_observations(registered, kernel, features, says):
    name = registered(ObservationPart(f"wrong_{kernel.function.__name__}", kernel, features))
    with pytest.raises(ContractError) as caught:
        check_component(name)
    assert f"observation '{name}' {says}" in str(caught.value)
    assert "random steps with action 'admit_evict', seed 0" in str(caught.value)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (endless, "is inf; expected a finite number"),
        (meddling, "changes tables that it may only read"),
    ],
)
def test_reward_terms(registered, kernel, says):
    name = registered(RewardTerm(f"wrong_{kernel.function.__name__}", kernel, "wrong"))
    with pytest.raises(ContractError, match=f"reward term '{name}' {says}"):
        check_component(name)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (misspelt, r"no field 'clok'; did you mean clock\? \(.*test_component_checks.py:\d+\)"),
        (misnamed, r"no field 'episod' of Env; did you mean episode"),
    ],
)
def test_misspelt_fields(registered, kernel, says):
    name = registered(RewardTerm(f"wrong_{kernel.function.__name__}", kernel, "wrong"))
    with pytest.raises(KernelError, match=says):
        check_component(name)


def test_names():
    with pytest.raises(UnknownNameError, match=r"unknown component 'backlogg'\. Did you mean 'backlog'"):
        check_component("backlogg")
    for register in (register_reward, register_observation):
        with pytest.raises(ConfigError, match=r"'backlog'; expected a kvgym\.envs\."):
            register("backlog")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": 3}, "expected a name of letters"),
        ({"features": "ab"}, r"features = 'ab'; expected one or more \(name, meaning\)"),
        ({"features": (("a",),)}, r"expected one or more \(name, meaning\)"),
        ({"features": (("a", 3),)}, "meaning of feature 'a' = 3; expected a text of one line"),
        ({"features": (*ONE, *ONE)}, "features one, one; expected different names"),
        ({"low": "0"}, "low = '0'; expected a finite float32"),
        ({"low": -np.inf}, "low = -inf; expected a finite float32"),
        ({"high": 1e60}, "high = 1e\\+60; expected a finite float32"),
    ],
)
def test_invalid_observation_parts(change, says):
    with pytest.raises(ConfigError, match=says):
        ObservationPart(**{"name": "mine", "write": too_much, "features": ONE, **change})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"memory": 1.5}, "memory = 1.5; expected 0 to 1,000,000 numbers"),
        ({"memory": 10**9}, "memory = 1000000000; expected"),
        ({"summary": ""}, "summary = ''; expected a text of one line"),
        ({"name": None}, "reward term None: expected a name"),
    ],
)
def test_invalid_reward_terms(change, says):
    with pytest.raises(ConfigError, match=says):
        RewardTerm(**{"name": "mine", "earn": endless, "summary": "s", **change})
