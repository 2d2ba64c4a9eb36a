"""vLLM's scheduler with its offloading connector, driven without a model: KV memory of the host below the GPU."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from conformance import vllm_engine
from conformance.cases import STEP_LIMIT, Case, Schedule, Step, duration

REAL = (
    *vllm_engine.REAL,
    "vllm.v1.kv_offload",
    "vllm.v1.kv_offload.base",
    "vllm.v1.kv_offload.config",
    "vllm.v1.kv_offload.cpu",
    "vllm.v1.kv_offload.cpu.common",
    "vllm.v1.kv_offload.cpu.manager",
    "vllm.v1.kv_offload.cpu.policies",
    "vllm.v1.kv_offload.cpu.policies.",
    "vllm.v1.kv_hints",
    "vllm.v1.outputs",
    "vllm.v1.metrics.cache_hit_source",
    "vllm.distributed.kv_transfer.kv_connector.v1.base",
    "vllm.distributed.kv_transfer.kv_connector.utils",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading.common",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading.config",
)
"""The scheduler's modules, and those of the connector on its side."""

NAMES = vllm_engine.NAMES | {"vllm.utils.torch_utils": {"get_dtype_size": lambda dtype: dtype.itemsize}}
"""What the stubs must have."""

OFFLOADING = "vllm.distributed.kv_transfer.kv_connector.v1.offloading"


