"""SGLang's prefix cache and its scheduling policy, driven batch by batch without a model.

``RadixCache`` and ``SchedulePolicy`` are the engine's. Around them, requests start and leave as under kvgym's ``lpm``,
with the calls that SGLang's scheduler makes: at each decision ``calc_priority`` for all waiting requests; for each that
starts a match short of its last token, and a lock; ``evict`` for the memory that is missing; ``checkpoint`` after its
prefill and when it finishes.
"""

from __future__ import annotations

import itertools
import random
from array import array
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conformance.cases import (
    STEP_LIMIT,
    Case,
    Schedule,
    Step,
    draw_memory,
    draw_requests,
    draw_texts,
    duration,
)
from conformance.stubs import Stub, StubFinder

REAL = (
    "sglang.srt.managers.schedule_policy",
    "sglang.srt.mem_cache.base_prefix_cache",
    "sglang.srt.mem_cache.cache_init_params",
    "sglang.srt.mem_cache.common",
    "sglang.srt.mem_cache.evict_policy",
    "sglang.srt.mem_cache.radix_cache",
    "sglang.srt.mem_cache.utils",
)
"""Modules of the cache and of the policy."""

NAMES = {
    "sglang.srt.environ": {"envs": Stub()},
    "sglang.srt.utils.common": {"ceil_align": lambda tokens, size: -(-tokens // size) * size},
}
"""What the stubs of other modules must have, because they use its value."""


IN_PLACE, TOUCHED = "in-place", "touched"
"""Variants: the policy sorts the queue that it has sorted before, as in SGLang, where otherwise it gets the waiting
requests by arrival and preempted ones before them, as ``lpm``; or what a preempted request leaves in the cache counts
as used when it leaves, as in kvgym.
"""


def draw_case(seed: int) -> Case:
    """Return a random workload with settings of the policy; requests begin with common texts."""
    draw = random.Random(seed)
    requests = draw_requests(draw)
    settings = {
        "most_waiting": draw.choice([128, 128, 128, 3]),
        "small_hit": draw.choice([32, 0, 4, 16]),
        "common": draw.choice([32, 16, 16]),
    }
    memory = draw_memory(draw, requests)
    return Case(**requests, **memory, settings=settings, texts=draw_texts(seed, requests))


class Engine:
    """The cache and the policy of one release.

    Args:
        folder: folder that contains the package ``sglang`` of the release.
        variant: :data:`IN_PLACE`, :data:`TOUCHED` or None.
    """

    def __init__(self, folder: Path, variant: str | None = None) -> None:
        StubFinder("sglang", folder, REAL, NAMES).install()
        self._torch, self._variant = import_module("torch"), variant
        self.radix, self.policy, self.common, self.params = (
            import_module(f"sglang.srt.{name}")
            for name in (
                "mem_cache.radix_cache",
                "managers.schedule_policy",
                "mem_cache.common",
                "mem_cache.cache_init_params",
            )
        )
        ticks = itertools.count()
        self.radix.time = SimpleNamespace(monotonic=lambda: float(next(ticks)), perf_counter=lambda: 0.0)

    def play(self, case: Case) -> Schedule:
        """Return the schedule; waiting requests are in the order of the policy, each with the tokens that it finds."""
        policy = self.policy
        policy.IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD = case.settings["small_hit"]
        policy.IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD = case.settings["common"]
        policy.WAITING_QUEUE_PREFIX_MATCH_MAX = case.settings["most_waiting"]
        return _Run(self, self._torch, case, self._variant).play()


class _Run:
    """One workload: its requests, and the memory in blocks around the cache."""

    def __init__(self, engine: Engine, torch: Any, case: Case, variant: str | None) -> None:
        self.engine, self.torch, self.case, self.variant = engine, torch, case, variant
        self.size, self.free = case.block_size, case.blocks
        longest = max(p + o for p, o in zip(case.prompt, case.output, strict=True))
        rows = torch.zeros((len(case.prompt), longest), dtype=torch.int64)
        self.cache = engine.radix.RadixCache(
            engine.params.CacheInitParams(
                disable=False,
                req_to_token_pool=SimpleNamespace(req_to_token=rows, write=rows.__setitem__),
                token_to_kv_pool_allocator=SimpleNamespace(device="cpu", free_segment=self._free_segment),
                page_size=self.size,
            )
        )
        self.policy = engine.policy.SchedulePolicy("lpm", self.cache, False, False, False)
        self.waiting: list[Any] = []
        self.queue: list[Any] = []  # the waiting requests in the policy's own order
        self.active: list[Any] = []

    def _free_segment(self, indices: Any, start_pos: int) -> None:
        self.free += self._blocks(len(indices))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def _make_request(self, i: int) -> Any:
        """Return a request; equal tokens at equal places are those of a common text."""
        case, (text, common) = self.case, self.case.texts[i]
        total = case.prompt[i] + case.output[i]
        tokens = array(
            "q", [(text if place < common else 1000 + i) * 1_000_000 + place for place in range(total)]
        )
        return SimpleNamespace(
            rid=i, tokens=tokens, origin_input_ids=tokens[: case.prompt[i]], output_ids=array("q"),
            extra_key=None, cache_salt=None, priority=0, lock=None, written=0, prefilled=False,
            _compute_max_prefix_len=lambda known: known - 1,
            kv=SimpleNamespace(req_pool_idx=i, cache_protected_len=0, cache_inserted_len=0, swa_evict_floor=0),
        )  # fmt: skip

    def _known(self, request: Any) -> int:
        return len(request.origin_input_ids) + len(request.output_ids)

    def _used(self) -> int:
        """Return the blocks in use: not free, and not those that the cache can evict."""
        return self.case.blocks - self.free - self.cache.evictable_size() // self.size

    def _growth(self) -> int:
        """Return the blocks that the active requests take for one more token each."""
        return sum(self._blocks(r.written + 1) - self._blocks(r.written) for r in self.active)

    def _ordered(self) -> list[Any]:
        """Return the waiting requests in the policy's order."""
        if self.variant != IN_PLACE:
            self.queue = list(self.waiting)
        self.queue = [r for r in self.queue if r in self.waiting]
        self.queue += [r for r in self.waiting if r not in self.queue]
        self.policy.calc_priority(self.queue)
        return self.queue

    def _start(self, request: Any) -> None:
        """Start a request: lock what it finds short of its last token."""
        known = self._known(request)
        tokens = request.origin_input_ids + request.output_ids
        self.engine.common.match_kv_cache(request, self.cache, tokens, max_prefix_len=known - 1)
        request.lock = self.cache.lock(request.last_node)
        request.written = request.kv.cache_protected_len = request.prefix_len
        request.kv.cache_inserted_len, request.prefilled = 0, False
        self.waiting.remove(request)
        self.active.append(request)

    def _take(self, blocks: int) -> None:
        """Take blocks, and evict if they are not free."""
        if blocks > self.free:
            self.cache.evict(SimpleNamespace(num_tokens=(blocks - self.free) * self.size))
        self.free -= blocks

    def _checkpoint(self, request: Any) -> None:
        """Insert the tokens with KV into the cache."""
        request.full_untruncated_fill_ids = request.tokens
        self.cache.checkpoint(request, up_to=request.written)

    def _release(self, request: Any, checkpoint: bool) -> None:
        """Give the memory of a request back that stops being active."""
        if checkpoint:
            self._checkpoint(request)
        elif self.variant == TOUCHED:
            kept = request.tokens[: request.kv.cache_protected_len]
            self.cache.touch_prefix(self.engine.radix.RadixKey(kept))
        self.free += self._blocks(request.written) - request.kv.cache_protected_len // self.size
        self.cache.unlock(request.lock)
        request.lock = None
        self.active.remove(request)

    def _shared(self, request: Any) -> int:
        """Return the blocks of what a waiting request finds that others hold; the cache does not notice."""
        most = (self._known(request) - 1) // self.size * self.size
        key, node, held = self.engine.radix.RadixKey(request.tokens[:most]), self.cache.root_node, 0
        while len(key) > 0 and (child := node.children.get(key.child_key(self.size))) is not None:
            found = child.key.match(key, page_size=self.size)
            held += found if child.lock_ref > 0 else 0
            key, node = key[found:], child
            if found < len(child.key):
                break
        return held // self.size

    def _decide(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """Preempt what does not fit, or start what fits; return the preempted and the ordered requests."""
        gone = []
        while self._used() + self._growth() > self.case.blocks:
            gone.append(self.active[-1])
            self._release(gone[-1], checkpoint=False)
        for request in gone:
            self.waiting.insert(0, request)
        if gone:
            return tuple(r.rid for r in gone), ()
        need, order = self._used() + self._growth(), self._ordered()
        ranked = self.policy._determine_active_policy(order) is self.engine.policy.CacheAwarePolicy.LPM
        found = tuple((r.rid, self._hit(r)) for r in order) if ranked else ()
        taken = [self._blocks(self._known(r)) - self._shared(r) for r in order]
        for request, blocks in zip(list(order), taken, strict=True):
            need += blocks
            if need > self.case.blocks:
                break
            self._start(request)
        return (), found

    def _hit(self, request: Any) -> int:
        """Return the tokens that a waiting request would find if it started."""
        return min(request.prefix_len, (self._known(request) - 1) // self.size * self.size)

    def play(self) -> Schedule:
        """Return the schedule."""
        case, count = self.case, len(self.case.arrival)
        steps: list[Step] = []
        first, finish = [float("nan")] * count, [float("nan")] * count
        clock, coming = 0.0, 0
        while (coming < count or self.waiting or self.active) and len(steps) < STEP_LIMIT:
            if not self.waiting and not self.active:
                clock = max(clock, case.arrival[coming])
            while coming < count and case.arrival[coming] <= clock:
                self.waiting.append(self._make_request(coming))
                coming += 1
            running = tuple(r.rid for r in self.active)
            preempted, order = self._decide()
            tokens = [1 if r.prefilled else self._known(r) - r.written for r in self.active]
            grown = [
                self._blocks(r.written + t) - self._blocks(r.written)
                for r, t in zip(self.active, tokens, strict=True)
            ]
            self._take(sum(grown))
            for request, done in zip(self.active, tokens, strict=True):
                request.written += done
            ran = tuple((r.rid, r.written) for r in self.active)
            cached = self.cache.evictable_size() // self.size
            steps.append(Step(clock, running, order, preempted, ran, self._used(), cached))
            clock += duration(sum(tokens))
            self._finish(clock, first, finish)
        return Schedule(tuple(steps), tuple(first), tuple(finish))

    def _finish(self, clock: float, first: list[float], finish: list[float]) -> None:
        """End a batch: every request has one more output token; the last one is not written."""
        for request in self.active:
            if not request.prefilled:
                self._checkpoint(request)
                request.prefilled = True
        for request in list(self.active):
            i = request.rid
            request.output_ids.append(request.tokens[self._known(request)])
            if first[i] != first[i]:
                first[i] = clock
            if len(request.output_ids) == self.case.output[i]:
                self._release(request, checkpoint=True)
                finish[i] = clock
