"""A policy of kvgym inside vLLM's scheduler, driven iteration by iteration without a model."""

from __future__ import annotations

from collections import deque
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conformance import vllm_engine
from conformance.cases import CONSTANT, PER_TOKEN, Case, Schedule, Step, duration
from kvgym.errors import LivelockError
from kvgym.integrations.vllm import deciding, releases

LAST_TOKEN = 2
"""The token that ends a request: policies see no limit that would reveal its length."""

BATCH_TIME = {
    "kind": "affine",
    "constant": CONSTANT,
    "per_prefill_token": PER_TOKEN,
    "per_decode_token": PER_TOKEN,
}


class Engine(vllm_engine.Engine):
    """vLLM's scheduler of one release, also with kvgym's policies.

    Args:
        folder: folder that contains the package ``vllm`` of the release.
        version: its version.
        asynchronous: whether scheduling with policies runs one batch ahead of the outputs.
    """

    def __init__(self, folder: Path, version: str, *, asynchronous: bool = False) -> None:
        super().__init__(folder)
        vars(import_module("vllm"))["__version__"] = version
        releases.scheduler_class.cache_clear()
        self._class, self._ahead = releases.scheduler_class(asynchronous), int(asynchronous)

    def make_scheduler(self, case: Case, settings: dict[str, Any]) -> Any:
        """Return a scheduler for a case with kvgym's settings; its clock is at 0."""
        config = vllm_engine._configuration(case)
        config.additional_config = {"kvgym": settings | {"batch_time": BATCH_TIME}}
        config.scheduler_config.async_scheduling = bool(self._ahead)
        spec = self._interface.FullAttentionSpec(
            block_size=case.block_size, num_kv_heads=1, head_size=1, dtype=self._torch.float16
        )
        group = self._interface.KVCacheGroupSpec(["layer"], spec)
        memory = self._interface.KVCacheConfig(
            num_blocks=case.blocks + 1, kv_cache_tensors=[], kv_cache_groups=[group]
        )
        deciding.LEAST_ROWS = len(case.arrival)
        made = self._class(
            vllm_config=config,
            kv_cache_config=memory,
            structured_output_manager=SimpleNamespace(
                accept_tokens=lambda *_: True, should_advance=lambda _: False
            ),
            block_size=case.block_size,
        )
        made.now, made.wall, made._origin = (lambda: 0.0), (lambda: 0.0), 0.0
        made._build()
        return made

    def make_request(self, case: Case, i: int, extra: dict[str, Any]) -> Any:
        """Return request ``i`` of a case; it carries ``extra``."""
        sampling = SimpleNamespace(
            max_tokens=1 << 20, min_tokens=0, eos_token_id=LAST_TOKEN, stop_token_ids=(), extra_args=extra,
            skip_reading_prefix_cache=None, repetition_detection=None, num_logprobs=None, logprobs=None,
        )  # fmt: skip
        return self._request.Request(
            request_id=f"{i:06}", prompt_token_ids=[0] * case.prompt[i], sampling_params=sampling,
            pooling_params=None, arrival_time=case.arrival[i], priority=-case.priority[i],
        )  # fmt: skip

    def play_policy(
        self, case: Case, settings: dict[str, Any], extras: list[dict[str, Any]]
    ) -> tuple[Schedule, Any]:
        """Return the schedule of a policy, and the scheduler.

        Args:
            case: the workload; its settings are those of vLLM.
            settings: kvgym's.
            extras: what each request carries.

        Raises:
            LivelockError: nothing is scheduled any more.
        """
        scheduler, count = self.make_scheduler(case, settings), len(case.arrival)
        steps: list[Step] = []
        first, finish = [float("nan")] * count, [float("nan")] * count
        clock, coming, preempted, idle = 0.0, 0, (), 0
        scheduler.now = scheduler.wall = lambda: clock
        under_way: deque[Any] = deque()
        while coming < count or scheduler.requests:
            if not scheduler.requests:
                clock = max(clock, case.arrival[coming])
            while coming < count and case.arrival[coming] <= clock:
                scheduler.add_request(self.make_request(case, coming, extras[coming]))
                coming += 1
            before = clock, _numbers(scheduler.running), _numbers(scheduler.waiting)
            order = vllm_engine._Preemptions(scheduler)
            output = scheduler.schedule()
            preempted += order.restore()
            tokens = output.num_scheduled_tokens
            idle = 0 if tokens else idle + 1
            if idle > 20_000:
                raise LivelockError(f"nothing is scheduled at {clock} s: {case}")
            if tokens:
                pool = scheduler.kv_cache_manager.block_pool
                ran = [
                    (int(r.request_id), tokens[r.request_id])
                    for r in scheduler.running
                    if r.request_id in tokens
                ]
                steps.append(Step(*before, preempted, tuple(ran), case.blocks - pool.get_num_free_blocks()))
                preempted = ()
                under_way.append((output, {name: _emits(scheduler.requests[name]) for name in tokens}))
            elif not under_way:
                clock = _rest(scheduler, clock, case.arrival[coming] if coming < count else float("inf"))
            if len(under_way) > self._ahead or (under_way and not tokens):
                output, emits = under_way.popleft()
                clock += duration(output.total_num_scheduled_tokens)
                self._finish(case, scheduler, output, emits, clock, first, finish)
        return Schedule(tuple(steps), tuple(first), tuple(finish)), scheduler

    @staticmethod
    def _finish(
        case: Case, scheduler: Any, output: Any, emits: dict[str, bool], clock: float, first: list[float],
        finish: list[float],
    ) -> None:  # fmt: skip
        """Give a batch its tokens."""
        made = vllm_engine._outputs(list(emits), list(emits.values()))
        alive = {name: scheduler.requests[name] for name in emits if name in scheduler.requests}
        for name, request in alive.items():
            if request.num_output_tokens == case.output[int(name)] - 1:
                sampled = made.sampled_token_ids[made.req_id_to_index[name]]
                sampled[:] = [LAST_TOKEN] * len(sampled)
        scheduler.update_from_output(output, made)
        for name, request in alive.items():
            if emits[name] and first[int(name)] != first[int(name)]:
                first[int(name)] = clock
            if request.is_finished():
                finish[int(name)] = clock


def _numbers(requests: Any) -> tuple[int, ...]:
    return tuple(int(request.request_id) for request in requests)


def _emits(request: Any) -> bool:
    """Return whether the batch that has just been scheduled gives a request a token."""
    return not request.is_prefill_chunk


def _rest(scheduler: Any, clock: float, arrival: float) -> float:
    """Return when the next decision is, after one without a batch."""
    until = scheduler.resting_until
    if scheduler.rest_ends_early:
        until = min(until, arrival)
    if not clock < until < 1e14:
        raise LivelockError(f"nothing is scheduled at {clock} s, for ever")
    return float(until)
