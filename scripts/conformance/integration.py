"""Compare schedules of kvgym's policies inside vLLM with those of the simulator.

python scripts/conformance integration --version 0.33.0 --workloads 100
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from conformance import frozen, vllm_engine
from conformance.cases import BATCH_TIME, Case, Schedule, Step, difference, draw_memory, draw_requests
from conformance.engines import EMPTY_STEP, classify
from conformance.integration_engine import Engine
from conformance.ours import _progress, _tokens
from conformance.wheel import default_cache, unpacked
from kvgym.errors import KVGymError, LivelockError, WorkloadError
from kvgym.policies.policy import CompiledPolicy, make_policy
from kvgym.policies.runner import check_needs, prepare_run
from kvgym.simulator.system import System
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

RULES = {"progress_on_evict": "recompute", "requeue": "front", "output_kv": "next_iteration"}

POLICIES_COMPARED = (
    "fcfs", "fcfs:protection=0.2", "cost_aware", "mc_sf", "mc_benchmark", "mc_longest", "a_min", "ageing",
    "alpha_greedy", "alpha_beta", "flow_control", "flow_control:random=true", "flow_control_classes:budgets=2/2",
    "request_level:batch=4", "sarathi:token_budget=16", "vllm:max_batch_tokens=256",
    "vllm_v1:max_num_batched_tokens=24,max_num_seqs=8",
    "vllm_v1:max_num_batched_tokens=24,max_num_seqs=8,policy=priority", "work_conserving_fcfs:chunk=8",
    "work_conserving_sjf:chunk=8", "work_conserving_fcfs_lookahead:chunk=8", "work_conserving_sjf_lookahead:chunk=8",
    "slai:token_budget=16", "dist_serve", "rad:cycle=40,decodes=8,chunk=8", "rad_batched:cycle=40,decodes=8,chunk=8",
    "wait", "nested_wait", "ranked", "ranked_latency", "ranked_slo", "ppo_noisy",
)  # fmt: skip
"""Policies that are compared by default."""

CLASSES = (ClassStatistics("chat", 8.0, 12.0, 12.0), ClassStatistics("code", 4.0, 20.0, 8.0))

PREDICTED = ("predicted", "low", "high", "class_id")
"""Columns of a workload other than those of its case."""

PATIENCE = 3600.0
"""Seconds of simulated time for which a policy may start nothing: as long as the integration allows."""

OWN = "vllm_v1 against vLLM's own scheduler"
"""The comparison of ``vllm_v1`` inside vLLM with the scheduler that it follows, with random options."""

LIMITS = {
    "max_num_batched_tokens": 1 << 20, "max_num_seqs": 1 << 10, "long_prefill_token_threshold": 0, "policy": "fcfs",
    "enable_chunked_prefill": True, "scheduler_reserve_full_isl": True, "watermark": 0.0,
}  # fmt: skip
"""vLLM's own limits: none that a policy would notice."""


@dataclass(frozen=True)
class Workload:
    """A random workload with everything that a policy may need.

    Attributes:
        case: the requests and the memory.
        predicted: predicted output tokens.
        low: least output tokens.
        high: most output tokens.
        class_id: class of each request.
    """

    case: Case
    predicted: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    class_id: tuple[int, ...]

    def table(self) -> RequestTable:
        """Return the requests for the simulator."""
        case = self.case
        return RequestTable.from_columns(
            classes=CLASSES, arrival_time=case.arrival, prompt_len=case.prompt, output_len=case.output,
            priority=case.priority, predicted_output_len=self.predicted, predicted_low=self.low,
            predicted_high=self.high, class_id=self.class_id, ttft_slo=np.full(len(case.prompt), 0.5),
            tbt_slo=np.full(len(case.prompt), 0.05),
        )  # fmt: skip

    def settings(self, policy: str, interval: bool) -> dict[str, Any]:
        """Return the settings of the integration, for a policy that observes intervals or single predictions."""
        longest = self.high if interval else self.predicted
        classes = [
            {"name": c.name, "rate": c.rate, "prompt_len": c.prompt_len, "output_len": c.output_len}
            for c in CLASSES
        ]
        above = all(p >= o for p, o in zip(longest, self.case.output, strict=True))
        return {
            "policy": policy, "predictions": f"{__name__}:prediction_of", "upper_bounds": above,
            "classes": classes, "ttft_slo": 0.5, "tbt_slo": 0.05, "trust_requests": True, "patience": PATIENCE,
        }  # fmt: skip

    def extras(self) -> list[dict[str, Any]]:
        """Return what each request carries."""
        columns = zip(self.predicted, self.low, self.high, self.class_id, strict=True)
        return [
            {"prediction": (low, predicted, high), "class": CLASSES[k].name}
            for predicted, low, high, k in columns
        ]


