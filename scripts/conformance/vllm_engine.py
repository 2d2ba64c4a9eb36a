"""vLLM's V1 scheduler, driven iteration by iteration without a model."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conformance.cases import (
    STEP_LIMIT,
    Case,
    Schedule,
    Step,
    draw_drafts,
    draw_memory,
    draw_requests,
    draw_sessions,
    draw_texts,
    duration,
)
from conformance.stubs import Stub, StubFinder
from kvgym.errors import LivelockError

REAL = (
    "vllm.v1.core",
    "vllm.v1.core.",
    "vllm.v1.request",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.kv_cache_layout",
    "vllm.v1.spec_decode.dynamic.",
    "vllm.utils.math_utils",
)
"""Modules of the scheduler, its requests and its memory."""

NAMES = {
    "vllm": {"envs": SimpleNamespace(VLLM_PREFIX_CACHE_RETENTION_INTERVAL=None)},
    "vllm.v1.utils": {"ConstantList": lambda values: values},
    "vllm.utils": {"length_from_prompt_token_ids_or_embeds": lambda ids, _: len(ids)},
    "vllm.v1.structured_output.request": {
        "StructuredOutputRequest": SimpleNamespace(from_sampling_params=lambda _: None)
    },
}
"""What the stubs of other modules must have, because the scheduler uses its value."""

PADDED = "a start of one token is padded"
"""Class of differences: next to decodes with drafts, the engine gives a start of one token as many tokens as them."""
PADDING = -1
"""Token of drafts without a proposal: such a start is made as long as other decodes with drafts."""

MAX_LEN = 1 << 20
"""Longest context of the model, tokens: never a limit here."""


def draw_case(
    seed: int, options: bool, prefix_cache: bool = False, sessions: bool = False, speculation: bool = False
) -> Case:
    """Return a random workload with random settings of the scheduler.

    Args:
        seed: of the workload.
        options: whether settings are drawn that only recent releases have.
        prefix_cache: whether requests begin with common texts, and prefix caching is on.
        sessions: whether half of these workloads have sessions, of which later turns arrive after earlier ones.
        speculation: whether decodes verify drafts.
    """
    draw = random.Random(seed)
    requests = draw_requests(draw)
    if prefix_cache:
        turns = sessions and seed % 2 == 1
        requests = (
            draw_sessions(seed, requests) if turns else requests | {"texts": draw_texts(seed, requests)}
        )
    drafts = draw_drafts(seed, requests) if speculation else {"depth": 0, "lookahead": 0}
    memory = draw_memory(draw, requests, drafts["depth"] + drafts["lookahead"])
    longest = max(p + o for p, o in zip(requests["prompt"], requests["output"], strict=True))
    chunked = draw.random() < 0.75
    budget = draw.randint(1, 64) if chunked else draw.randint(longest, longest + 64)
    settings = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": draw.randint(1, min(budget, 12)),
        "long_prefill_token_threshold": draw.choice([0, 0, 1, 4, 16]),
        "policy": draw.choice(["fcfs", "fcfs", "priority"]),
        "enable_chunked_prefill": chunked,
        "scheduler_reserve_full_isl": draw.random() < 0.75,
        "watermark": draw.choice([0.0, 0.0, 0.01, 0.1, 0.29, 0.5]),
    }
    if options:
        settings |= {
            "max_num_active_seqs": draw.choice([None, draw.randint(1, settings["max_num_seqs"])]),
            "prefill_schedule_interval": draw.choice([1, 1, 2, 3, 8]),
            "long_prefill_token_threshold_adaptive": draw.random() < 0.5,
        }
    if speculation and prefix_cache:  # a padded start that exceeds the budget waits for ever
        settings["max_num_batched_tokens"] = max(settings["max_num_batched_tokens"], drafts["depth"] + 1)
    if speculation and not drafts["by_batch"] and settings["long_prefill_token_threshold"] <= drafts["depth"]:
        settings["long_prefill_token_threshold"] = 0  # the engine fails where it cuts a padded start
    return Case(**requests, **memory, **drafts, settings=settings)


class Arrivals:
    """The requests that are still to come: at their times, or after the turn before them.

    Attributes:
        due: heap of the rows with known times, by time.
    """

    def __init__(self, case: Case) -> None:
        sessions = case.sessions or range(len(case.arrival))
        last: dict[int, int] = {}
        self._case, self._rows = case, []  # type: ignore[var-annotated]
        self._next: dict[int, int] = {}
        self.due: list[tuple[float, int]] = []
        for i, session in enumerate(sessions):
            if session in last:
                self._next[last[session]] = i
            else:
                self.due.append((case.arrival[i], i))
            last[session] = i
        heapq.heapify(self.due)

    def until(self, clock: float) -> Iterator[tuple[int, int, float]]:
        """Yield the number, the row and the time of each arrival up to a time, seconds."""
        while self.due and self.due[0][0] <= clock:
            time, i = heapq.heappop(self.due)
            self._rows.append(i)
            yield len(self._rows) - 1, i, time

    def end(self, number: int, clock: float) -> None:
        """Let the next turn come after request ``number``, which has ended."""
        following = self._next.get(self._rows[number])
        if following is not None:
            heapq.heappush(self.due, (clock + self._case.think[following], following))


class Engine:
    """The scheduler of one release.

    Args:
        folder: folder that contains the package ``vllm`` of the release.
    """

    real, names = REAL, NAMES

    def __init__(self, folder: Path) -> None:
        StubFinder("vllm", folder, self.real, self.names).install()
        self._torch = import_module("torch")
        self._interface = import_module("vllm.v1.kv_cache_interface")
        self._request = import_module("vllm.v1.request")
        self._scheduler = import_module("vllm.v1.core.sched.scheduler").Scheduler
        self._async_scheduler = import_module("vllm.v1.core.sched.async_scheduler").AsyncScheduler

    def _make_scheduler(self, case: Case) -> Any:
        """Return a scheduler with the settings of a case; it counts one more block, its null block."""
        group = self._interface.KVCacheGroupSpec(
            ["layer"],
            self._interface.FullAttentionSpec(
                block_size=case.block_size, num_kv_heads=1, head_size=1, dtype=self._torch.float16
            ),
        )
        memory = self._interface.KVCacheConfig(
            num_blocks=case.blocks + 1, kv_cache_tensors=[], kv_cache_groups=[group]
        )
        kind = self._async_scheduler if case.settings.get("async_scheduling") else self._scheduler
        return kind(
            vllm_config=_configuration(case),
            kv_cache_config=memory,
            structured_output_manager=SimpleNamespace(
                accept_tokens=lambda *_: True,
                should_advance=lambda _: False,
                validate_tokens=lambda _, drafts: drafts,
            ),
            block_size=case.block_size,
        )

    def _make_request(self, case: Case, name: int, i: int, arrival: float) -> Any:
        """Return row ``i`` of a case as request ``name``."""
        sampling = SimpleNamespace(
            max_tokens=case.output[i], min_tokens=0, eos_token_id=None, stop_token_ids=(), extra_args=None,
            skip_reading_prefix_cache=None, repetition_detection=None, num_logprobs=None, logprobs=None,
        )  # fmt: skip
        return self._request.Request(
            request_id=f"{name:06}", prompt_token_ids=[0] * case.prompt[i], sampling_params=sampling,
            pooling_params=None, arrival_time=arrival, priority=-case.priority[i],
            block_hasher=_hasher(case, i) if case.texts else None,
        )  # fmt: skip

    def play(self, case: Case) -> Schedule:
        """Return the schedule; a step that schedules no tokens takes no time and counts with the next one.

        Raises:
            LivelockError: no step schedules tokens any more.
        """
        if case.settings.get("async_scheduling"):
            return self._play_ahead(case)
        scheduler, arrivals, count = self._make_scheduler(case), Arrivals(case), len(case.arrival)
        steps: list[Step] = []
        first, finish = [float("nan")] * count, [float("nan")] * count
        clock, preempted, empty = 0.0, (), False
        before: tuple[Any, ...] = ()
        for _ in range(2 * STEP_LIMIT):  # half of them may have no tokens
            if (not arrivals.due and not scheduler.requests) or len(steps) == STEP_LIMIT:
                break
            if not scheduler.requests:
                clock = max(clock, arrivals.due[0][0])
            for row in arrivals.until(clock):
                scheduler.add_request(self._make_request(case, *row))
            running = list(scheduler.running)
            if not empty:
                before = clock, _numbers(running), _numbers(scheduler.waiting)
            order = _Preemptions(scheduler)
            output = scheduler.schedule()
            preempted += order.restore()
            tokens = output.num_scheduled_tokens
            if not tokens:
                if not preempted:
                    raise LivelockError(f"nothing is scheduled at {clock} s, for ever: {case}")
                empty = True
                continue
            ran = _ran(scheduler, tokens, case)
            steps.append(Step(*before, preempted, ran, *_memory(scheduler, case), empty))
            preempted, empty = (), False
            clock += duration(sum(tokens.values()))
            done = {name: scheduler.requests[name] for name in tokens}
            emits = [r.num_computed_tokens >= r.num_tokens for r in done.values()]
            made = [_made(case, output, r) if e else 0 for r, e in zip(done.values(), emits, strict=True)]
            had = {name: request.num_output_tokens for name, request in done.items()}
            scheduler.update_from_output(output, _outputs(list(tokens), made))
            if case.depth:
                steps[-1] = _with_drafts(steps[-1], scheduler, output, done, had, case)
            for name, (request, emitted) in zip(tokens, zip(done.values(), emits, strict=True), strict=True):
                if emitted and first[int(name)] != first[int(name)]:
                    first[int(name)] = clock
                if request.is_finished():
                    finish[int(name)] = clock
                    arrivals.end(int(name), clock)
        return Schedule(tuple(steps), tuple(first), tuple(finish))

    def _play_ahead(self, case: Case) -> Schedule:
        """Return the schedule with two batches in flight: one is scheduled when the one before it starts.

        Running and waiting requests are those of that moment, and not recorded.
        """
        scheduler, arrivals, count = self._make_scheduler(case), Arrivals(case), len(case.arrival)
        steps: list[Step] = []
        first, finish = [float("nan")] * count, [float("nan")] * count
        flight: deque[tuple[Any, list[bool], float]] = deque()
        clock, end, preempted, empty = 0.0, 0.0, (), False
        while (arrivals.due or scheduler.requests or flight) and len(steps) < STEP_LIMIT:
            if not scheduler.requests and not flight:
                clock = max(clock, arrivals.due[0][0])
            for row in arrivals.until(clock):
                scheduler.add_request(self._make_request(case, *row))
            if scheduler.requests:
                order = _Preemptions(scheduler)
                output = scheduler.schedule()
                preempted += order.restore()
                tokens = output.num_scheduled_tokens
                emits = [not scheduler.requests[name].is_prefill_chunk for name in tokens]
                if tokens:
                    ran = _ran(scheduler, tokens, case)
                    start = max(clock, end)
                    end = start + duration(sum(tokens.values()))
                    steps.append(Step(start, (), (), preempted, ran, 0, 0, empty))
                    preempted, empty = (), False
                elif preempted:
                    empty = True
                elif not any(planned.num_scheduled_tokens for planned, *_ in flight):
                    raise LivelockError(f"nothing is scheduled at {clock} s, for ever: {case}")
                flight.appendleft((output, emits, end if tokens else clock))
                if tokens and len(flight) < 2:
                    steps[-1] = _measured(steps[-1], scheduler, case)
                    continue
            output, emits, ended = flight.pop()
            clock = max(clock, ended)
            names = list(output.num_scheduled_tokens)
            done = [scheduler.requests.get(name) for name in names]
            scheduler.update_from_output(output, _outputs(names, list(map(int, emits))))
            for name, request, emitted in zip(names, done, emits, strict=True):
                if emitted and first[int(name)] != first[int(name)]:
                    first[int(name)] = clock
                if request is not None and request.is_finished():
                    finish[int(name)] = clock
                    arrivals.end(int(name), clock)
            gone = {
                int(name)
                for name, request in zip(names, done, strict=True)
                if request is not None and request.is_finished()
            }
            preempted = tuple(i for i in preempted if i not in gone)
            if flight and flight[-1][0].num_scheduled_tokens:
                left = tuple(i for i in steps[-1].preempted if i not in gone)
                steps[-1] = _measured(replace(steps[-1], preempted=left), scheduler, case)
        return Schedule(tuple(steps), tuple(first), tuple(finish))


def _ran(scheduler: Any, tokens: dict[str, int], case: Case) -> tuple[tuple[int, int], ...]:
    """Return the requests that a step has scheduled, with their tokens or, with prefix caching, their KV after it."""
    ran = [request for request in scheduler.running if request.request_id in tokens]
    return tuple(
        (int(r.request_id), r.num_computed_tokens if case.texts else tokens[r.request_id]) for r in ran
    )


def _memory(scheduler: Any, case: Case) -> tuple[int, int]:
    """Return the blocks in use, and those in the prefix cache that no request holds."""
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.free_block_queue.get_all_free_blocks() if case.texts else []
    return case.blocks - int(pool.get_num_free_blocks()), sum(block.block_hash is not None for block in free)


def _measured(step: Step, scheduler: Any, case: Case) -> Step:
    """Return a step with its memory, now that the one before it has ended."""
    blocks, cached = _memory(scheduler, case)
    return replace(step, blocks=blocks, cached=cached)


def _hasher(case: Case, i: int) -> Any:
    """Return the function that names the full blocks of a request that have no name yet."""

    def names(request: Any) -> list[bytes]:
        ends = range(len(request.block_hashes) + 1, request.num_tokens // case.block_size + 1)
        return [repr(case.content(i, end * case.block_size)).encode() for end in ends]

    return names


def _numbers(requests: Any) -> tuple[int, ...]:
    return tuple(int(request.request_id) for request in requests)


class _Preemptions:
    """Records the order in which a scheduler preempts during one step."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler, self._found = scheduler, []  # type: ignore[var-annotated]
        preempt = scheduler._preempt_request

        def record(request: Any, *values: Any, **named: Any) -> Any:
            self._found.append(int(request.request_id))
            return preempt(request, *values, **named)

        scheduler._preempt_request = record

    def restore(self) -> tuple[int, ...]:
        """Stop recording; return the preempted requests."""
        del self._scheduler._preempt_request
        return tuple(self._found)


