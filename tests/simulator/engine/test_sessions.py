"""Sessions: turns of the closed loop worked by hand, what policies observe of them, and results."""

from dataclasses import replace

import numpy as np
import pytest

import kvgym
from kvgym.batch_time.models.affine import AffineBatchTime
from kvgym.batch_time.models.unit import UnitBatchTime
from kvgym.errors import ConfigError, InformationError, WorkloadError
from kvgym.policies.policy import Decision, Policy, PolicyInfo
from kvgym.simulator.observer import Observer
from kvgym.simulator.system import System
from kvgym.simulator.view import simulation_of
from kvgym.workloads.table import RequestTable


def table(session_id, turn, think_time, arrival_time, prompt_len=3, output_len=2, **more):
    n = len(session_id)
    return RequestTable.from_columns(
        arrival_time=arrival_time,
        prompt_len=np.broadcast_to(prompt_len, n),
        output_len=np.broadcast_to(output_len, n),
        session_id=session_id,
        turn=turn,
        think_time=think_time,
        **more,
    )


def closed(capacity=100, **settings):
    return System(capacity, UnitBatchTime(), sessions="closed", **settings)


def drawn(seed, n=60, sessions=12):
    rng = np.random.default_rng(seed)
    return table(
        rng.integers(0, sessions, n),
        np.arange(1, n + 1),
        rng.choice([0.0, 0.5, 3.0], n),
        np.sort(rng.uniform(0, 20, n)),
        rng.integers(1, 9, n),
        rng.integers(1, 9, n),
        gap_kind=rng.integers(0, 2, n),
    )


def test_turns_without_thinking_run_back_to_back():
    run = kvgym.simulate(closed(), table([4, 4, 4], [1, 2, 5], [9.0, 0, 0], [1.0, 1.5, 50]), "fcfs")
    assert run.table.arrival_time.tolist() == [1, 3, 5]  # two iterations each
    assert run.requests["finish_time"].tolist() == [3, 5, 7]
    assert run.completed


def test_two_sessions_with_memory_for_both():
    run = kvgym.simulate(
        closed(),
        table([0, 1, 0, 1], [1, 1, 2, 2], [0, 0, 2.0, 0], [0.0, 1, 1, 1], output_len=[2, 3, 1, 1]),
        "fcfs",
    )
    # Session 0 ends its turn at 2 and comes back at 4; session 1 ends at 4 and comes back at once. Ties go by row.
    assert run.table.session_id.tolist() == [0, 1, 0, 1]
    assert run.table.arrival_time.tolist() == [0, 1, 4, 4]
    assert run.requests["finish_time"].tolist() == [2, 4, 5, 5]


def test_a_later_turn_may_arrive_before_a_later_session():
    run = kvgym.simulate(closed(), table([0, 1, 0], [1, 1, 2], [0.0, 0, 0], [0.0, 5, 6]), "fcfs")
    assert run.table.session_id.tolist() == [0, 0, 1]
    assert run.table.turn.tolist() == [1, 2, 1]
    assert run.table.arrival_time.tolist() == [0, 2, 5]
    assert run.requests["finish_time"].tolist() == [2, 4, 7]


SYSTEMS = {
    "one worker": System(60, AffineBatchTime(0.31, 0.017, 0.023, 0.0011)),
    "cluster": System(40, AffineBatchTime(0.31, 0.017, 0.023, 0.0011)).replicate(3),
    "horizon": System(60, UnitBatchTime(), horizon=30.0),
}


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "uncompiled"])
def test_the_open_loop_with_the_times_of_the_closed_loop_is_the_same_run(name, compiled):
    system, requests = SYSTEMS[name], drawn(len(name))
    run = kvgym.simulate(replace(system, sessions="closed"), requests, "fcfs", compiled=compiled)
    again = kvgym.simulate(system, run.table, "fcfs")
    assert (run.completed, again.completed) == (name != "horizon",) * 2
    assert run.requests.tobytes() == again.requests.tobytes()
    assert run.worker.tobytes() == again.worker.tobytes()


