"""Shared links: cases worked by hand, a naive computation of the same, and hand-overs that overlap with prefills."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.runs.fleets import CASES, table_of
from kvgym.batch_time import AffineBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import ConfigError
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import make_policy
from kvgym.policies.routing import Router, RouterInfo
from kvgym.policies.runner import SimulationResult, prepare_run, result_of, simulate
from kvgym.simulator.cluster import links
from kvgym.simulator.cluster.tables import FLOW, LINK, PORT
from kvgym.simulator.fleet import Failures
from kvgym.simulator.system import System, Worker
from kvgym.simulator.tables import REQUEST, UNKNOWN
from kvgym.simulator.view import ClusterView
from kvgym.workloads.table import RequestTable

SECOND = AffineBatchTime(constant=1.0)


class Sends(Router):
    """Sends each request to the workers of its list, for prefill and decode."""

    info = RouterInfo(name="sends", summary="workers from a list")

    def __init__(self, *stages: Sequence[int]) -> None:
        self.stages = stages

    def route(self, view: ClusterView) -> int:
        """Return the worker of the list."""
        return self.stages[int(view.span[0] > 0)][view.request_id]


def cluster(prefill: int, decode: int, **rules: Any) -> System:
    """Return workers with batches of one second and memory for all."""
    workers = [Worker(10_000, SECOND, "prefill")] * prefill + [Worker(10_000, SECOND, "decode")] * decode
    return System.cluster(workers, **{"transfer_time": 0.01, "transfer_link": "shared", **rules})


def prompts(*tokens: int, arrival: float = 0.0, output: int = 2) -> RequestTable:
    """Return requests that hand these many KV tokens over."""
    return RequestTable.from_columns(
        arrival_time=np.full(len(tokens), arrival),
        prompt_len=np.array(tokens) - 1,
        output_len=np.full(len(tokens), output),
    )


def play(system: System, table: RequestTable, router: Any, compiled: bool = True) -> SimulationResult:
    """Run requests with long prompts one after the other."""
    return simulate(system, table, "fcfs", router=router, compiled=compiled)


# ---------------------------------------------------------------- worked by hand


@pytest.mark.parametrize("compiled", [True, False])
def test_cases_worked_by_hand(compiled: bool) -> None:
    # One target: 100 tokens at 0.01 s and a latency of 0.5 s, sent at 1 and, from another source, at 2. The first moves
    # from 1.5 and has 50 left at 2, when the second joins; at half the rate it lands at 3. The second moves
    # nothing until 2.5, then at half the rate: 25 tokens by 3, and the other 75 alone: 3.75.
    two = RequestTable.from_columns(arrival_time=[0.0, 1.0], prompt_len=[99, 99], output_len=[6, 6])
    result = play(cluster(2, 1, transfer_latency=0.5), two, Sends([0, 1], [2, 2]), compiled)
    assert result.requests["ready_time"].tolist() == [3.0, 3.75]
    assert result.transfer_wait is not None
    assert result.transfer_wait.tolist() == [0.5, 0.25]
    assert compute_metrics(result, ["transfer_wait"]) == {"transfer_wait": 0.375}
    # Two transfers share source and target, one has other ports.
    three = prompts(100, 100, 100)
    result = play(cluster(2, 2), three, Sends([0, 1, 0], [2, 3, 2]), compiled)
    assert result.requests["ready_time"].tolist() == [3.0, 2.0, 3.0]
    assert result.requests["finish_time"].tolist() == [4.0, 3.0, 4.0]
    # The busier port decides: the first shares its source with the second, which shares its target with the third. When
    # the first two have sent 50 and 50 (at 2), nothing has landed; all land at 3, as each has half of a port.
    result = play(cluster(2, 2), three, Sends([0, 0, 1], [2, 3, 3]), compiled)
    assert result.requests["ready_time"].tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("compiled", [True, False])
def test_a_worker_fails_in_a_transfer(compiled: bool) -> None:
    # A prefill worker and two decode workers, the first of which fails at 1.5. The request is prefilled again, its KV
    # lands at 4 on the other one, and its first token stays.
    case = next(case for name, case in CASES.items() if name.startswith("failure in a transfer"))
    system = replace(case.system(), transfer_link="shared")
    once = simulate(system, table_of((0, 2)), "fcfs", router=case.router, compiled=compiled)
    assert once.requests["first_token_time"].tolist() == [1.0]
    assert once.requests["ready_time"].tolist() == [4.0]
    assert once.requests["finish_time"].tolist() == [6.0]
    assert once.fleet is not None
    assert sum(once.fleet.gpu_seconds()) == 13.5
    # Transfers take 2 s alone. The first is sent at 1 and has half of it left at 2, when the second leaves the same
    # port; it is lost at 2.5. The second has then sent an eighth, so it would land at 4.25; from 4 on, when the first
    # comes again, they share both ports: the second lands at 4.5, the first has then an eighth, and lands at 6.25.
    slow = replace(
        system,
        transfer_time=2 / 1024,
        fleet=replace(once.system.fleet, failures=Failures(at=((2.5, 1),), repair=100)),
    )
    twice = simulate(slow, table_of((0, 2), (1, 1)), "fcfs", router=case.router, compiled=compiled)
    assert twice.requests["ready_time"].tolist() == [6.25, 4.5]
    assert twice.requests["first_token_time"].tolist() == [1.0, 2.0]
    assert twice.requests["finish_time"].tolist() == [8.25, 5.5]


def test_a_link_without_others_takes_the_same_bits() -> None:
    rng = np.random.default_rng(1)
    n = 40
    table = RequestTable.from_columns(
        arrival_time=60.0 * np.arange(n) + rng.random(n),
        prompt_len=rng.integers(1, 900, n),
        output_len=rng.integers(1, 9, n),
    )
    for seconds in (0.0, 0.0137):
        shared = cluster(2, 2, transfer_time=seconds, transfer_latency=0.3)
        one, other = (
            play(system, table, "round_robin")
            for system in (shared, replace(shared, transfer_link="private"))
        )
        assert one.requests.tobytes() == other.requests.tobytes()
        assert one.worker.tobytes() == other.worker.tobytes()
        assert one.transfer_wait is not None
        assert not one.transfer_wait.any()
        assert other.transfer_wait is None


def busy() -> tuple[System, RequestTable]:
    """Return workers and requests of which several travel at once."""
    rng = np.random.default_rng(2)
    table = RequestTable.from_columns(
        arrival_time=np.sort(rng.uniform(0, 20, 40)),
        prompt_len=rng.integers(1, 400, 40),
        output_len=rng.integers(1, 9, 40),
    )
    return cluster(3, 2, transfer_latency=0.3), table


def test_a_state_in_the_middle_of_transfers_can_be_saved() -> None:
    system, table = busy()
    whole = play(system, table, "join_shortest_queue")
    assert whole.transfer_wait is not None
    assert (whole.transfer_wait > 0).sum() > 10
    run, _ = prepare_run(system, table, make_policy("fcfs"), "join_shortest_queue")
    while run.link["num_flows"][0] < 4:
        assert not run.run(budget=1)
    states = [array.copy() for array in run.changing()]
    twin = copy.deepcopy(run)
    for _ in range(2):
        assert run.run()
        assert run.requests.tobytes() == whole.requests.tobytes()
        for array, state in zip(run.changing(), states, strict=True):
            array[...] = state
        run._ended = False
    assert twin.run()
    waited = result_of(twin, make_policy("fcfs")).transfer_wait
    assert waited is not None
    assert waited.tolist() == whole.transfer_wait.tolist()
    plain = play(system, table, "join_shortest_queue", compiled=False)
    assert plain.requests.tobytes() == whole.requests.tobytes()
    assert not twin.ports["num_sent"].any()
    assert not twin.ports["num_received"].any()


# ---------------------------------------------------------------- a naive computation


def naive(sent: list[tuple[float, int, int, int]], latency: float, seconds: float) -> list[float]:
    """Return the ends of transfers (time, source, target, tokens), all of them advanced from change to change."""
    left = {i: float(tokens) for i, (*_, tokens) in enumerate(sent)}
    ends = [np.nan] * len(sent)
    now, waiting, going = 0.0, sorted(range(len(sent)), key=lambda i: sent[i][0]), set[int]()
    while waiting or going:
        share = {i: max(sum(sent[j][port] == sent[i][port] for j in going) for port in (1, 2)) for i in going}
        begins = {i: sent[i][0] + latency for i in going}
        steps = [sent[waiting[0]][0]] if waiting else []
        steps += [begins[i] if begins[i] > now else now + seconds * left[i] * share[i] for i in going]
        then = min(steps)
        for i in going:
            if begins[i] <= now and seconds > 0:
                left[i] -= (then - now) / (seconds * share[i])
        now = then
        for i in sorted(going):
            if begins[i] <= now and seconds * left[i] * share[i] <= 1e-9:
                ends[i] = now
                going.remove(i)
        while waiting and sent[waiting[0]][0] <= now:
            going.add(waiting.pop(0))
    return ends


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 2), st.integers(3, 5), st.integers(0, 40)), max_size=12
    ),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.0, 0.125]),
)
def test_the_ends_agree_with_a_naive_computation(
    drawn: list[tuple[int, int, int, int]], latency: float, seconds: float
) -> None:
    sent = sorted((time / 4, *rest) for time, *rest in drawn)
    n = len(sent)
    requests = np.zeros(n, REQUEST).view(np.recarray)
    ports = np.zeros(6, PORT).view(np.recarray)
    ports.first_sent = ports.first_received = UNKNOWN
    tracker = SimpleNamespace(clock=0.0, transfer_head=UNKNOWN)
    problem = SimpleNamespace(transfer_latency=latency, transfer_time=seconds)
    c: Any = SimpleNamespace(
        tracker=tracker, problems=[problem], requests=requests, ports=ports, flows=np.zeros(n, FLOW).view(np.recarray),
        link=np.zeros(1, LINK).view(np.recarray),
    )  # fmt: skip
    ends, to_send = [np.nan] * n, list(range(n))
    while to_send or tracker.transfer_head != UNKNOWN:
        first = tracker.transfer_head
        landing = requests[first].ready_time if first != UNKNOWN else np.inf
        starting = sent[to_send[0]][0] if to_send else np.inf
        tracker.clock = min(landing, starting)
        assert landing == (
            requests.ready_time[[f.heap for f in c.flows[: c.link[0].num_flows]]].min(initial=np.inf)
        )
        if landing <= starting:
            ends[first] = landing
            uncompiled(links.leave_ports)(c, first)
        else:
            i = to_send.pop(0)
            time, source, target, tokens = sent[i]
            requests[i].worker, requests[i].ready_time = target, time + latency + seconds * tokens
            uncompiled(links.join_ports)(c, source, i, float(tokens))
    np.testing.assert_allclose(ends, naive(sent, latency, seconds), atol=1e-9)
    assert not ports.num_sent.any()
    assert not ports.num_received.any()
    assert (c.flows.waited >= 0).all()


# ---------------------------------------------------------------- overlap


def test_what_was_sent_while_the_prompt_ran_is_not_sent_again() -> None:
    # The batch takes 1 s, in which 100 of 300 tokens could be sent; of 80, all but the last of 4 layers.
    result = play(
        cluster(2, 1, transfer_link="private", transfer_overlap=4), prompts(300, 80), Sends([0, 1], [2, 2])
    )
    assert result.requests["ready_time"].tolist() == pytest.approx([3.0, 1.2])
    shared = play(cluster(2, 1, transfer_overlap=4), prompts(300, 80), Sends([0, 1], [2, 2]))
    assert shared.requests["ready_time"].tolist() == pytest.approx([3.2, 1.4])


def test_wrong_settings() -> None:
    with pytest.raises(ConfigError, match="transfer_link = 'fast'; valid: private, shared"):
        cluster(1, 1, transfer_link="fast")
    with pytest.raises(ConfigError, match="transfer_overlap = -1; expected layers"):
        cluster(1, 1, transfer_overlap=-1)