def _made(case: Case, output: Any, request: Any) -> int:
    """Return the tokens that the model gives a request with all its tokens computed: right drafts, and one more."""
    drafts = output.scheduled_spec_decode_tokens.get(request.request_id, ())
    if not drafts or drafts[0] == PADDING:
        return 1
    return 1 + min(len(drafts), case.right[int(request.request_id)][request.num_output_tokens])


def _with_drafts(
    step: Step, scheduler: Any, output: Any, done: dict[str, Any], had: dict[str, int], case: Case
) -> Step:
    """Propose the next drafts, as the model does after a step; return the step with its drafts and what it made."""
    names, number = list(done), output.num_spec_tokens_to_schedule
    if not output.skip_drafts:
        scheduler.update_draft_token_ids(
            SimpleNamespace(req_ids=names, draft_token_ids=[[1] * number for _ in names])
        )
    verified, tokens = output.scheduled_spec_decode_tokens, []
    for i, count in step.tokens:
        request = done[f"{i:06}"]
        if case.texts:
            count = min(request.num_computed_tokens, request.num_prompt_tokens + request.max_tokens - 1)
        elif verified.get(request.request_id):
            count = request.num_output_tokens - had[request.request_id]
        tokens.append((i, count))
    left = (len(request.spec_token_ids) for request in scheduler.running)
    padded = any(ids and ids[0] == PADDING for ids in verified.values())
    if not case.by_batch:  # or it lacks the room for that
        padded |= any(case.texts or request.num_tokens == 1 for request in scheduler.waiting)
    drafts = (sum(map(len, verified.values())), *left)
    return replace(step, tokens=tuple(tokens), drafts=drafts, unlike=PADDED if padded else "")


