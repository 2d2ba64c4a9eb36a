"""The weighted router: every term by hand, special cases, and independence of units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.runs.router_views import router_view
from kvgym.baselines.routing.weighted import WEIGHTS, Weighted, weighted_kernel
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.policies.policy import policy_defaults
from kvgym.policies.routing import Router, RouterInfo
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System, Worker
from kvgym.simulator.tables import BUSY, READY
from kvgym.simulator.view import ClusterView
from kvgym.workloads.table import RequestTable

NAMES = [weight.name for weight in WEIGHTS]
ZERO = dict.fromkeys(NAMES, 0.0)

# Two workers with 12 requests of 480 tokens; with the new one of 30 + 10 tokens the mean is 520 / 13 = 40 tokens, and
# its size is 40 / (40 + 40) = 1/2.
FIGURES = [
    {"kv_capacity": 200, "batch_base": 1.0, "batch_decode": 0.1, "batch_context": 0.01, "batch_prefill": 0.05},
    {"kv_capacity": 400, "batch_base": 0.5, "batch_decode": 0.2, "batch_context": 0.02, "batch_prefill": 0.1},
]  # fmt: skip
STATES = [
    {"outstanding_tokens": 320, "outstanding_requests": 9, "num_waiting": 4, "kv_allocated": 180, "clock": 7.0,
     "phase": BUSY, "until": 9.5},
    {"outstanding_tokens": 160, "outstanding_requests": 3, "num_waiting": 0, "kv_allocated": 90, "clock": 8.0,
     "phase": READY, "until": 3.0},
]  # fmt: skip

# Worker 0: full = 1 + 0.1 * 200 / 40 + 0.01 * 200 = 3.5, now = 1 + 0.1 * min(9, 5) + 0.01 * min(320, 200) = 3.5.
# Worker 1: full = 0.5 + 0.2 * 400 / 40 + 0.02 * 400 = 10.5, now = 0.5 + 0.2 * 3 + 0.02 * 160 = 4.3.
BY_HAND = {
    "work": (3.5 * 320 / 200, 10.5 * 160 / 400),
    "long_work": (3.5 * 320 / 200 / 2, 10.5 * 160 / 400 / 2),
    "requests": (3.5 * 9 * 40 / 200, 10.5 * 3 * 40 / 400),
    "waiting": (3.5 * 4 * 40 / 200, 0.0),
    "held": (3.5 * 180 / 200, 10.5 * 90 / 400),
    "lacking": (3.5 * 20 / 200, 0.0),
    "pace": (3.5, 4.3),
    "long_pace": (1.75, 2.15),
    "prompt": (0.05 * 30, 0.1 * 30),
    "prompt_delay": (0.05 * 30 * 5, 0.1 * 30 * 3),
    "token_delay": ((0.1 + 0.01 * 40) * 5, (0.2 + 0.02 * 40) * 3),
    "batch": (1.5, 0.0),  # it is 8: the latest of arrival and boundaries
    # Of 30 prompt tokens worker 0 has 20 in its prefix cache, and worker 1 has 10.
    "cached": (-0.05 * 20, -0.1 * 10),
    "uncached": (0.05 * 10, 0.1 * 20),
    "uncached_delay": (0.05 * 10 * 9, 0.1 * 20 * 3),
    # The requests of worker 0 have 70 prompt tokens to prefill, those of worker 1 have 50.
    "backlog": (0.05 * 70, 0.1 * 50),
    "backlog_delay": (0.05 * 70 * 9, 0.1 * 50 * 3),
    "below": (0.0, -0.1 * 10),  # the host of worker 1 has the next 10 tokens
}


def choice(weights: dict[str, float], time: float = 1.0) -> int:
    """Return the kernel's choice, with all times multiplied by ``time``."""
    hosts = [[], [1]]
    view = router_view(
        FIGURES, STATES, [2, 1], hosts=hosts, backlog=[70, 50], arrival_time=6.0, predicted_len=10
    )
    problems, workers, requests = view.problems, view.workers, view.requests
    for name in ("batch_base", "batch_decode", "batch_context", "batch_prefill"):
        problems[name] *= time
    for name in ("clock", "until"):
        workers[name] *= time
    requests["arrival_time"] *= time
    router = Weighted(**{**ZERO, **weights})
    return int(uncompiled(weighted_kernel)(view, router.params(), np.zeros(1, np.int64)))


