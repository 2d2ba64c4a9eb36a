"""The scheduler of Sarathi-Serve, driven iteration by iteration without a model."""

from __future__ import annotations

import random
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conformance.cases import Case, Schedule, Step, draw_memory, draw_requests, duration
from conformance.stubs import Stub, StubFinder

REAL = (
    "sarathi.core.scheduler.base_scheduler",
    "sarathi.core.scheduler.sarathi_scheduler",
    "sarathi.core.block_space_manager.base_block_space_manager",
    "sarathi.core.block_space_manager.vllm_block_space_manager",
    "sarathi.core.block_space_manager.sarathi_block_space_manager",
    "sarathi.core.datatypes.",
    "sarathi.core.policy",
)
"""Modules of the scheduler, its requests and its memory."""

WATERMARK = 0.01
"""The engine's share of blocks that an admission leaves free; it is no option there."""


def draw_case(seed: int) -> Case:
    """Return a random workload; requests also fit above the watermark, as the engine never starts others."""
    draw = random.Random(seed)
    requests = draw_requests(draw)
    memory = draw_memory(draw, requests)
    memory["blocks"] += memory["blocks"] // 50 + 1
    budget = draw.randint(1, 64)
    settings = {
        "token_budget": budget, "max_batch_requests": draw.randint(1, min(budget, 12)),
        "watermark": WATERMARK, "engine_memory": True,
    }  # fmt: skip
    return Case(**requests, **memory, settings=settings)


class Engine:
    """The scheduler of a checkout.

    Args:
        folder: folder that contains the package ``sarathi``.
    """

    def __init__(self, folder: Path) -> None:
        managers = {"BlockSpaceManagerRegistry": SimpleNamespace(get=self._make_manager)}
        metrics = {"MetricsStore": SimpleNamespace(get_instance=Stub)}
        names = {
            "sarathi.core.block_space_manager.block_space_manager_registry": managers,
            "sarathi.metrics.metrics_store": metrics,
        }
        StubFinder("sarathi", folder, REAL, names).install()
        self._scheduler = import_module("sarathi.core.scheduler.sarathi_scheduler")
        self._sequence = import_module("sarathi.core.datatypes.sequence")
        self._status = import_module("sarathi.core.datatypes.sequence_status").SequenceStatus

    def _make_manager(self, _: Any, *values: Any) -> Any:
        return self._scheduler.SarathiBlockSpaceManager(*values)

    def _make_scheduler(self, case: Case) -> Any:
        limits = SimpleNamespace(
            chunk_size=case.settings["token_budget"], max_num_seqs=case.settings["max_batch_requests"],
            enable_dynamic_chunking_schedule=False, low_chunk_size=0, high_chunk_size=0,
            chunk_schedule_max_tokens=0, chunk_schedule_stages=0, get_type=lambda: "sarathi",
        )  # fmt: skip
        return self._scheduler.SarathiScheduler(
            SimpleNamespace(max_model_len=1 << 20),
            limits,
            SimpleNamespace(block_size=case.block_size, num_gpu_blocks=case.blocks),
            SimpleNamespace(pipeline_parallel_size=1),
        )

    def _make_request(self, case: Case, i: int) -> Any:
        arrival = (
            case.arrival[i] - 1e9
        )  # the engine ignores requests that arrive later than its own clock says
        return self._sequence.Sequence(
            str(i), "", [0] * case.prompt[i], case.block_size, 0, arrival, SimpleNamespace()
        )

    def play(self, case: Case) -> Schedule:
        """Return the schedule; running requests are listed by number, which is their order of arrival."""
        scheduler, status, count = self._make_scheduler(case), self._status, len(case.arrival)
        known: dict[str, Any] = {}
        made = [0] * count
        steps: list[Step] = []
        first, finish = [float("nan")] * count, [float("nan")] * count
        clock, coming = 0.0, 0
        while coming < count or scheduler.has_unfinished_seqs():
            if not scheduler.has_unfinished_seqs():
                clock = max(clock, case.arrival[coming])
            while coming < count and case.arrival[coming] <= clock:
                known[str(coming)] = self._make_request(case, coming)
                scheduler.add_seq(known[str(coming)])
                coming += 1
            before = clock, tuple(sorted(numbers(scheduler.running))), numbers(scheduler.waiting)
            output = scheduler.schedule()
            for name in output.preempted_seq_ids:
                known[name].reset_for_recompute()
            given = [(one.seq_id, one.num_tokens) for one in output.scheduled_seq_metadata_list]
            if not given:
                raise RuntimeError(f"nothing is scheduled at {clock} s: {case}")
            tokens = tuple(sorted((int(name), number) for name, number in given))
            manager = scheduler.block_manager
            used = case.blocks - manager.get_num_free_gpu_blocks()
            steps.append(Step(*before, tuple(map(int, output.preempted_seq_ids)), tokens, used))
            clock += duration(sum(number for _, number in given))
            for name, number in given:
                one, i = known[name], int(name)
                one.set_status(status.RUNNING)
                if not one.prompt_processing_finished:
                    one.update_prompt_tokens_stage_processed(number)
                    one.update_prompt_tokens_processed(number)
                one.set_status(status.PAUSED)
                if not one.prompt_processing_finished:
                    continue
                one.append_token_id(1)
                made[i] += 1
                first[i] = clock if made[i] == 1 else first[i]
                if made[i] == case.output[i]:
                    finish[i] = clock
                    one.set_status(status.FINISHED_LENGTH_CAPPED)
            scheduler.on_step_completed()
        return Schedule(tuple(steps), tuple(first), tuple(finish))


def numbers(sequences: Any) -> tuple[int, ...]:
    """Return the numbers of requests."""
    return tuple(int(sequence.seq_id) for sequence in sequences)
