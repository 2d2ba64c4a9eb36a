"""Asynchronous loads: hand-worked runs with their times, what always holds, and what is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import prepare_run, simulate
from kvgym.simulator.prefix.host_memory import HostMemory
from kvgym.simulator.system import System
from kvgym.simulator.tables import UNKNOWN, WAITING
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

B, T = 2.0**-8, 2.0**-14
"""Seconds of a batch, and of a token in it: powers of two, so that times are exact."""

MS = 2.0**-10


class Case(NamedTuple):
    """A run by hand: blocks of 4 tokens, and transfers of ``load`` and ``store`` seconds a block."""

    requests: list[tuple[float, str, int, int, int]]
    """Arrival, text, tokens that are its beginning, prompt, output."""
    blocks: int
    host: int
    load: float
    store: float
    first_token: list[float]
    finish: list[float]
    loaded: int
    stall: float = 0.0
    outputs: bool = True


def batches(*tokens: int) -> float:
    """Return the seconds of batches with these tokens."""
    return sum(B + T * count for count in tokens)


def run(case: Case, policy: str = "vllm_v1") -> Any:
    """Return the result of a case."""
    arrival, text, common, prompt, output = zip(*case.requests, strict=True)
    tokens = np.array(prompt) + output
    chains = [
        [(text[i], j) if 4 * (j + 1) <= common[i] else (i, j) for j in range(count // 4)]
        for i, count in enumerate(tokens.tolist())
    ]
    table = RequestTable(
        arrival,
        prompt,
        output,
        hashes=BlockHashes.from_rows(chains, tokens // 4 * 4, 4),
        predicted_output_len=output,
    )
    host = HostMemory(4 * case.host, case.load / 4, case.store / 4, load="async", outputs=case.outputs)
    system = System(
        4 * case.blocks,
        AffineBatchTime(B, per_prefill_token=T, per_decode_token=T),
        progress_on_evict="recompute",
        requeue="front",
        block_size=4,
        output_kv="next_iteration",
        prefix_cache="scheduled",
        host_memory=host,
    )
    return simulate(system, table, make_policy(policy), compiled=False)


CASES = {
    # 12 tokens are written with the next step; the second takes the GPU but for one block; two are loaded, and the
    # last two tokens computed.
    "loaded where the GPU lacks it": Case(
        [(0.0, "a", 15, 12, 3), (0.1, "b", 16, 13, 3), (0.2, "a", 14, 14, 2)],
        5, 8, MS, MS,
        [batches(12), 0.1 + batches(13), 0.2 + 2 * MS + batches(2)],
        [batches(12, 1, 1), 0.1 + batches(13, 1, 1), 0.2 + 2 * MS + batches(2, 1)],
        2,
    ),
    "the GPU has the first ones": Case(
        [(0.0, "a", 17, 16, 1), (0.1, "b", 10, 9, 1), (0.2, "a", 17, 17, 1)],
        5, 16, MS, MS,
        [batches(16), 0.1 + batches(9), 0.2 + 2 * MS + batches(1)],
        [batches(16), 0.1 + batches(9), 0.2 + 2 * MS + batches(1)],
        2,
    ),
    # The second batch waits for both writes of the first request, and the load for those of the second.
    "a load waits for writes from its memory": Case(
        [(0.0, "a", 9, 8, 1), (0.01, "b", 13, 12, 1), (0.02, "a", 9, 9, 2)],
        4, 8, MS, 16 * MS,
        [batches(8), batches(8) + 32 * MS + batches(12), batches(8) + 80 * MS + batches(12) + MS + batches(1)],
        [batches(8), batches(8) + 32 * MS + batches(12), batches(8) + 80 * MS + batches(12) + MS + batches(1, 1)],
        1,
        batches(8) + 32 * MS - 0.01 + 48 * MS,
    ),
    "two want the same: one loads, and the other finds it": Case(
        [(0.0, "a", 13, 12, 1), (0.1, "b", 17, 16, 1), (0.2, "a", 13, 13, 2), (0.2, "a", 13, 13, 2)],
        5, 16, 8 * MS, MS,
        [batches(12), 0.1 + batches(16), *[0.2 + 16 * MS + batches(2)] * 2],
        [batches(12), 0.1 + batches(16), *[0.2 + 16 * MS + batches(2, 2)] * 2],
        2,
    ),
    "a full memory drops the least recent": Case(
        [(0.0, "a", 9, 8, 1), (0.1, "b", 9, 8, 1), (0.2, "c", 9, 8, 1), (0.3, "a", 10, 9, 1)],
        3, 4, MS, MS,
        [batches(8), 0.1 + batches(8), 0.2 + batches(8), 0.3 + batches(9)],
        [batches(8), 0.1 + batches(8), 0.2 + batches(8), 0.3 + batches(9)],
        0,
    ),
    "a batch waits for writes from its memory": Case(
        [(0.0, "a", 13, 12, 1), (0.0043, "b", 13, 12, 1)],
        4, 8, MS, 16 * MS,
        [batches(12), batches(12) + 48 * MS + batches(12)],
        [batches(12), batches(12) + 48 * MS + batches(12)],
        0,
        48 * MS,
    ),
    "prompts only": Case(
        [(0.0, "a", 13, 6, 7), (0.1, "b", 17, 16, 1), (0.3, "a", 13, 12, 1)],
        5, 8, MS, MS,
        [batches(6), 0.1 + batches(16), 0.3 + batches(8)],
        [batches(6, 1, 1, 1, 1, 1, 1), 0.1 + batches(16), 0.3 + batches(8)],
        0,
        outputs=False,
    ),
    "outputs too": Case(
        [(0.0, "a", 13, 6, 7), (0.1, "b", 17, 16, 1), (0.3, "a", 13, 12, 1)],
        5, 8, MS, MS,
        [batches(6), 0.1 + batches(16), 0.3 + 2 * MS + batches(1)],
        [batches(6, 1, 1, 1, 1, 1, 1), 0.1 + batches(16), 0.3 + 2 * MS + batches(1)],
        2,
    ),
    # The second is preempted after the fifth batch; the next one waits until its unit has been written. The GPU has
    # kept one of its units.
    "preempted": Case(
        [(0.0, "a", 8, 8, 10), (0.0, "b", 8, 8, 10)],
        6, 16, MS, MS / 4,
        [batches(16)] * 2,
        [
            batches(16, 2, 2, 2, 2) + MS / 2 + batches(1, 1, 1, 1, 1),
            batches(16, 2, 2, 2, 2) + MS / 2 + batches(1, 1, 1, 1, 1) + 2 * MS + batches(1, 1, 1, 1, 1),
        ],
        2,
        MS / 2,
    ),
    "loads take their turn": Case(
        [
            (0.0, "a", 13, 12, 1), (0.05, "b", 13, 12, 1), (0.1, "c", 29, 28, 1),
            (0.2, "a", 13, 13, 1), (0.2, "b", 13, 13, 1),
        ],
        8, 16, 4 * MS, MS,
        [
            batches(12), 0.05 + batches(12), 0.1 + batches(28),
            0.2 + 12 * MS + batches(1), 0.2 + 24 * MS + batches(1),
        ],
        [
            batches(12), 0.05 + batches(12), 0.1 + batches(28),
            0.2 + 12 * MS + batches(1), 0.2 + 24 * MS + batches(1),
        ],
        6,
    ),
    "a prompt that is there whole": Case(
        [(0.0, "a", 9, 8, 1), (0.1, "b", 17, 16, 1), (0.2, "a", 10, 8, 2)],
        5, 8, MS, MS,
        [batches(8), 0.1 + batches(16), 0.2 + MS + batches(1)],
        [batches(8), 0.1 + batches(16), 0.2 + MS + batches(1, 1)],
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_by_hand(name: str) -> None:
    case = CASES[name]
    result = run(case)
    assert result.requests["first_token_time"].tolist() == pytest.approx(case.first_token, abs=1e-12)
    assert result.requests["finish_time"].tolist() == pytest.approx(case.finish, abs=1e-12)
    assert result.tier["total_loaded"].sum() == case.loaded
    if case.stall:
        assert result.tier["stall_time"].sum() == pytest.approx(case.stall, abs=4.5e-3)


def random_case(seed: int) -> tuple[System, RequestTable]:
    """Return requests that share beginnings, on a small GPU, with a small memory below it."""
    rng = np.random.default_rng(seed)
    n = 14
    arrival = np.sort(np.floor(20 * rng.random(n)))
    prompt, output = rng.integers(1, 24, n), rng.integers(1, 9, n)
    texts, tokens = rng.integers(0, 3, n), prompt + output
    chains = [[(int(texts[i]), j) for j in range(count // 4)] for i, count in enumerate(tokens.tolist())]
    table = RequestTable(
        arrival,
        prompt,
        output,
        predicted_output_len=output,
        hashes=BlockHashes.from_rows(chains, tokens // 4 * 4, 4),
    )
    seconds = float(rng.choice([0.0, 0.1, 0.5, 2.0]))
    system = System(
        40,
        AffineBatchTime(1.0),
        progress_on_evict="recompute",
        requeue=str(rng.choice(["front", "arrival", "back"])),
        block_size=4,
        output_kv="next_iteration",
        prefix_cache="scheduled",
        host_memory=HostMemory(int(rng.integers(4, 80)), seconds, seconds, load="async"),
    )
    return system, table


def check_memory(simulation: Any) -> None:
    """Check memory in use and holders of units against the requests that run or hold units while they wait."""
    w, units, prefix = simulation.workers[0], simulation.units[0], simulation.prefix
    slots = simulation.active[0, : w["num_active"]]
    kept = np.flatnonzero(prefix["kept"])
    assert simulation.tier[0]["num_kept"] == len(kept)
    assert (simulation.requests["status"][kept] == WAITING).all()
    assert (prefix["num_units"][kept] == prefix["kept"][kept]).all()
    holders = np.zeros(len(units), np.int64)
    for i in (*slots["request_id"].tolist(), *kept.tolist()):
        first = int(prefix["held"][i])
        np.add.at(holders, simulation.held[first : first + int(prefix["num_units"][i])], 1)
    spare, b = set(), int(simulation.pool[0]["spare"])
    while b != UNKNOWN:
        spare.add(b)
        b = int(units["after"][b])
    used = [b for b in range(int(simulation.pool[0]["num_rows"])) if b not in spare]
    assert (units["holders"][used] == holders[used]).all()
    own = sum(-(-int(kv) // 4) * 4 for kv in slots["num_kv_tokens"])
    private = own - 4 * int(prefix["num_units"][slots["request_id"]].sum())
    assert w["kv_allocated"] == 4 * np.count_nonzero(holders) + private
    assert w["kv_shared"] == own - w["kv_allocated"]
    assert w["kv_allocated"] + w["kv_cached"] <= 40


@pytest.mark.parametrize(
    ("policy", "seeds"),
    [
        ("fcfs", (1, 3)),
        ("lpm", (1, 3)),
        ("ranked", (1, 69)),  # nothing runs, and the first request does not fit beside what another holds
        ("sarathi", (1, 28)),  # two load, and neither could start beside the other
        ("vllm_v1", (1, 3)),
        ("vllm_v1:policy=priority", (2,)),
        ("work_conserving_sjf", (1, 3)),
    ],
)
def test_what_always_holds(policy: str, seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        system, table = random_case(seed)
        simulation, _ = prepare_run(system, table, make_policy(policy), compiled=False)
        decisions = 0
        while not simulation.run(budget=1):
            check_memory(simulation)
            decisions += 1
            assert decisions < 1000
        assert (simulation.requests["finish_time"] > 0).all()
        assert simulation.tier[0]["num_kept"] == 0


def test_loads_that_keep_others_out_are_given_up() -> None:
    """The shortest request needs all memory, of which another holds a part, and is always tried first."""
    case = Case(
        [(0.0, "a", 40, 13, 1), (1.0, "b", 40, 39, 1), (2.0, "a", 40, 13, 8), (2.0, "c", 40, 38, 1)],
        10, 20, MS, MS, [], [], 3,
    )  # fmt: skip
    result = run(case, "work_conserving_sjf")
    assert (result.requests["finish_time"] > 0).all()


def test_policies_with_a_plan_are_refused() -> None:
    system, table = random_case(0)
    with pytest.raises(
        ConfigError, match="choose a policy such as fcfs or vllm_v1, or set load of host_memory"
    ):
        prepare_run(system, table, make_policy("mc_sf"))
