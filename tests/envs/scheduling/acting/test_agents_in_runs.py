"""Agents decide inside the compiled loop, and Python answers their questions alone."""

import numpy as np
import pytest

import kvgym
from kvgym.compiling.kernel import uncompiled
from kvgym.envs.agents import AgentPolicy
from kvgym.envs.scheduling.acting import deciding
from kvgym.errors import ConfigError, LivelockError, UserCodeError
from kvgym.policies.policy import CompiledPolicy
from kvgym.policies.runner import prepare_run
from kvgym.simulator.tables import RUN, UNKNOWN

SMALL = {"num_requests": 60}
RECORDS = ("start_time", "first_token_time", "finish_time", "num_evictions", "max_token_gap")


class Choosing:
    """Takes the last legal choice, or waits at some of the moments when memory is nearly full."""

    def predict(self, observation, deterministic=True, action_masks=None):
        self.asked = getattr(self, "asked", 0) + 1
        legal = np.flatnonzero(action_masks)
        return legal[0 if observation[0] > 0.8 and self.asked % 3 else -1], None


class Sized:
    """Answers by the prompt of the asked request."""

    def predict(self, observation, deterministic=True):
        self.asked = getattr(self, "asked", 0) + 1
        return np.tanh(4 * (observation[-19:-18] - 0.4)).astype(np.float32), None


class Knobs:
    def predict(self, observation, deterministic=True):
        self.asked = getattr(self, "asked", 0) + 1
        return np.array([0, 7, 1, self.asked % 2]), None


KINDS = {
    "always": (Choosing, {"action": "admit_count"}),
    "composed": (Choosing, {"action": "admit_evict"}),
    "skipping": (Choosing, {"action": "admit_count", "epochs": "decision"}),
    "asked": (Sized, {"action": "priority"}),
    "held": (Knobs, {"action": "knobs", "hold": 3}),
}


@pytest.fixture(scope="module")
def served():
    scenario = kvgym.load_scenario("a100-llama2-70b").override(
        workload={"preset": "lmsys", "num_requests": 60, "rate": 60}, kv_capacity=6144
    )
    return scenario.make_system(), scenario.make_workload().sample(0)