@pytest.mark.parametrize("missing", ["session_id", "think_time"])
def test_the_closed_loop_needs_sessions(missing):
    requests = table([0, 0], [1, 2], [0.0, 0], [0.0, 1])
    gone = dict.fromkeys((missing,) if missing == "think_time" else ("session_id", "turn", "think_time"))
    with pytest.raises(WorkloadError, match=f"sessions = closed, but the requests have no {missing}"):
        kvgym.simulate(closed(), requests.replace(**gone), "fcfs")


class Notes(Policy):
    """First come, first served; keeps what it has observed of requests when they arrived and finished."""

    info = PolicyInfo(name="notes", summary="", needs=frozenset({"session", "class", "true_length"}))

    def reset(self, system):
        self.joined, self.ended = {}, {}

    def schedule(self, view):
        w = view.waiting
        names = (
            "session_id",
            "turn",
            "previous",
            "previous_worker",
            "gap_kind",
            "next_prompt_len",
            "next_think_time",
        )
        for j, i in enumerate(w.request_id.tolist()):
            assert w.next_kind[j] == -1
            self.joined.setdefault(i, tuple(float(getattr(w, name)[j]) for name in names))
        for i in view.finished.tolist():
            self.ended[i] = int(simulation_of(view).sessions["next_kind"][i])
        return Decision(admit=tuple(w.request_id.tolist()))


@pytest.mark.parametrize("sessions", ["open", "closed"])
def test_what_the_need_session_exposes(sessions):
    requests = table(
        [7, 8, 7], [1, 1, 3], [0, 0, 2.5], [0.0, 1, 9], [3, 4, 5], gap_kind=[0, 0, 1], class_id=[0, 0, 0]
    )
    policy = Notes()
    kvgym.simulate(replace(closed(), sessions=sessions), requests, policy)
    nan = pytest.approx(np.nan, nan_ok=True)
    assert policy.joined == {
        0: (7, 1, -1, -1, 0, 5, 2.5),
        1: (8, 1, -1, -1, 0, 0, nan),
        2: (7, 3, 0, 0, 1, 0, nan),
    }
    assert policy.ended == {0: 1, 1: 0}  # the run ends with request 2


def test_columns_of_sessions_must_be_declared():
    class Reads(Policy):
        info = PolicyInfo(name="reads", summary="", needs=frozenset({"session"}))

        def schedule(self, view):
            assert view.waiting.turn.tolist() == [1]
            return Decision(admit=tuple(view.waiting.gap_kind.tolist()))

    with pytest.raises(InformationError, match="read 'gap_kind' but declares"):
        kvgym.simulate(closed(), table([0], [1], [0.0], [0.0], gap_kind=[0]), Reads())
    with pytest.raises(ConfigError, match="needs session, but the requests have no session_id"):
        kvgym.simulate(System(100, UnitBatchTime()), RequestTable([0.0], [1], [1]), Reads())


def test_an_observer_knows_requests_by_their_ids():
    class Lengths(Observer):
        def began(self, requests):
            self.requests, self.seen = requests, []

        def joined(self, time, worker, request_id):
            row = self.requests[request_id]
            self.seen.append((time, int(row["prompt_len"]), int(row["output_len"])))

    requests, observer = drawn(1), Lengths()
    run = kvgym.simulate(closed(60), requests, "fcfs", observer=observer, compiled=False)
    columns = run.table.arrival_time, run.table.prompt_len, run.table.output_len
    assert observer.seen == [tuple(row) for row in zip(*(c.tolist() for c in columns), strict=True)]
    assert run.table.prompt_len.tolist() != requests.prompt_len.tolist()


def test_a_router_knows_the_sessions_of_requests_that_arrive_in_another_order():
    system = replace(SYSTEMS["cluster"], sessions="closed")
    run = kvgym.simulate(system, drawn(3), "fcfs", router="session_affinity", compiled=False)
    for session in np.unique(run.table.session_id):
        assert len(set(run.requests["worker"][run.table.session_id == session])) == 1
