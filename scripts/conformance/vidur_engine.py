"""The schedulers of Vidur, driven iteration by iteration: those of Sarathi-Serve and of vLLM V0."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conformance import sarathi_engine
from conformance.cases import Case, Schedule, Step, duration
from conformance.stubs import StubFinder

REAL = (
    "vidur.scheduler.replica_scheduler.base_replica_scheduler",
    "vidur.scheduler.replica_scheduler.sarathi_replica_scheduler",
    "vidur.scheduler.replica_scheduler.vllm_replica_scheduler",
    "vidur.entities.base_entity",
    "vidur.entities.batch",
    "vidur.entities.request",
)
"""Modules of the schedulers, their requests and batches."""


def draw_case(seed: int) -> Case:
    """Return a random workload, of even seeds for the scheduler of Sarathi-Serve, of odd ones for vLLM's."""
    case, draw = sarathi_engine.draw_case(seed), random.Random(seed)
    if seed % 2 == 0:
        return case
    longest = max(p + o for p, o in zip(case.prompt, case.output, strict=True))
    settings = {
        "max_batch_tokens": longest + draw.randint(0, 64), "max_batch_requests": draw.randint(1, 12),
        "watermark": case.settings["watermark"], "engine_memory": True, "padded": True,
    }  # fmt: skip
    return replace(case, settings=settings)


def policy_of(case: Case) -> str:
    """Return kvgym's policy for a case."""
    return "sarathi" if "token_budget" in case.settings else "vllm"


class Engine:
    """The schedulers of a checkout.

    Args:
        folder: folder that contains the package ``vidur``.
    """

    def __init__(self, folder: Path) -> None:
        planner = SimpleNamespace(get_max_request_slots=lambda: 1 << 20, get_max_batch_size=lambda: 1 << 20)
        names = {"vidur.scheduler.utils.memory_planner": {"MemoryPlanner": lambda *_: planner}}
        StubFinder("vidur", folder, REAL, names).install()
        self._request = import_module("vidur.entities.request").Request
        self._schedulers = {
            name: import_module(f"vidur.scheduler.replica_scheduler.{name}_replica_scheduler")
            for name in ("sarathi", "vllm")
        }

    def _make_scheduler(self, case: Case) -> Any:
        made = case.settings
        limits = SimpleNamespace(
            block_size=case.block_size, num_blocks=case.blocks, batch_size_cap=made["max_batch_requests"],
            watermark_blocks_fraction=made["watermark"], chunk_size=made.get("token_budget"),
            max_tokens_in_batch=made.get("max_batch_tokens"),
        )  # fmt: skip
        name = policy_of(case)
        kind = {"sarathi": "SarathiReplicaScheduler", "vllm": "VLLMReplicaScheduler"}[name]
        requests = SimpleNamespace(max_tokens=1 << 20)
        return getattr(self._schedulers[name], kind)(None, limits, requests, SimpleNamespace(id=0), 1, None)

    def play(self, case: Case) -> Schedule:
        """Return the schedule; running requests are listed by number, which is their order of arrival."""
        scheduler, count = self._make_scheduler(case), len(case.arrival)
        requests: list[Any] = []
        number: dict[int, int] = {}
        steps: list[Step] = []
        first, finish = [float("nan")] * count, [float("nan")] * count
        clock, done = 0.0, 0
        while done < count:
            if done == len(requests):
                clock = max(clock, case.arrival[done])
            while len(requests) < count and case.arrival[len(requests)] <= clock:
                i = len(requests)
                requests.append(self._request(case.arrival[i], case.prompt[i], case.output[i]))
                number[requests[i].id] = i
                scheduler.add_request(requests[i])
            holding = tuple(sorted(number[i] for i in scheduler._allocation_map))
            before = clock, holding, tuple(number[r.id] for r in scheduler._request_queue)
            restarts = [request.num_restarts for request in requests]
            (batch,) = scheduler.on_schedule() or [None]
            if batch is None:
                raise RuntimeError(f"nothing is scheduled at {clock} s: {case}")
            evicted = [i for i in reversed(range(len(restarts))) if requests[i].num_restarts > restarts[i]]
            given = zip((number[r.id] for r in batch.requests), batch.num_tokens, strict=True)
            tokens = tuple(sorted(given))
            steps.append(Step(*before, tuple(evicted), tokens, scheduler.num_allocated_blocks))
            clock += duration(sum(batch.num_tokens))
            for request, processed in zip(batch.requests, batch.num_tokens, strict=True):
                i, was = number[request.id], request.is_prefill_complete
                request.on_batch_schedule(clock)
                request.on_batch_end(clock, processed)
                if request.is_prefill_complete and not was and first[i] != first[i]:
                    first[i] = clock
                if request.completed:
                    finish[i] = clock
                    done += 1
            scheduler.on_batch_end(batch)
        return Schedule(tuple(steps), tuple(first), tuple(finish))
