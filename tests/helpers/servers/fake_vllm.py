"""A stand-in for vLLM's scheduler: its interface and its rule, first come, first served, without a model or blocks."""

import enum
import sys
from collections import deque
from types import ModuleType, SimpleNamespace


class Status(enum.IntEnum):
    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    RUNNING = 3
    PREEMPTED = 4
    FINISHED_STOPPED = 5
    FINISHED_ABORTED = 6


class Request:
    def __init__(self, name, prompt, output, arrival=0.0, *, priority=0, max_tokens=1000, **extra):
        self.request_id, self.num_prompt_tokens, self.target = name, prompt, output
        self.arrival_time, self.priority, self.max_tokens = arrival, priority, max_tokens
        self.sampling_params = SimpleNamespace(extra_args=extra or None)
        self.status, self.resumable, self.mm_features, self.pooling_params = Status.WAITING, False, [], None
        self.num_computed_tokens = self.num_output_tokens = self.num_output_placeholders = 0
        self.num_preemptions, self.hit, self.is_prefill_chunk, self.held = 0, 0, False, 0

    @property
    def num_tokens(self):
        return self.num_prompt_tokens + self.num_output_tokens

    def is_finished(self):
        return self.status > Status.PREEMPTED


class Queue(deque):
    def remove_request(self, request):
        self.remove(request)

    def prepend_request(self, request):
        self.appendleft(request)


