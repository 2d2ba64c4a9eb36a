"""The prefix cache of a mock server finds in observed prompts what the simulator finds in the trace."""

from dataclasses import replace

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import simulate
from kvgym.servers.endpoint.client import Measured, meet, send
from kvgym.servers.endpoint.mock import MockServer
from kvgym.servers.endpoint.online import OnlineRun
from kvgym.servers.endpoint.target import Target
from kvgym.simulator.system import System
from kvgym.workloads.prefix.prefixes import part_hashes
from kvgym.workloads.table import RequestTable

SYSTEM = System(
    kv_capacity=16_000, block_size=16, batch_time=AffineBatchTime(constant=0.02), prefix_cache="scheduled"
)
SHARED, SESSIONS, TURNS = 70, 7, 3


def conversations():
    """Return sessions that begin with one system prompt, each turn with all of its session before it."""
    rng = np.random.default_rng(0)
    session, turn = np.repeat(np.arange(SESSIONS), TURNS), np.tile(np.arange(TURNS), SESSIONS)
    own, output = rng.integers(5, 60, len(turn)), rng.integers(3, 30, len(turn))
    prompt = np.zeros(len(turn), np.int64)
    for i in range(len(turn)):
        prompt[i] = own[i] + (SHARED if turn[i] == 0 else prompt[i - 1] + output[i - 1])
    first = session * TURNS
    ends = np.tile([0, SHARED], (len(turn), 1))
    hashes = part_hashes(np.zeros((len(turn), 1), np.int64), ends, first, prompt + output, 16)
    return RequestTable.from_columns(
        arrival_time=session + 0.1 * turn, prompt_len=prompt, output_len=output, hashes=hashes,
        session_id=session, turn=turn + 1, think_time=np.where(turn > 0, 0.3, 0.0),
    )  # fmt: skip


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_hit_rates_are_those_of_a_simulation(api):
    table = conversations()
    server = MockServer(OnlineRun(SYSTEM, make_policy("vllm_v1"), most=100), speed=20.0)
    server.start()
    try:
        found: list[Measured] = []
        send(meet(Target.of(server.url, api=api)), table, closed=True, found=found)
    finally:
        server.close()
    assert [each.reason for each in found] == [""] * len(table)
    assert sum(each.prompt_len for each in found) == table.prompt_len.sum()
    observed = sum(each.cached_tokens for each in found) / table.prompt_len.sum()
    closed = replace(SYSTEM, sessions="closed")
    totals = simulate(closed, table, "vllm_v1").worker[0]
    simulated = totals["total_hit_tokens"] / totals["total_known_tokens"]
    assert simulated > 0.5
    assert observed == pytest.approx(simulated, rel=0.01)


def test_200_clients_at_once():
    server = MockServer(OnlineRun(SYSTEM, make_policy("vllm_v1"), most=300), speed=20.0)
    server.start()
    try:
        table = RequestTable.from_columns(
            arrival_time=np.zeros(200), prompt_len=np.full(200, 40), output_len=np.full(200, 10)
        )
        found: list[Measured] = []
        send(meet(Target.of(server.url)), table, found=found)
    finally:
        server.close()
    assert [(each.prompt_len, each.output_len) for each in found] == [(40, 10)] * 200
    assert all(each.reason in ("", "the answer came in one piece") for each in found)  # on a busy machine