def prediction_of(request: Any) -> Any:
    """Return the prediction that a request carries."""
    return request.sampling_params.extra_args["prediction"]


def draw(seed: int) -> Workload:
    """Return the random workload of a seed."""
    random_numbers = random.Random(seed)
    requests = draw_requests(random_numbers)
    memory = draw_memory(random_numbers, requests)
    case = Case(**requests, **memory, settings=LIMITS)
    exact, spread = random_numbers.random() < 0.5, random_numbers.choice([1, 4, 16])
    room = [
        case.blocks * case.block_size - prompt for prompt in case.prompt
    ]  # a longer prediction never fits

    def off(output: int, least: int, most: int, room: int) -> int:
        return min(max(1, output + random_numbers.randint(least, most)), room)

    pairs = list(zip(case.output, room, strict=True))
    return Workload(
        case,
        predicted=tuple(o if exact else off(o, -spread, spread, r) for o, r in pairs),
        low=tuple(off(o, -spread, 0, r) for o, r in pairs),
        high=tuple(off(o, 0, spread, r) for o, r in pairs),
        class_id=tuple(random_numbers.randint(0, len(CLASSES) - 1) for _ in pairs),
    )


def simulated(workload: Workload, policy: str) -> Schedule:
    """Return the schedule of a policy in the simulator, batch by batch.

    Raises:
        KVGymError: the run does not end.
    """
    case, table = workload.case, workload.table()
    made = make_policy(policy)
    check_needs(made, table)
    system = System(
        kv_capacity=case.blocks * case.block_size, block_size=case.block_size, batch_time=BATCH_TIME, **RULES
    )
    simulation, (made,) = prepare_run(system, table, made, log=True)
    steps: list[Step] = []
    preempted: tuple[int, ...] = ()
    more = simulation.start()
    while more:
        view, before = simulation.view, _progress(simulation)
        state = view.clock, tuple(view.active.request_id.tolist()), tuple(view.waiting.request_id.tolist())
        totals = [int(simulation.worker[f"total_{what}"]) for what in ("evicted", "admitted")]
        if isinstance(made, CompiledPolicy):
            simulation.run(budget=1)
            more = simulation.start()
        else:
            more = simulation.step(made.schedule(view))
        evicted, admitted = (
            int(simulation.worker[f"total_{what}"]) - was
            for what, was in zip(("evicted", "admitted"), totals, strict=True)
        )
        gone = [state[1][k] for k in simulation.evict[0, :evicted].tolist()]
        preempted += tuple(gone)
        members = [i for i in state[1] if i not in gone] + simulation.admit[0, :admitted].tolist()
        after = _progress(simulation)
        tokens = tuple((i, done) for i in members if (done := _tokens(before[i], after[i])) > 0)
        if tokens:
            used = int(simulation.log[int(simulation.tracker[0]["num_log"]) - 1]["kv_tokens"])
            steps.append(Step(*state, preempted, tokens, used // case.block_size))
            preempted = ()
    records = simulation.requests
    return Schedule(
        tuple(steps), tuple(records["first_token_time"].tolist()), tuple(records["finish_time"].tolist())
    )


@dataclass
class Count:
    """Counts of one policy: workloads compared, equal, of a known class, and batches and preemptions.

    ``endless`` are those without an end in both, ``empty`` those that differ after an empty step of vLLM's own rule.
    ``short`` are those with few batches, and their schedules in vLLM.
    """

    workloads: int = 0
    equal: int = 0
    endless: int = 0
    empty: int = 0
    batches: int = 0
    preempted: int = 0
    short: list[tuple[Workload, Schedule]] = field(default_factory=list)


def compare(engine: Engine, policy: str, seeds: Sequence[int]) -> tuple[Count, list[str]]:
    """Compare a policy in vLLM with the same policy in the simulator; return counts and differences."""
    count, found = Count(), []
    for seed in seeds:
        workload = draw(seed)
        ours = _outcome(lambda workload=workload: simulated(workload, policy))
        theirs = _outcome(lambda workload=workload: play(engine, workload, policy))
        count.workloads += 1
        if isinstance(ours, str) or isinstance(theirs, str):
            both = isinstance(ours, str) and isinstance(theirs, str)
            count.endless += both
            if not both:
                found.append(
                    f"{policy}, workload {seed}: {ours if isinstance(ours, str) else 'ends'} in the simulator, "
                    f"{theirs if isinstance(theirs, str) else 'ends'} in vLLM"
                )
            continue
        count.batches += len(ours.steps)
        count.preempted += sum(len(step.preempted) for step in ours.steps)
        text = difference(ours, theirs)
        count.equal += not text
        if len(theirs.steps) <= frozen.MOST_STEPS:
            count.short.append((workload, theirs))
        if text:
            found.append(f"{policy}, workload {seed}: {text}")
    return count, found


def compare_own(engine: Engine, seeds: Sequence[int]) -> tuple[Count, list[str]]:
    """Compare ``vllm_v1`` in vLLM with vLLM's own scheduler; return counts and differences."""
    count, found = Count(), []
    for seed in seeds:
        case = vllm_engine.draw_case(seed, options=True)
        theirs = engine.play(case)
        settings = {
            "policy": "vllm_v1",
            "hyperparameters": case.settings | {"engine_version": "0.33"},
            "patience": PATIENCE,
        }
        limits = LIMITS | {name: case.settings[name] for name in ("max_num_seqs", "policy")}
        ours, scheduler = engine.play_policy(
            replace(case, settings=limits), settings, [{} for _ in case.arrival]
        )
        text = difference(ours, theirs) or str(dict(scheduler.own_rule) or "")
        count.workloads += 1
        count.batches += len(theirs.steps)
        count.preempted += sum(len(step.preempted) for step in theirs.steps)
        count.equal += not text
        if classify(text, theirs, "vllm") == EMPTY_STEP:
            count.empty += 1
        elif text:
            found.append(f"workload {seed}: {text}")
    return count, found


def play(engine: Engine, workload: Workload, policy: str) -> Schedule:
    """Return the schedule of a policy in vLLM.

    Raises:
        LivelockError: vLLM's own rule decided a step, or the run does not end.
    """
    interval = "length_interval" in make_policy(policy).info.needs
    schedule, scheduler = engine.play_policy(
        workload.case, workload.settings(policy, interval), workload.extras()
    )
    if scheduler.own_rule:
        raise LivelockError(f"vLLM's own rule decided: {dict(scheduler.own_rule)}")
    return schedule


def _outcome(play: Any) -> Schedule | str:
    try:
        return play()
    except (LivelockError, WorkloadError) as error:
        return f"{type(error).__name__}: {str(error)[:200]}"


def write_frozen(path: Path, version: str, played: dict[str, Count]) -> None:
    """Write a file of recorded schedules: one line of JSON for the release, and two for each policy."""
    lines: list[dict[str, Any]] = [{"engine": "vllm", "version": version}]
    for policy, count in played.items():
        of = {id(workload.case): workload for workload, _ in count.short}
        for case, theirs in frozen.choose([(w.case, s) for w, s in count.short], 2):
            more = {name: getattr(of[id(case)], name) for name in PREDICTED}
            lines.append(
                {"policy": policy, "case": frozen.described(case), **more, **frozen.recorded(theirs)}
            )
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), "utf-8")