def draw_case(seed: int) -> Case:
    """Return a random workload with prefix caching and a memory of the host; blocks have more than one token."""
    case, draw = vllm_engine.draw_case(seed, options=False, prefix_cache=True), random.Random(f"host {seed}")
    if case.block_size == 1:
        case = replace(case, block_size=2, blocks=2 + case.blocks // 2)
    return replace(
        case,
        host_blocks=draw.randint(1, draw.choice([4, case.blocks, 4 * case.blocks])),
        load_time=2.0 ** -draw.randint(5, 12),
        store_time=2.0 ** -draw.randint(6, 12),
        prompt_only=draw.random() < 0.5,
    )


WRITTEN_TWICE = "a request offers a block that is still being written for another"
"""Class of differences: the engine does not count that as use of the block, kvgym does."""

TAKEN_AGAIN = "the memory of a finished request is taken again while its last blocks are stored"
"""Class of differences: the batch of the engine waits for that; in kvgym they are written after it."""

COPIES = "two blocks with the same content"
"""Class of differences: the engine finds a loaded block after one that has been computed meanwhile, kvgym before it."""


@dataclass
class Links:
    """The GPU's side: transfers in both directions, one after the other in each.

    Attributes:
        up: s, when the link to the GPU is free.
        down: s, when the other one is.
        ends: end of each transfer under way, by its number.
        loading: the request of each load.
        later: stores that begin with the next step.
        counts: loads, and blocks that were loaded and stored.
        unlike: what the engine has done since the last batch that kvgym does otherwise.
        loaded: blocks of the GPU that were filled by loads.
    """

    case: Case
    up: float = 0.0
    down: float = 0.0
    ends: dict[int, float] = field(default_factory=dict)
    loading: dict[int, str] = field(default_factory=dict)
    later: list[tuple[int, Any]] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    unlike: str = ""
    loaded: set[int] = field(default_factory=set)

    def store(self, number: int, job: Any, clock: float) -> None:
        """Begin a store."""
        count = len(job.src_spec.block_ids)
        self.down = self.ends[number] = max(clock, self.down) + count * self.case.store_time

    def begin(self, planned: Any, clock: float) -> float:
        """Begin the transfers of a step; return when its batch begins, as the worker orders them."""
        stores, flushed = dict(planned.store_jobs), planned.jobs_to_flush or set()
        self.counts[2] += sum(len(job.src_spec.block_ids) for job in stores.values())
        waited = [(number, stores.pop(number)) for number in flushed if number in stores]
        self.unlike = TAKEN_AGAIN if waited else self.unlike
        for number, job in [*self.later, *waited]:
            self.store(number, job, clock)
        start = max([clock, *(self.ends[number] for number in flushed if number in self.ends)])
        for number, job in planned.load_jobs.items():
            count = len(job.dst_spec.block_ids)
            self.counts[0] += 1
            self.counts[1] += count
            self.loaded.update(job.dst_spec.block_ids)
            self.up = self.ends[number] = max(start, self.up) + count * self.case.load_time
            self.loading[number] = job.req_id
        self.later = list(stores.items())
        return float(start)

    def has_copies(self, pool: Any) -> bool:
        """Return whether a loaded block has the same content as another one."""
        found = pool.cached_block_hash_to_block._cache.values()
        return any(isinstance(same, dict) and len(same) > 1 and self.loaded & same.keys() for same in found)

    def ended(self, clock: float) -> tuple[list[int], set[str]]:
        """Return the transfers that have ended by a time, and the requests that had these loads."""
        done = [number for number, end in self.ends.items() if end <= clock]
        for number in done:
            del self.ends[number]
        return done, {self.loading.pop(number) for number in done if number in self.loading}


class Engine(vllm_engine.Engine):
    """The scheduler of a release with its offloading connector."""

    real, names = REAL, NAMES

    def play(self, case: Case) -> Schedule:
        """Return the schedule; steps without tokens are left out.

        ``transfers`` of a step are the loads so far, and the blocks that were loaded, stored and are on the host.
        """
        scheduler, links = self._make_scheduler(case), Links(case)
        _watch(scheduler.connector.manager, links)
        arrivals, count = vllm_engine.Arrivals(case), len(case.arrival)
        steps: list[Step] = []
        first, finish = [float("nan")] * count, [float("nan")] * count
        clock, preempted, ended = 0.0, (), []  # type: ignore[var-annotated]
        for _ in range(20 * STEP_LIMIT):
            idle = not (scheduler.requests or links.later or scheduler.finished_req_ids)
            if (not arrivals.due and idle) or len(steps) == STEP_LIMIT:
                break
            if idle:
                clock = max(clock, min([arrivals.due[0][0], *links.ends.values()]))
            for row in arrivals.until(clock):
                scheduler.add_request(self._make_request(case, *row))
            before = clock, vllm_engine._numbers(scheduler.running), _waiting(scheduler)
            # A set in the engine, so that what requests used that finish together is dropped in any order.
            scheduler.finished_req_ids = dict.fromkeys(
                name for name in ended if name in scheduler.finished_req_ids
            )
            order, ended = vllm_engine._Preemptions(scheduler), []
            output = scheduler.schedule()
            preempted += order.restore()
            tokens, start = output.num_scheduled_tokens, links.begin(output.kv_connector_metadata, clock)
            if tokens:
                ran = vllm_engine._ran(scheduler, tokens, case)
                memory = vllm_engine._memory(scheduler, case)
                used = case.host_blocks - scheduler.connector.manager._get_num_free_chunks()
                if links.has_copies(scheduler.kv_cache_manager.block_pool):
                    links.unlike = COPIES
                transfers = (*links.counts, used)
                steps.append(Step(*before, preempted, ran, *memory, transfers=transfers, unlike=links.unlike))
                preempted, links.unlike = (), ""
            clock = start + (duration(sum(tokens.values())) if tokens else 0.0)
            done, loaded = links.ended(clock)
            requests = {name: scheduler.requests[name] for name in tokens}
            emits = [r.num_computed_tokens >= r.num_tokens for r in requests.values()]
            made = vllm_engine._outputs(list(tokens), list(map(int, emits)))
            made.kv_connector_output = self._report(done, loaded)
            scheduler.update_from_output(output, made)
            for (name, request), emitted in zip(requests.items(), emits, strict=True):
                if emitted and first[int(name)] != first[int(name)]:
                    first[int(name)] = clock
                if request.is_finished():
                    ended.append(name)
                    finish[int(name)] = clock
                    arrivals.end(int(name), clock)
            quiet = not (tokens or done or links.later or preempted or scheduler.finished_req_ids)
            if quiet and scheduler.requests:
                due = [*links.ends.values(), *(time for time, _ in arrivals.due[:1])]
                if not due:
                    break
                clock = max(clock, min(due))
        return Schedule(tuple(steps), tuple(first), tuple(finish))

    def _make_scheduler(self, case: Case) -> Any:
        connector = import_module(f"{OFFLOADING}.scheduler")
        factory = import_module("vllm.distributed.kv_transfer.kv_connector.factory").KVConnectorFactory
        manager = import_module("vllm.v1.kv_offload.cpu.manager").CPUOffloadingManager(case.host_blocks)
        group = SimpleNamespace(
            group_id=0,
            tokens_per_block=case.block_size,
            sliding_window_size_in_chunks=None,
            layer_names=("layer",),
        )
        spec = SimpleNamespace(
            config=SimpleNamespace(groups=(group,)),
            blocks_per_chunk=1,
            tokens_per_hash=case.block_size,
            tokens_per_block=(case.block_size,),
            offload_prompt_only=case.prompt_only,
            extra_config={},
            kv_events_config=SimpleNamespace(enable_kv_cache_events=False, self_describing_kv_events=False),
            get_manager=lambda: manager,
        )

        def create(config: Any, role: Any, kv_cache_config: Any) -> Any:
            return Connector(connector.OffloadingConnectorScheduler(spec, config, kv_cache_config))

        factory.create_connector = create
        return super()._make_scheduler(case)

    def _report(self, done: list[int], loaded: set[str]) -> Any:
        """Return what the worker reports after a step."""
        meta = import_module(f"{OFFLOADING}.common").OffloadingWorkerMetadata()
        for number in done:
            meta.mark_completed(number)
        report = import_module("vllm.v1.outputs").KVConnectorOutput
        return report(finished_recving=loaded, kv_connector_worker_meta=meta)


class Connector:
    """The connector as the scheduler calls it: what its own side of the offloading connector has, and defaults."""

    requires_kv_delivery = False
    supports_divergent_local_hybrid_hits = False

    def __init__(self, scheduler: Any) -> None:
        self._scheduler, self.manager = scheduler, scheduler.manager

    def __getattr__(self, name: str) -> Any:
        """Return a method of the offloading scheduler."""
        return getattr(self._scheduler, name)

    def bind_kv_cache_manager(self, manager: Any) -> None:
        """Do nothing."""

    def request_finished(self, request: Any, blocks: Any) -> Any:
        """Pass it on."""
        return self._scheduler.request_finished(request)

    def get_finished_count(self) -> None:
        """Return nothing."""

    def has_pending_block_frees(self) -> bool:
        """Return False: blocks are free at once."""
        return False

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """Return no groups: nothing is to be cleared before a load."""
        return ()

    def get_kv_connector_stats(self) -> None:
        """Return no figures."""


def _watch(manager: Any, links: Links) -> None:
    """Note offers of blocks that are still being written."""
    prepare = manager.prepare_store

    def prepare_store(keys: Any, context: Any) -> Any:
        keys = list(keys)
        there = filter(None, map(manager._policy.get, keys))
        if not all(chunk.is_ready for chunk in there):
            links.unlike = WRITTEN_TWICE
        return prepare(keys, context)

    manager.prepare_store = prepare_store


def _waiting(scheduler: Any) -> tuple[int, ...]:
    """Return the waiting requests: first those that hold blocks."""
    return vllm_engine._numbers([*scheduler.kv_holding_waiting, *scheduler.waiting])
