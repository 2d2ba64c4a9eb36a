"""The schedule of a policy of kvgym, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from conformance.cases import BATCH_TIME, STEP_LIMIT, Case, Schedule, Step
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import prepare_run
from kvgym.simulator.drafts.settings import Speculation
from kvgym.simulator.kernels.heap import key_request
from kvgym.simulator.prefix.host_memory import HostMemory
from kvgym.simulator.system import System
from kvgym.simulator.tables import FINISHED
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable


def play(
    case: Case,
    policy: str,
    by_priority: bool = False,
    by_hit: bool = False,
    compiled: bool = True,
    **system: Any,
) -> Schedule:
    """Return the schedule of a compiled policy.

    Args:
        case: the workload and the policy's hyperparameters.
        policy: name of the policy.
        by_priority: whether waiting requests are recorded by priority, arrival and number, not in queue order.
        by_hit: whether they are recorded in the order of ``lpm``, each with its hit; none where it does not sort them.
        compiled: whether compiled code runs; with drafts it takes half a minute to compile.
        **system: settings of the system.

    Raises:
        KVGymError: the policy refuses the settings, or the run does not end.
    """
    table = RequestTable.from_columns(
        arrival_time=case.arrival, prompt_len=case.prompt, output_len=case.output, priority=case.priority
    )
    memory: dict[str, Any] = {"kv_capacity": case.blocks * case.block_size, "block_size": case.block_size}
    if case.texts:
        memory["prefix_cache"] = "scheduled"
        table = table.replace(hashes=_hashes(case))
    if case.sessions:
        turns = [1 + case.sessions[:i].count(session) for i, session in enumerate(case.sessions)]
        table = table.replace(session_id=case.sessions, turn=turns, think_time=case.think)
        memory["sessions"] = "closed"
    if case.depth:
        memory["speculation"] = _drafts(case)
    if case.host_blocks:
        size, outputs = case.block_size, not case.prompt_only
        times = case.load_time / size, case.store_time / size
        memory["host_memory"] = HostMemory(case.host_blocks * size, *times, load="async", outputs=outputs)
    built = System(batch_time=BATCH_TIME, **(memory | system))
    scheduler = make_policy(policy, **case.settings)
    simulation, _ = prepare_run(built, table, scheduler, log=True, compiled=compiled)
    rows = simulation.turns["row"] if case.sessions else range(len(table))
    steps: list[Step] = []
    earlier: list[int] = []  # preempted in steps without tokens, which take no time
    lists: Any = None  # running and waiting requests before the first of them
    while len(steps) < STEP_LIMIT and simulation.start():
        view, before = simulation.view, _progress(simulation)
        clock, running, waiting = (
            view.clock,
            view.active.request_id.tolist(),
            view.waiting.request_id.tolist(),
        )
        if by_priority:
            kept = simulation.prefix["kept"] if case.host_blocks else [0] * len(table)
            waiting.sort(key=lambda i: (kept[i] == 0, -case.priority[rows[i]], i))
        lists = lists if earlier else (running, waiting)
        batches = int(simulation.worker["iteration"])
        hits = dict(zip(waiting, view.waiting.num_kv_tokens.tolist(), strict=True))
        evicted, admitted = (int(simulation.worker[f"total_{what}"]) for what in ("evicted", "admitted"))
        simulation.run(budget=1)
        after = _progress(simulation)
        count = int(simulation.worker["total_evicted"]) - evicted
        preempted = [running[k] for k in simulation.evict[0, :count].tolist()]
        if int(simulation.worker["iteration"]) == batches:
            earlier += preempted
            continue
        count = int(simulation.worker["total_admitted"]) - admitted
        started = simulation.admit[0, :count].tolist()
        if by_hit:
            ranked = not preempted and len(waiting) <= case.settings["most_waiting"]
            waiting = [(i, hits[i]) for i in _sorted(scheduler, started)] if ranked else []
        members = [i for i in running if i not in preempted] + started
        tokens = [_tokens(before[i], after[i]) for i in members]
        ran = [
            i for i, done in zip(members, tokens, strict=True) if done > 0 or (case.texts and i in started)
        ]
        tokens = (
            _written(simulation, case, ran, rows) if case.texts else [done for done in tokens if done > 0]
        )
        row = simulation.log[len(steps)]
        used, cached = (int(row[name]) // case.block_size for name in ("kv_tokens", "kv_cached"))
        if not case.depth:  # else a step without tokens is one decision, and its lists are the engine's
            lists = running, waiting
        columns = map(tuple, (*lists, earlier + preempted, zip(ran, tokens, strict=True)))
        earlier, drafts = [], ()
        if case.depth:
            left = simulation.drafts[0]["proposed"][: int(simulation.worker["num_active"])]
            drafts = (int(simulation.load[0]["draft_tokens"]), *left.tolist())
        steps.append(Step(clock, *columns, used, cached, drafts=drafts, transfers=_transfers(simulation)))
    records = simulation.requests
    return Schedule(
        tuple(steps), tuple(records["first_token_time"].tolist()), tuple(records["finish_time"].tolist())
    )


def _transfers(simulation: Any) -> tuple[int, ...]:
    """Return the loads so far, the blocks that were loaded and stored, and those on the host, if there is one."""
    names = ("total_loads", "total_loaded", "total_stored", "used")
    return tuple(int(simulation.tier[0][name]) for name in names) if simulation.system.host_memory else ()


def _drafts(case: Case) -> Speculation:
    """Return the speculation of a case."""
    return Speculation(
        acceptance=(1.0,),
        depth=case.depth,
        lookahead=case.lookahead,
        choose="table" if case.by_batch else "fixed",
        by_batch=case.by_batch,
        recorded=case.right,
    )


def _sorted(scheduler: Any, started: list[int]) -> list[int]:
    """Return the waiting requests in the order in which ``lpm`` has just put them; ``started`` are the first."""
    state = scheduler.arguments().state
    most, places = (len(state) - 1) // 2, sorted(state[1 : 1 + state[0]].tolist())
    return started + [int(state[1 + most + key_request(key)]) for key in places]


def _hashes(case: Case) -> BlockHashes:
    """Return the block hashes of prompts and outputs."""
    tokens = np.array(case.prompt) + case.output
    ends = [range(case.block_size, total + case.block_size, case.block_size) for total in tokens.tolist()]
    rows = [[case.content(i, end) for end in ends_of] for i, ends_of in enumerate(ends)]
    return BlockHashes.from_rows(rows, tokens, case.block_size)


def _written(simulation: Any, case: Case, members: list[int], rows: Sequence[int]) -> list[int]:
    """Return the tokens with KV of requests after a batch; one that has finished had all but its last token."""
    slots = simulation.active[0, : int(simulation.worker["num_active"])]
    found = dict(zip(slots["request_id"].tolist(), slots["num_kv_tokens"].tolist(), strict=True))
    whole = [case.prompt[rows[i]] + case.output[rows[i]] - 1 for i in members]
    return [found.get(i, end) for i, end in zip(members, whole, strict=True)]


def _progress(simulation: Any) -> list[tuple[int, int]]:
    """Return tokens left to prefill and output tokens of all requests."""
    rows, count = simulation.requests, int(simulation.worker["num_active"])
    left = np.where(rows["status"] == FINISHED, 0, rows["num_prefill_left"])
    found = list(zip(left.tolist(), rows["num_output_tokens"].tolist(), strict=True))
    slots = simulation.active[0, :count]
    state = zip(slots["num_prefill_left"].tolist(), slots["num_output_tokens"].tolist(), strict=True)
    for i, values in zip(slots["request_id"].tolist(), state, strict=True):
        found[i] = values
    return found


def _tokens(before: tuple[int, int], after: tuple[int, int]) -> int:
    """Return the tokens that a request processed between two states: of its prefill, or one that it decoded."""
    return before[0] - after[0] if before[0] > 0 else after[1] - before[1]