def same(one, other):
    return all(np.array_equal(one.requests[name], other.requests[name], equal_nan=True) for name in RECORDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_decides_as_schedule_does(kind, served):
    """Compiled, in some cases as plain Python, and for each decision by itself: the same schedule and questions."""
    model, options = KINDS[kind]
    asked, found = [], []
    for compiled in (True, kind not in ("asked", "held")):
        agent = AgentPolicy(model(), **SMALL, **options)
        found.append(kvgym.simulate(*served, agent, compiled=compiled))
        asked.append(agent.model.asked)
    agent = AgentPolicy(model(), **SMALL, **options)
    simulation, _ = prepare_run(*served, agent)
    running = simulation.start()
    while running:
        running = simulation.step(agent.schedule(simulation.view))
    asked.append(agent.model.asked)
    assert same(*found)
    assert np.array_equal(found[0].requests["finish_time"], simulation.requests["finish_time"])
    assert len(set(asked)) == 1
    decisions = int(simulation.workers["decisions"][0])
    most = {"asked": 60, "held": -(-decisions // 3), "skipping": decisions - 1}
    assert asked[0] <= most.get(kind, 10 * decisions)


def test_no_python_runs_between_questions(served, monkeypatch):
    model = Sized()
    agent = AgentPolicy(model, action="priority", **SMALL)
    monkeypatch.setattr(CompiledPolicy, "schedule", None)
    monkeypatch.setattr(
        "kvgym.simulator.simulation.Simulation.step", lambda *_: pytest.fail("a decision in Python")
    )
    result = kvgym.simulate(*served, agent)
    assert np.isfinite(result.requests["finish_time"]).all()
    assert model.asked == 60


class Failing(Sized):
    def __init__(self, answer, last=5):
        self.answer, self.last = answer, last

    def predict(self, observation, deterministic=True):
        action, state = super().predict(observation)
        if self.asked < self.last:
            return action, state
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer, state


class Mine(AgentPolicy):
    """An agent policy of a user."""


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("cls", "answer", "error", "message"),
    [
        (AgentPolicy, KeyError("gone"), KeyError, "gone"),
        (Mine, KeyError("gone"), UserCodeError, "policy 'agent': Failing.predict .* raised KeyError: 'gone'"),
        (AgentPolicy, KeyboardInterrupt(), KeyboardInterrupt, "^$"),
        (
            AgentPolicy,
            np.array([1.5], np.float32),
            ConfigError,
            "number 0 of the action of 'agent' is 1.5, outside",
        ),
        (AgentPolicy, np.zeros(2, np.float32), ConfigError, "shape"),
    ],
)
def test_what_the_model_raises_ends_the_run(cls, answer, error, message, compiled, served):
    """The run so far is in the error; the model is not asked again."""
    agent = cls(Failing(answer), action="priority", **SMALL)
    with pytest.raises(error, match=message) as caught:
        kvgym.simulate(*served, agent, compiled=compiled)
    assert agent.model.asked == 5
    if error in (UserCodeError, KeyboardInterrupt):
        assert np.isfinite(caught.value.result.requests["arrival_time"]).sum() > 0
    fresh = kvgym.simulate(*served, cls(Sized(), action="priority", **SMALL))
    agent.model.last = 10**9
    assert same(kvgym.simulate(*served, agent), fresh)


def test_an_agent_without_progress_is_named(served):
    class Idle:
        def predict(self, observation, deterministic=True):
            return 0, None

    with pytest.raises(LivelockError, match=r"policy 'agent', .* it has admitted no request"):
        kvgym.simulate(*served, AgentPolicy(Idle(), action="admit_count", **SMALL))


def test_every_worker_of_a_cluster_asks_for_itself(served):
    """Also where a router in Python interrupts the compiled loop, and with a run in pieces."""
    system, table = served
    agent = AgentPolicy(Sized(), action="priority", **SMALL)
    alone = kvgym.simulate(system, table, agent)
    one = kvgym.simulate(system.replicate(1), table, agent)
    assert np.array_equal(alone.requests["finish_time"], one.requests["finish_time"])
    watched = kvgym.simulate(system, table, agent, samples=8)
    assert same(alone, watched)
    three = kvgym.simulate(system.replicate(3), table, agent, log=True)
    assert set(three.requests["worker"]) == {0, 1, 2}
    assert three.requests["finish_time"].mean() < alone.requests["finish_time"].mean()


@pytest.mark.parametrize(("answers", "lacks"), [(1, deciding.FAILED), (0, deciding.OUTSIDE)])
def test_a_decision_that_is_lacking_is_refused(monkeypatch, answers, lacks):
    """By hand: the kernel admits a request that does not exist, which no engine carries out."""

    def part(name, **others):
        function = uncompiled(getattr(deciding, name))
        for other, stand_in in others.items():
            monkeypatch.setitem(function.__globals__, other, stand_in)
        return function

    state = np.zeros(len(deciding.STATE), np.int64)

    class Call:
        todo, outcomes, actions = np.zeros(1, np.uint8), np.zeros(1, np.int64), np.zeros((1, 1))

    def step(order):
        return -1 if Call.todo[0] == deciding.COMPOSE else 0

    compose = part(
        "compose", open_call=lambda order, count: Call, i8_at=lambda *_: np.zeros(1, np.int64),
        step_at=lambda *_: step, call_back=lambda _: answers,
    )  # fmt: skip
    assert not compose(state, np.zeros(1))
    assert state[deciding.STATE.lacks] == lacks

    class Decision:
        class record:  # noqa: N801
            act, explicit, num_evict, num_admit = 9, 9, 9, 9

        admit = np.zeros(1, np.int32)

    class Memory:
        params = None

    Memory.state = state
    part("agent_kernel", compose=lambda *_: False)(None, Decision, Memory)
    d = Decision.record
    assert (d.act, d.explicit, d.num_evict, d.num_admit, Decision.admit[0]) == (RUN, 0, 0, 1, UNKNOWN)