def read_frozen(path: Path) -> list[tuple[str, Workload, Schedule]]:
    """Return policies, workloads, and the recorded schedules of a file."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()][1:]
    return [
        (
            line["policy"],
            Workload(frozen.case_of(line["case"]), **{name: tuple(line[name]) for name in PREDICTED}),
            frozen.schedule_of(line),
        )
        for line in lines
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 1 if a schedule differs."""
    reader = argparse.ArgumentParser(
        "python scripts/conformance integration", description=__doc__.splitlines()[0]
    )
    add = reader.add_argument
    add("--version", default="0.33.0", help="release of vLLM, default 0.33.0")
    add("--source", type=Path, metavar="FOLDER", help="folder with the package vllm, in place of its wheel")
    add("--cache", type=Path, metavar="FOLDER", help=f"folder for wheels, default {default_cache()}")
    add("--workloads", type=int, default=100, help="number of random workloads for each policy, default 100")
    add("--first", type=int, default=0, metavar="SEED", help="first of them, default 0")
    add("--policy", action="append", metavar="POLICY", help="a policy; may be repeated; default: all")
    add("--freeze", type=Path, metavar="FILE", help="record some schedules of each policy for the tests")
    options = reader.parse_args(arguments)
    try:
        folder = options.source or unpacked("vllm", options.version, options.cache or default_cache())
        engine = Engine(folder, options.version)
    except KVGymError as error:
        raise SystemExit(f"error: {error}") from None
    seeds, differences = range(options.first, options.first + options.workloads), []
    played: dict[str, Count] = {}
    for policy in options.policy or (OWN, *POLICIES_COMPARED):
        began = time.monotonic()
        if policy == OWN:
            count, found = compare_own(engine, seeds)
        else:
            count, found = compare(engine, policy, seeds)
            played[policy] = count
        differences += found
        print(
            f"{policy}: {count.workloads} workloads, {count.equal} equal, {count.endless} without an end in both, "
            f"{count.empty} different after an empty step, "
            f"{count.batches} batches, {count.preempted} preemptions, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        for line in found[:3]:
            print(f"  {line[:600]}")
    if options.freeze:
        write_frozen(options.freeze, options.version, played)
    if differences:
        raise SystemExit(1)
