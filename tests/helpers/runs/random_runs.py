"""Random workloads, systems and decisions, for what must hold in every run."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.policies.policy import Decision, Policy, PolicyInfo, SystemInfo
from kvgym.simulator.system import System
from kvgym.simulator.view import SystemView
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

RANDOM_ROUNDS = 120


@st.composite
def tables(draw: st.DrawFn) -> RequestTable:
    n = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    grid = draw(st.sampled_from([0.0, 0.5, 1.0]))
    arrival = np.cumsum(rng.exponential(draw(st.sampled_from([0.0, 0.5, 2.0, 10.0])), n))
    output = rng.integers(1, 9, n)
    guess = np.maximum(1, output + rng.integers(-2, 3, n)) if draw(st.booleans()) else output
    return RequestTable.from_columns(
        arrival_time=np.floor(arrival / grid) * grid if grid else arrival,
        prompt_len=rng.integers(1, 11, n),
        output_len=output,
        predicted_output_len=guess,
        predicted_low=np.maximum(1, guess - 2),
        predicted_high=guess + 2,
        class_id=rng.integers(0, 2, n),
        ttft_slo=rng.uniform(1, 9, n),
        tbt_slo=rng.uniform(0.5, 3, n),
        classes=(ClassStatistics("short", 0.2, 5.0, 3.0), ClassStatistics("long", 0.2, 5.0, 6.0)),
    )


def systems() -> st.SearchStrategy[System]:
    made = st.builds(
        System,
        kv_capacity=st.integers(18, 60),
        block_size=st.sampled_from([1, 1, 1, 2, 3, 4, 7, 16, 18]),
        batch_time=st.sampled_from([UnitBatchTime(), AffineBatchTime(0.3, 0.02, 0.05, 0.003)]),
        first_token=st.sampled_from(["counted", "uncounted", "decode"]),
        progress_on_evict=st.sampled_from(["lost", "recompute", "kept"]),
        requeue=st.sampled_from(["arrival", "front", "back"]),
        stall_limit=st.just(300),
    )
    late = st.tuples(made, st.booleans()).map(
        lambda drawn: (
            replace(drawn[0], output_kv="next_iteration")
            if drawn[1] and drawn[0].first_token == "counted"
            else drawn[0]
        )
    )
    return late.filter(lambda system: system.usable_capacity >= 18)  # longest prompt + longest output


def rules_of(system: System) -> dict[str, Any]:
    """Return the rules that a system runs by, as a cluster takes them."""
    of_workers = ("kv_capacity", "batch_time", "workers")
    return {f.name: getattr(system, f.name) for f in fields(system) if f.name not in of_workers}


class RandomPolicy(Policy):
    """Any feasible decision: chunks, pauses, evictions, waiting, admission out of order."""

    info = PolicyInfo(name="random", summary="anything that fits")

    def __init__(self, seed: int, table: RequestTable) -> None:
        self.seed, self.total = seed, len(table)

    def reset(self, system: SystemInfo) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.emits = system.prefill_emits
        self.seen: set[int] = set()
        self.wild = float(self.rng.choice([0.05, 0.2, 0.4]))

    def schedule(self, view: SystemView) -> Decision:
        rng, active, waiting = self.rng, view.active, view.waiting
        self.seen |= {*active.request_id.tolist(), *waiting.request_id.tolist()}
        wild = self.wild if view.iteration < RANDOM_ROUNDS else 0.02  # calms down, so that runs end
        evict = [int(i) for i in active.request_id if rng.random() < wild / 2]
        rng.shuffle(evict)
        tokens: dict[int, int] = {}
        left = dict(zip(active.request_id.tolist(), active.num_prefill_left.tolist(), strict=True))
        stay = [i for i in active.request_id.tolist() if i not in evict]
        self.block, kv = (
            view.block_size,
            dict(zip(active.request_id.tolist(), active.num_kv_tokens, strict=True)),
        )
        room = view.kv_capacity - sum(self.blocks(kv[i]) for i in stay)
        for i in stay:
            tokens[i], room = self.share(left[i], int(kv[i]), room, wild)
        admit = []
        for row in rng.permutation(len(waiting)):
            i, back = int(waiting.request_id[row]), int(waiting.num_kv_tokens[row])
            if rng.random() < wild or self.blocks(back) > room:
                continue
            left[i] = int(waiting.num_prefill_left[row])
            tokens[i], room = self.share(left[i], back, room - self.blocks(back), wild)
            admit.append(i)
        assert room >= 0
        if rng.random() < wild / 2:
            until = (
                math.inf
                if len(self.seen) < self.total and rng.random() < 0.5
                else view.clock + rng.uniform(0.1, 3)
            )
            # Those admitted hold no more than their returning KV while the worker waits.
            return Decision(admit=admit, evict=evict, wait_until=until)
        if stay and not (any(tokens.values()) or evict or admit):  # perhaps stuck: make room
            calm = view.iteration >= RANDOM_ROUNDS
            gone = stay[1:] if calm else [stay[int(rng.integers(len(stay)))]]
            return Decision(evict=gone, tokens={} if calm else dict.fromkeys(set(stay) - set(gone), 0))
        # What runs in full may be left out.
        full = {i: max(1, left[i]) for i in tokens}
        return Decision(
            admit=admit,
            evict=evict,
            tokens={i: c for i, c in tokens.items() if c != full[i] or rng.random() < 0.5},
        )

    def blocks(self, tokens: int) -> int:
        """Memory that the KV tokens of a request take."""
        return -(-int(tokens) // self.block) * self.block

    def share(self, left: int, kv: int, room: int, wild: float) -> tuple[int, int]:
        """Return tokens for a request with the given number in memory: all that fits, or fewer; and the space left."""
        most, free = max(1, left), room + self.blocks(kv) - kv
        if most + self.emitted(left, most) > free:
            most = min(most - 1, max(0, free))
        tokens = int(self.rng.integers(0, most + 1)) if self.rng.random() < wild else most
        after = kv + tokens + self.emitted(left, tokens)
        return tokens, room - self.blocks(after) + self.blocks(kv)

    def emitted(self, left: int, tokens: int) -> int:
        """Whether the chunk completes a prefill that writes an output token."""
        return int(self.emits and left > 0 and tokens == left)
