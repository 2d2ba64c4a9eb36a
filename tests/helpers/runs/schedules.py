"""What tests of schedules worked by hand share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from kvgym.batch_time import UnitBatchTime
from kvgym.policies.policy import Policy, make_policy
from kvgym.policies.runner import SimulationResult, simulate, system_info
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

PAPER_OF_WAIT = {"first_token": "decode", "progress_on_evict": "lost", "requeue": "back"}

SETTINGS = frozenset(field.name for field in fields(System))


def as_printed(policy: str | Policy) -> Policy:
    """Return a policy with the usual value, the paper's, of everything that it would choose itself."""
    made = make_policy(policy)
    given = made.hyperparameters()
    usual = {name: value for name, value in made.info.auto if name not in given}
    return type(made)(**given, **usual) if usual else made


def run(
    policy: str | Policy,
    M: int,  # noqa: N803
    a: Sequence[float],
    s: Sequence[int],
    o: Sequence[int],
    p: Sequence[int] | None = None,
    *,
    seed: int = 0,
    compiled: bool = True,
    **settings: Any,
) -> SimulationResult:
    """Simulate requests that arrive at ``a`` with prompts ``s`` and outputs ``o`` on a worker of ``M`` tokens.

    Args:
        policy: spec or policy; it follows its paper, see :func:`as_printed`.
        M: KV capacity in tokens.
        a: arrival times, seconds.
        s: prompt lengths, tokens.
        o: output lengths, tokens.
        p: predicted output lengths; the true ones by default.
        seed: of the run.
        compiled: whether the policy's kernel runs compiled.
        **settings: other columns of the requests and settings of the system, by name; one second per iteration
            unless ``batch_time`` is given.
    """
    columns = {name: settings.pop(name) for name in settings.keys() - SETTINGS}
    table = RequestTable(a, s, o, predicted_output_len=o if p is None else p, **columns)
    system = System(**{"kv_capacity": M, "batch_time": UnitBatchTime(), **settings})
    return simulate(system, table, as_printed(policy), seed=seed, log=True, compiled=compiled)


def check(
    result: SimulationResult | Simulation,
    start: Sequence[float] | None = None,
    finish: Sequence[float] | None = None,
    first: Sequence[float] | None = None,
    evictions: Sequence[int] | None = None,
    kv: Sequence[int] | None = None,
) -> None:
    """Compare a run with a schedule: times in seconds by request, KV tokens by iteration; no evictions unless given."""
    records = result.requests
    for column, expected in (("start_time", start), ("finish_time", finish), ("first_token_time", first)):
        if expected is not None:
            np.testing.assert_array_equal(records[column], expected, err_msg=column)
    np.testing.assert_array_equal(records["num_evictions"], evictions or [0] * len(records))
    if kv is not None:
        assert result.log is not None
        np.testing.assert_array_equal(result.log["kv_tokens"], kv)


@dataclass(frozen=True)
class Step:
    """What a scheduler decided at one iteration boundary.

    Attributes:
        time: of the decision, seconds.
        batch: tokens by request id, of those that get any.
        evicted: ids in the order of the decision.
    """

    time: float
    batch: dict[int, int]
    evicted: list[int]


def play(spec: str, system: System, table: RequestTable) -> list[Step]:
    """Run a policy through ``schedule`` and return what it decides, boundary by boundary."""
    policy = as_printed(spec)
    simulation = Simulation(system, table, needs=policy.info.needs, policy_name=spec)
    policy.reset(system_info(system, table, 0, policy.info.needs))
    steps = []
    running = simulation.start()
    while running:
        view, batch = simulation.view, {}
        decision = policy.schedule(view)
        for rows, chosen in ((view.active, None), (view.waiting, decision.admit)):
            for i, left in zip(rows.request_id.tolist(), rows.num_prefill_left.tolist(), strict=True):
                if i not in decision.evict and (chosen is None or i in chosen):
                    batch[i] = decision.tokens.get(i, max(left, 1))
        batch = {i: tokens for i, tokens in batch.items() if tokens > 0}
        steps.append(Step(view.clock, batch, list(decision.evict)))
        running = simulation.step(decision)
    return steps