def _outputs(names: list[str], made: list[int]) -> Any:
    """Return what the model gives back: the tokens that each request has made."""
    return Stub(
        sampled_token_ids=[[1] * count for count in made],
        req_id_to_index={name: k for k, name in enumerate(names)},
        logprobs=None, prompt_logprobs_dict={}, prompt_token_id_logprobs_dict={}, pooler_output=None,
        num_nans_in_logits=None,
        kv_connector_output=None, ec_connector_output=None, cudagraph_stats=None, routed_experts=None,
    )  # fmt: skip


def _configuration(case: Case) -> Any:
    """Return the configuration that the scheduler reads: an attribute it lacks is an error, as its default matters."""
    scheduler = {
        "max_num_scheduled_tokens": None, "async_scheduling": False, "disable_chunked_mm_input": False,
        "max_num_active_seqs": None, "prefill_schedule_interval": 1, "long_prefill_token_threshold_adaptive": False,
    }  # fmt: skip
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(**(scheduler | case.settings)),
        cache_config=SimpleNamespace(
            num_gpu_blocks=case.blocks + 1, enable_prefix_caching=bool(case.texts), block_size=case.block_size,
            mamba_cache_mode="none", prefix_cache_retention_interval=None, enable_mamba_shared_prefix_checkpoint=False,
        ),
        model_config=SimpleNamespace(
            max_model_len=MAX_LEN, is_encoder_decoder=False, is_diffusion=False, runner_type="generate",
            supports_multimodal_inputs=False, enable_return_routed_experts=False, return_sampling_mask=False,
            uses_mrope=False, is_multimodal_model=False,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0, data_parallel_size=1, decode_context_parallel_size=1,
            prefill_context_parallel_size=1, pipeline_parallel_size=1, world_size=1,
        ),
        observability_config=SimpleNamespace(
            kv_cache_metrics=False, enable_mfu_metrics=False, enable_logging_iteration_details=False,
            per_request_spec_decode_metrics="none",
        ),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        lora_config=None, kv_events_config=None, ec_transfer_config=None, kv_transfer_config=_transfers(case),
        speculative_config=_drafter(case) if case.depth else None, num_speculative_tokens=case.depth,
        num_lookahead_tokens=case.lookahead, num_prefill_lookahead_tokens=0,
        num_hash_lookahead_tokens=0, is_mm_encoder_only=False, use_v2_model_runner=True,
        max_concurrent_batches=2 if case.settings.get("async_scheduling") else 1,
        max_in_flight_tokens=MAX_LEN,
    )  # fmt: skip


def _transfers(case: Case) -> Any:
    """Return the configuration of a connector, None without a memory of the host."""
    if not case.host_blocks:
        return None
    return SimpleNamespace(kv_load_failure_policy="recompute", is_kv_consumer=True, is_kv_producer=True)


def _drafter(case: Case) -> Any:
    """Return the configuration of the drafts."""
    return SimpleNamespace(
        use_eagle=lambda: case.lookahead > 0, use_eagle_block_drop=lambda: False, needs_eagle_block_drop=lambda: False,
        disable_eagle_block_drop=False, max_num_new_slots_for_drafting=0,
        num_speculative_tokens_per_batch_size=[list(row) for row in case.by_batch] or None,
    )  # fmt: skip