def test_every_term_is_covered() -> None:
    assert list(BY_HAND) == NAMES
    assert policy_defaults(Weighted) == {weight.name: weight.default for weight in WEIGHTS}
    assert Weighted.weights() == WEIGHTS


@pytest.mark.parametrize("name", NAMES)
def test_terms_by_hand(name: str) -> None:
    """Compare a term with the difference of another one, ``pace``, from below and from above."""
    here, there = BY_HAND[name]
    pace = BY_HAND["pace"][1] - BY_HAND["pace"][0]
    if name == "pace":
        assert (choice({"pace": 1.0}), choice({"pace": -1.0})) == (0, 1)
        return
    even = (here - there) / pace  # with this weight of pace both workers are equal
    scale = 0.3 / max(1.0, abs(even)) / 2
    for shift, expected in ((1e-6, 0), (-1e-6, 1)):
        assert choice({name: scale, "pace": scale * even + shift}) == expected, name


@given(
    st.lists(st.floats(-0.2, 0.5), min_size=len(NAMES), max_size=len(NAMES)),
    st.sampled_from([0.125, 2.0, 64.0]),
)
@settings(max_examples=50, deadline=None)
def test_the_unit_of_time_does_not_matter(values: list[float], factor: float) -> None:
    weights = dict(zip(NAMES, values, strict=True))
    assert choice(weights) == choice(weights, factor)


def requests(n: int = 60, seed: int = 0, gap: float = 0.4) -> RequestTable:
    rng = np.random.default_rng(seed)
    return RequestTable.from_columns(
        arrival_time=np.cumsum(rng.exponential(gap, n)),
        prompt_len=rng.integers(1, 30, n),
        output_len=rng.integers(1, 12, n),
    )


def routed(system: System, router: Any, table: RequestTable) -> list[int]:
    found: list[int] = simulate(system, table, "fcfs", router=router).requests["worker"].tolist()
    return found


def test_the_classical_routers_are_special_cases() -> None:
    equal = System(64, AffineBatchTime(0.3, 0.02, 0.02, 0.001)).replicate(3)
    table = requests()
    only_requests = Weighted(**{**ZERO, "requests": 1.0})
    assert routed(equal, only_requests, table) == routed(equal, "join_shortest_queue", table)
    # Times that do not depend on the memory, in a power of 2: a quotient of whole numbers, as the rule compares them.
    unit = System.cluster([Worker(64, UnitBatchTime()), Worker(128, UnitBatchTime())])
    only_work = Weighted(**{**ZERO, "work": 1.0})
    assert routed(unit, only_work, table) == routed(unit, "least_outstanding_work", table)


def test_a_fast_worker_gets_more() -> None:
    fast, slow = AffineBatchTime(0.1, 0.01, 0.01, 0.0), AffineBatchTime(0.4, 0.04, 0.04, 0.0)
    system = System.cluster([Worker(64, slow), Worker(64, slow), Worker(64, fast), Worker(64, fast)])
    assert set(routed(system, "weighted", requests(200))) == {2, 3}  # they are enough
    counts = np.bincount(routed(system, "weighted", requests(200, gap=0.02)), minlength=4)
    assert counts[2:].sum() > 1.5 * counts[:2].sum()
    assert (counts > 0).all()


def test_ties_go_to_the_lowest_index() -> None:
    system = System(200, UnitBatchTime()).replicate(3)
    table = RequestTable.from_columns(arrival_time=[0, 20, 40], prompt_len=[3] * 3, output_len=[2] * 3)
    assert routed(system, "weighted", table) == [0, 0, 0]


def test_routers_in_python_see_the_same_figures() -> None:
    seen: list[list[float]] = []

    class Looking(Router):
        info = RouterInfo(name="looking", summary="looks")

        def route(self, view: ClusterView) -> int:
            names = ("batch_base", "batch_decode", "batch_context", "batch_prefill")
            seen.append([float(view.column(name)[1]) for name in names])
            return 0

    model = AffineBatchTime(0.25, 0.5, 0.5, 0.125)
    system = System.cluster([Worker(64, UnitBatchTime()), Worker(64, model)])
    simulate(system, requests(1), "fcfs", router=Looking())
    assert seen == [list(model.rough_figures(64))]