class Scheduler:
    """vLLM's rule on requests that take whole blocks."""

    def __init__(self, vllm_config, kv_cache_config, **_):
        self.vllm_config, self.kv_cache_config = vllm_config, kv_cache_config
        self.scheduler_config = vllm_config.scheduler_config
        self.max_num_active_reqs = vllm_config.scheduler_config.max_num_seqs
        self.max_num_scheduled_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.max_model_len = vllm_config.model_config.max_model_len
        self.block_size, self.free = vllm_config.block_size, vllm_config.blocks
        manager = SimpleNamespace(block_size=self.block_size)
        self.kv_cache_manager = SimpleNamespace(
            coordinator=SimpleNamespace(single_type_managers=[manager]),
            block_pool=SimpleNamespace(num_gpu_blocks=self.free + 1, get_num_free_blocks=lambda: self.free),
            watermark_blocks=1,
        )
        self.scheduler_reserve_full_isl, self.requires_kv_delivery = True, False
        self._pause_state = SimpleNamespace(name="UNPAUSED")
        self.requests, self.running, self.waiting, self.own = {}, [], Queue(), 0

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def _is_blocked_waiting_status(self, status):
        return status == Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR

    def _handle_blocked_waiting_request(self, request):
        return False

    def _reserve_prefill_lookahead(self, request, num_computed_tokens, num_new_tokens):
        return num_new_tokens

    def _allocate(self, request, tokens):
        needed = -(-tokens // self.block_size) - request.held
        if needed > self.free:
            return False
        self.free, request.held = self.free - needed, request.held + needed
        return True

    def _release(self, request):
        self.free, request.held = self.free + request.held, 0

    def _preempt_request(self, request, timestamp, drop_stale_output=False):
        self._release(request)
        request.status, request.num_computed_tokens = Status.PREEMPTED, 0
        request.num_output_tokens += (
            request.num_output_placeholders
        )  # what is under way arrives before it starts again
        request.num_output_placeholders = 0
        request.num_preemptions += 1
        self.waiting.prepend_request(request)

    def schedule(self, throttle_prefills=False):
        self.own += self.scheduler_reserve_full_isl
        budget, given, preempted, k = self.max_num_scheduled_tokens, {}, False, 0
        while k < len(self.running) and budget > 0:
            request = self.running[k]
            lacking = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
            if request.num_output_tokens + request.num_output_placeholders >= request.max_tokens:
                lacking = 0
            tokens = self._reserve_prefill_lookahead(
                request, request.num_computed_tokens, min(lacking, budget)
            )
            while tokens and not self._allocate(request, request.num_computed_tokens + tokens):
                victim, preempted = self.running.pop(), True
                self._preempt_request(victim, 0.0)
                if victim is request:
                    tokens = 0
            if tokens:
                given[request.request_id] = tokens
                budget -= tokens
            k += 1
        blocked = []
        while self.waiting and budget > 0 and not preempted and len(self.running) < self.max_num_active_reqs:
            request = self.waiting[0]
            if self._is_blocked_waiting_status(request.status):
                blocked.append(self.waiting.popleft())
                continue
            lacking = request.num_tokens - request.hit
            tokens = self._reserve_prefill_lookahead(request, request.hit, min(lacking, budget))
            if not tokens or not self._allocate(request, request.hit + tokens):
                break
            self.running.append(self.waiting.popleft())
            request.status, request.num_computed_tokens = Status.RUNNING, request.hit
            given[request.request_id] = tokens
            budget -= tokens
        self.waiting.extendleft(reversed(blocked))
        for name, tokens in given.items():
            request = self.requests[name]
            request.num_computed_tokens += tokens
            request.is_prefill_chunk = (
                request.num_computed_tokens < request.num_tokens + request.num_output_placeholders
            )
            if not request.is_prefill_chunk:
                request.num_output_placeholders += 1
        return SimpleNamespace(
            num_scheduled_tokens=given,
            total_num_scheduled_tokens=sum(given.values()),
            emits=[name for name in given if not self.requests[name].is_prefill_chunk],
        )

    def update_from_output(self, scheduler_output, model_runner_output=None):
        for name in scheduler_output.emits:
            request = self.requests.get(name)
            if request is None or request.num_output_placeholders == 0:
                continue
            request.num_output_placeholders -= 1
            request.num_output_tokens += 1
            if request.num_output_tokens >= min(request.target, request.max_tokens):
                self.finish_requests(name, Status.FINISHED_STOPPED)

    def finish_requests(self, name, status):
        request = self.requests[name]
        (self.running if request.status == Status.RUNNING else self.waiting).remove(request)
        request.status = status
        self._free_request(request)

    def _free_request(self, request, delay_free_blocks=False):
        self._release(request)
        del self.requests[request.request_id]


def configuration(settings, *, blocks=100, block_size=1, budget=1000, seqs=64, asynchronous=False, **options):
    """Return the configuration of vLLM as kvgym's scheduler reads it."""
    scheduler = {
        "max_num_seqs": seqs, "max_num_batched_tokens": budget, "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 0, "prefill_schedule_interval": 1, "async_scheduling": asynchronous,
        "policy": "fcfs",
    }  # fmt: skip
    model = {
        "is_encoder_decoder": False,
        "is_diffusion": False,
        "runner_type": "generate",
        "max_model_len": 1000,
    }
    parts = {"speculative_config": None, "kv_transfer_config": None, "ec_transfer_config": None}
    parallel = {"pipeline_parallel_size": 1}
    for name, value in options.items():
        next(part for part in (scheduler, model, parallel, parts) if name in part)[name] = value
    return SimpleNamespace(
        additional_config={"kvgym": settings} if settings is not None else {},
        scheduler_config=SimpleNamespace(**scheduler), model_config=SimpleNamespace(**model),
        parallel_config=SimpleNamespace(**parallel), blocks=blocks, block_size=block_size, **parts,
    )  # fmt: skip


MEMORY = SimpleNamespace(kv_cache_groups=["layers"], has_mamba_layers=False)
"""The configuration of vLLM's KV cache: one group of layers."""


def install(monkeypatch, version="0.33.1"):
    """Make ``import vllm`` find this stand-in."""
    sched = "vllm.v1.core.sched"
    names = {
        "vllm": {"__version__": version},
        f"{sched}.scheduler": {"Scheduler": Scheduler},
        f"{sched}.async_scheduler": {"AsyncScheduler": type("AsyncScheduler", (Scheduler,), {})},
        f"{sched}.request_queue": {"FCFSRequestQueue": Queue},
    }
    for name in ("vllm.v1", "vllm.v1.core", sched):
        names.setdefault(name, {})
    for name, contents in names.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
