"""The parts of a step by hand: counts, order of calls, and results."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kvgym.envs.scheduling import stepping
from kvgym.envs.scheduling.actions.kind import COMPLETE, MORE
from kvgym.envs.scheduling.stepping import FAILED, RUNNING, TERMINATED, TRUNCATED
from kvgym.simulator.tables import BAD_ADMIT, DECIDE, DONE, HORIZON, LOG_FULL, OK, STALLED

E = SimpleNamespace


def episode(**fields):
    terms = dict.fromkeys(("latency", "ttft", "tokens", "goodput", "evictions"), 0.0)
    return E(
        **{
            **terms,
            "terms": np.zeros(2),
            "over": RUNNING,
            "num_ignored": 7,
            "held": 7,
            "status": OK,
            **fields,
        }
    )


# ---------------------------------------------------------------- reward terms


@pytest.mark.parametrize(
    ("first_token", "gap", "goodput"), [(3.0, 0.5, 4.0), (3.1, 0.5, 3.0), (3.0, 0.6, 3.0), (2.0, 0.1, 4.0)]
)
def test_a_finished_request_earns_goodput_within_both_targets(part, first_token, gap, goodput):
    """It arrived at 1 and ends at 5; its targets are 2 s, 0.5 s and 4 s, inclusive."""
    e = E(
        run=E(
            requests=[None, E(first_token_time=first_token, max_token_gap=gap, finish_time=5.0)],
            workload=[None, E(arrival_time=1.0, ttft_slo=2.0, tbt_slo=0.5, e2e_slo=4.0)],
        ),
        episode=episode(ttft=-5.0, goodput=3.0),
    )
    part("earn")(e, 1)
    assert e.episode.ttft == -5.0 - (first_token - 1.0)
    assert e.episode.goodput == goodput


def test_the_terms_of_an_iteration(part):
    """From 10 to 12 three requests were present; two arrived in between, and the clock advanced to 13."""
    earned = []
    e = E(
        run=E(
            w=E(clock=13.0, total_delivered_tokens=9, total_recomputed_tokens=7, num_finished=2),
            tracker=E(next_arrival=4),
            workload=[E(arrival_time=t) for t in (0.0, 1.0, 10.5, 11.0, 99.0)],
            finished=[3, 0, 1],
        ),
        episode=episode(latency=-1.0, tokens=1.0, evictions=-1.0),
    )
    part("account", earn=lambda _, i: earned.append(i))(e, 10.0, 12.0, 3, 2, 4, 2)
    assert e.episode.latency == -1 - 3 * 2 - 2.5 - 2
    assert e.episode.tokens == 1 + 5
    assert e.episode.evictions == -1 - 5
    assert earned == [3, 0]


def test_registered_terms_have_their_own_functions_and_memory(part):
    opened = []

    def term_at(c_address, jit_address):
        return lambda where, before, memory: (
            10 * c_address + jit_address + memory + (where, before).index(5.0)
        )

    def open_term_memory(where, at, size):
        opened.append((where, at, size))
        return 100 * at

    settings = E(num_terms=2, term_functions=[1, 2, 3, 4], term_memory=[6, 3])
    e = E(settings=settings, episode=episode(terms=np.array([0.5, 0.25])))
    part("earn_terms", term_at=term_at, open_term_memory=open_term_memory)(e, "row", 5.0)
    assert opened == [("row", 0, 6), ("row", 6, 3)]
    assert e.episode.terms.tolist() == [0.5 + 12 + 0 + 1, 0.25 + 34 + 600 + 1]


def test_all_terms_are_reset(part):
    e = E(
        episode=episode(latency=1.0, ttft=1.0, tokens=1.0, goodput=1.0, evictions=1.0),
        settings=E(num_terms=2),
    )
    e.episode.terms[:] = 3.0
    part("reset_terms")(e)
    assert (e.episode.latency, e.episode.ttft, e.episode.tokens, e.episode.goodput) == (0, 0, 0, 0)
    assert (e.episode.evictions, e.episode.terms.tolist()) == (0, [0, 0])


def test_the_reward_is_the_weighted_sum_of_the_scaled_terms(part):
    e = E(
        episode=episode(
            latency=-2.0, ttft=-4.0, tokens=6.0, goodput=8.0, evictions=-10.0, terms=[12.0, 14.0]
        ),
        settings=E(
            reward_scale=2.0, weights=[1.0, 10.0, 100.0, 1e3, 1e4], num_terms=2, term_weights=[1e5, 1e6]
        ),
    )
    terms = np.full(7, np.nan)
    assert part("total_reward")(e, terms) == -1 - 20 + 300 + 4e3 - 5e4 + 6e5 + 7e6
    assert terms.tolist() == [-1, -2, 3, 4, -5, 6, 7]


# ---------------------------------------------------------------- a decision begins


def test_the_arrival_rate_fades(part):
    """5 arrivals in 5 s, with a time constant of 10 s and half a request per second before."""
    found = E(rate=0.5, rate_arrived=3, rate_clock=2.0)
    part("update_rate")(E(rate_memory=10.0), found, 7.0, 8)
    assert found.rate == (0.5 * 10 + 5) / (10 + 5)
    assert (found.rate_arrived, found.rate_clock) == (8, 7.0)


@pytest.mark.parametrize(("function", "at_boundary"), [((0, 7), []), ((5, 7), [("kind", 5, 7, "row")])])
def test_calls_before_a_decision(part, function, at_boundary):
    calls = []
    e = E(
        run=E(w=E(clock=3.0), tracker=E(next_arrival=4)),
        settings=E(boundary_function=function, show=0),
        episode=E(),
    )
    others = {
        "clear_decision": lambda run: calls.append("clear"),
        "update_rate": lambda settings, found, clock, arrived: calls.append(("rate", clock, arrived)),
        "boundary_at": lambda c, j: lambda where: calls.append(("kind", c, j, where)),
        "window_update": lambda env: calls.append("window"),
        "start_decision": lambda env: calls.append("start"),
    }
    part("begin", **others)(e, "row")
    assert calls == ["clear", ("rate", 3.0, 4), *at_boundary, "window", "start"]


# ---------------------------------------------------------------- a decision is carried out


@pytest.mark.parametrize(
    ("boundary", "outcome", "status"),
    [
        (DECIDE, RUNNING, OK),
        (DONE, TERMINATED, OK),
        (HORIZON, TRUNCATED, HORIZON),
        (STALLED, TRUNCATED, STALLED),
        (LOG_FULL, FAILED, LOG_FULL),
    ],
)
def test_an_iteration_is_accounted_for_before_the_next_begins(part, boundary, outcome, status):
    calls = []
    w = E(clock=10.0, total_finished=2, total_delivered_tokens=30, total_recomputed_tokens=40)
    e = E(run=E(w=w, tracker=E(next_arrival=5)), episode=episode(status=-1))

    def carry_out(run, batch_time, batch_params):
        calls.append((batch_time, batch_params))
        w.clock, w.total_finished, w.total_delivered_tokens, w.total_recomputed_tokens = 11.0, 3, 31, 41
        return OK

    def next_boundary(run):
        w.clock, run.tracker.next_arrival = 13.0, 6
        return boundary

    others = {
        "open_view": lambda env: E(batch_time="model", batch_params="its parameters"),
        "carry_out": carry_out,
        "next_boundary": next_boundary,
        "account": lambda env, *counts: calls.append(counts),
        "earn_terms": lambda env, where, before: calls.append((where, before)),
        "begin": lambda env, where: calls.append(where),
    }
    assert part("advance", **others)(e, "row") == outcome
    assert e.episode.status == status
    assert calls == [("model", "its parameters"), (10.0, 11.0, 3, 5, 30, 40), ("row", 10.0), "row"]


def test_a_refused_decision_fails(part):
    w = E(clock=10.0, total_finished=2, total_delivered_tokens=30, total_recomputed_tokens=40)
    e = E(run=E(w=w, tracker=E(next_arrival=5)), episode=episode())
    others = {
        "open_view": lambda env: E(batch_time=None, batch_params=None),
        "carry_out": lambda run, *_: BAD_ADMIT,
        "next_boundary": lambda run: pytest.fail("no time passes"),
    }
    assert part("advance", **others)(e, "row") == FAILED
    assert e.episode.status == BAD_ADMIT


class Iterations:
    """Stubs of the functions of a step: iterations end with given outcomes, with or without something to decide."""

    def __init__(self, outcomes, decide=()):
        self.outcomes, self.decide, self.calls = list(outcomes), list(decide), []

    def functions(self):
        return {
            "reset_terms": lambda e: self.calls.append("forget"),
            "advance": self.advance,
            "something_to_decide": lambda e: self.decide.pop(0),
            "settle": lambda e: self.calls.append("settle"),
        }

    def advance(self, e, where):
        self.calls.append("advance")
        return self.outcomes.pop(0)

    def apply(self, where, action):
        self.calls.append((where, action))
        return COMPLETE


APPLY = ("row", "action")
ALWAYS = (0, 0)
"""Kernel of a kind that is asked at every boundary."""


@pytest.mark.parametrize(
    ("settings", "outcomes", "decide", "outcome", "calls", "held"),
    [
        (E(hold=0, skip=0), [RUNNING], [], RUNNING, [APPLY, "advance"], 0),
        (E(hold=0, skip=0), [TERMINATED], [], TERMINATED, [APPLY, "advance"], 0),
        (E(hold=1, skip=0), [RUNNING], [], RUNNING, [APPLY, "advance"], 1),
        (E(hold=3, skip=1), [RUNNING] * 3, [], RUNNING, [APPLY, "advance"] * 3, 3),
        (E(hold=3, skip=0), [RUNNING, TRUNCATED], [], TRUNCATED, [APPLY, "advance"] * 2, 1),
        (E(hold=0, skip=1), [RUNNING], [True], RUNNING, [APPLY, "advance"], 0),
        (
            E(hold=0, skip=1),
            [RUNNING] * 3,
            [False, False, True],
            RUNNING,
            [APPLY, *["advance", "settle"] * 2, "advance"],
            0,
        ),
        (E(hold=0, skip=1), [RUNNING, FAILED], [False], FAILED, [APPLY, "advance", "settle", "advance"], 0),
    ],
)
def test_iterations_of_a_step(part, settings, outcomes, decide, outcome, calls, held):
    iterations = Iterations(outcomes, decide)
    e = E(settings=E(**vars(settings), asks_function=ALWAYS), episode=episode())
    step = part("step_one", **iterations.functions())
    assert step(e, "row", "action", iterations.apply) == outcome
    assert iterations.calls == ["forget", *calls]
    assert not iterations.outcomes
    assert (e.episode.held, e.episode.num_ignored) == (held, 0)


def test_no_time_passes_while_a_decision_is_composed_or_once_the_episode_is_over(part):
    iterations = Iterations([])
    step = part("step_one", **iterations.functions())
    e = E(settings=E(hold=3, skip=1, asks_function=ALWAYS), episode=episode())
    assert step(e, "row", "action", lambda where, action: MORE) == RUNNING
    assert (iterations.calls, e.episode.held, e.episode.num_ignored) == (["forget"], 0, 0)
    for over in (TERMINATED, TRUNCATED):
        e = E(settings=E(hold=3, skip=1, asks_function=ALWAYS), episode=episode(over=over))
        assert step(e, "row", "action", iterations.apply) == over
        assert (e.episode.held, e.episode.num_ignored) == (0, 0)
    assert iterations.calls == ["forget"] * 3


# ---------------------------------------------------------------- orders to an environment


@pytest.mark.parametrize(
    ("boundary", "over"), [(DECIDE, RUNNING), (DONE, TERMINATED), (HORIZON, TRUNCATED), (STALLED, TRUNCATED)]
)
def test_a_start_records_whether_the_episode_is_already_over(part, boundary, over):
    begun, e = [], E(run="run", episode=episode(over=9), settings=E(asks_function=ALWAYS))
    do = part(
        "process_one", next_boundary=lambda run: boundary, begin=lambda env, where: begun.append((env, where))
    )
    assert do(e, "row", stepping.START, None, None) == RUNNING
    assert e.episode.over == over
    assert begun == [(e, "row")]


@pytest.mark.parametrize("anything", [True, False])
def test_a_decision_from_outside_begins(part, anything):
    begun, e = [], E(run="run", episode=episode())
    do = part(
        "process_one",
        begin=lambda env, where: begun.append((env, where)),
        is_asked=lambda env, where: anything,
    )
    assert do(e, "row", stepping.BEGIN, None, None) == int(anything)
    assert begun == [(e, "row")]


def test_a_decision_from_outside_is_composed(part):
    e, given = E(run="run", episode=episode()), []

    def apply(where, action):
        given.append((where, action, e.episode.num_ignored))
        return 1

    assert part("process_one")(e, "row", stepping.COMPOSE, "action", apply) == 1
    assert given == [("row", "action", 0)]
    assert e.episode.held == 7  # set from outside


def test_a_step_order_steps_the_environment(part):
    do = part("process_one", step_one=lambda *arguments: arguments)
    e = E(run="run", episode=episode())
    assert do(e, "row", stepping.STEP, "action", "apply") == (e, "row", "action", "apply")


@pytest.mark.parametrize(("features", "usual"), [((0, 3), []), ((2, 3), [0.0, 1.0])])
def test_parts_of_an_observation_are_consecutive(part, features, usual):
    """Two standard numbers, then one and three of two parts; a kind of action may add to the standard ones."""
    settings = E(
        features_function=features,
        usual_size=2,
        num_parts=2,
        part_functions=[4, 5, 6, 7],
        part_sizes=[1, 3],
        mask_function=(8, 9),
    )
    e, calls, observation = E(settings=settings), [], np.arange(7.0)
    others = {
        "open_view": lambda env: E(batch_time="model", batch_params="its parameters"),
        "write_observation": lambda *arguments: calls.append(arguments[2:]),
        "features_at": lambda *at: lambda where, out: calls.append((where, at, out.tolist())),
        "part_at": lambda *at: lambda where, out: calls.append((where, at, out.tolist())),
        "mask_at": lambda *at: lambda where, mask: calls.append((where, at, mask)),
    }
    part("observe", **others)(e, "row", observation, "mask")
    assert calls == [
        ("model", "its parameters"),
        *([("row", (2, 3), usual)] if usual else []),
        ("row", (4, 5), [2.0]),
        ("row", (6, 7), [3.0, 4.0, 5.0]),
        ("row", (8, 9), "mask"),
    ]
