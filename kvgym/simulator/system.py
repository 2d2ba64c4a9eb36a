"""The simulated system: memory and batch-time models of its workers, and the settings of the papers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, WorkloadError, shown
from kvgym.simulator.batch_time import BatchTimeModel, RoughFigures
from kvgym.simulator.drafts.settings import Speculation
from kvgym.simulator.fleet import MAX_CAPACITY as MAX_CAPACITY
from kvgym.simulator.fleet import Fleet, check_capacity, check_model
from kvgym.simulator.fleet import Worker as Worker
from kvgym.simulator.knowledge import BOTH, SCRAPED, Knowledge
from kvgym.simulator.prefix.host_memory import HostMemory
from kvgym.simulator.prefix.rules import (
    LRU,
    CacheRule,
    CacheSettings,
    check_cache_settings,
    parse_rule,
)
from kvgym.simulator.tables import (
    PROBLEM,
    PROGRESS_KEPT,
    PROGRESS_LOST,
    PROGRESS_RECOMPUTE,
    REQUEUE_ARRIVAL,
    REQUEUE_BACK,
    REQUEUE_FRONT,
    REVEALED,
)
from kvgym.utils.arguments import explained_class
from kvgym.utils.checks import check_flag, check_one_of, real_number, whole_number
from kvgym.utils.user_code import calling
from kvgym.workloads.layout import words
from kvgym.workloads.table import RequestTable

FIRST_TOKEN = {"counted": (1, 1), "uncounted": (0, 1), "decode": (0, 0)}
OUTPUT_KV = ("at_once", "next_iteration")
PROGRESS_ON_EVICT = {"lost": PROGRESS_LOST, "recompute": PROGRESS_RECOMPUTE, "kept": PROGRESS_KEPT}
SESSIONS = ("open", "closed")
TRANSFER_LINKS = ("private", "shared")

LEAST_EFFORT = 1_000_000_000
"""Effort without progress that is always allowed, in units of a request in a batch.

An eviction, and a batch with no active request, count 1,000 units plus the tokens of the longest request (the horizon
of a policy that looks ahead); a step of a returning request through the queue counts 100. At least 10,000 of either are
allowed, and 10 evictions per request, so that a policy may decide at random and reorder its queue. These are counts,
not times, so equal runs end alike on all machines.
"""

MAX_WORKERS = 10_000
"""Most workers of a cluster."""

MAX_TIME = 1e15
"""Largest finite horizon, seconds: there the clock counts in eighths of a second."""

MAX_SECONDS = 1e6
"""Longest time of a swap or a transfer, per token and per request, seconds: far beyond realistic values."""

REQUEUE = {"arrival": REQUEUE_ARRIVAL, "front": REQUEUE_FRONT, "back": REQUEUE_BACK}


def whole_blocks(kv_capacity: int, block_size: int) -> int:
    """Return the tokens of the whole blocks that fit into a memory of ``kv_capacity`` tokens."""
    return kv_capacity // block_size * block_size


def _smallest(workers: Sequence[Worker], anywhere: bool) -> int:
    """Return the memory of the smallest worker on which whole requests must fit; ``anywhere``: on all."""
    whole = [worker.kv_capacity for worker in workers if anywhere or worker.role != "prefill"]
    return min(whole or (worker.kv_capacity for worker in workers))


@explained_class
@dataclass(frozen=True)
class System:
    """A worker, or a cluster of workers, with its settings.

    Attributes:
        kv_capacity: KV memory, tokens; for a cluster, of its smallest worker, prefill workers excluded.
        batch_time: duration of an iteration; for a cluster, on its first worker.
        first_token: ``"counted"`` (Jaillet et al.; flow control): the last prefill iteration emits output
            token 1, so a request takes o iterations with a whole prefill. ``"uncounted"`` (SLAI; stability
            framework): that iteration shows a first token, and o decode iterations follow. ``"decode"``
            (WAIT): prefill shows nothing, the first token comes from the first of o decode iterations.
        progress_on_evict: what an evicted request keeps. ``"lost"``: nothing, it returns as unprocessed.
            ``"recompute"``: its output tokens; their KV is prefilled again with the prompt (vLLM).
            ``"kept"``: everything; its KV comes back on admission, at ``swap_time`` per token.
        requeue: where an evicted request re-enters the queue: by ``"arrival"``, at the ``"front"``, or at
            the ``"back"``; several evicted at once enter in the order of the decision. On a decode worker, where
            requests queue in the order their KV comes, ``"arrival"`` is before the first that arrived later.
        horizon: seconds (at most 1e15) after which the run stops at the next iteration boundary; inf = when all
            are done.
        stall_limit: decisions in a row without anything new after which the run is declared a livelock. New is
            an arrival, an output token, or a prompt token that its request had not reached before. None = 10,000
            plus 20 times the longest request (prompt plus output). With None, effort without anything new
            is limited as well if there is no horizon and no request is still to come. So a livelock is found
            in seconds, however long the queue: see :data:`LEAST_EFFORT`.
        swap_time: seconds (0 to 1e6) per KV token moved to or from CPU memory, added to the iteration in which an
            evicted request leaves or comes back under progress ``"kept"``; 0 = swap at no cost.
        transfer_latency: seconds (0 to 1e6) per hand-over from a prefill to a decode worker.
        transfer_time: further seconds (0 to 1e6) per KV token handed over, but for those that the decode worker has in
            its prefix cache. The prefill worker's memory is free as soon as the hand-over begins.
        workers: the workers of a cluster; empty = one worker. Prefill workers come before decode workers.
            Create a cluster with :meth:`cluster` or :meth:`replicate`.
        output_kv: when the KV of an output token is written. ``"at_once"``: by the iteration that generates the token,
            as the papers count, so a request ends with prompt + output tokens of KV. ``"next_iteration"``: by the
            next one, as engines do, so each request takes one token less, and the KV of its last output token is never
            written. It needs ``first_token="counted"``.
        block_size: tokens of a block, of every worker. Memory is handed out in whole blocks: a request with k KV
            tokens takes ⌈k / block_size⌉ of them, and what remains of the capacity beyond whole blocks cannot be
            used. 1 counts tokens, as the papers' models do; engines with paged memory use about 16.
        prefix_cache: ``"computed"`` keeps the KV of requests that have gone until its memory is needed, and requests
            with the same beginning share it from the end of the batch that computes it (``kvgym.simulator.prefix``).
            ``"scheduled"``: as soon as the tokens are scheduled, those of one decision one after the other, as in vLLM.
            ``"radix"``: in a tree of nodes, as in SGLang. ``"off"``: requests share nothing.
        prefix_block: tokens that the prefix cache finds, holds and drops together, a multiple of ``block_size``;
            None = ``block_size``. Larger units are faster and find less.
        cache_rule: how long the prefix cache keeps the KV of finished requests, with options as in
            ``"fixed:tool=5"``, see :mod:`kvgym.simulator.prefix.rules`.
        cache_staleness: seconds (0 to 1e6) until the router of a cluster observes that a content has come to the prefix
            cache of a worker, from the end of its batch, or left it; of several changes it overlooks the earlier ones.
        host_memory: KV memory below that of each worker; None = none.
        fleet: the pools of a cluster with workers that start and stop; None = all workers are always there.
        knowledge: what routers and an autoscaler know of the workers of a cluster; None = the present.
        sessions: ``"open"``: every request arrives at its recorded time. ``"closed"``: only first turns of sessions do;
            a later turn arrives when the turn before it has finished and its ``think_time`` has passed.
        transfer_link: ``"private"``: each transfer has the whole bandwidth. ``"shared"``: each worker has one port for
            what it sends and one for what it receives, which its transfers share equally, see
            :mod:`kvgym.simulator.cluster.links`.
        transfer_overlap: layers of the model, where its KV is handed over layer by layer while the last batch of the
            prompt runs; 0 = the hand-over begins when that batch has ended.
        local_prefill: whether the router may send any request to any worker, when it arrives and when its prefill has
            ended: to a decode worker that prefills it as well, back to the worker that has prefilled it, or to one that
            only prefills it (:func:`kvgym.kernels.prefill_only`). Otherwise roles decide.
        speculation: speculative decoding, of one worker; None = a decode makes one token.
    """

    kv_capacity: int
    batch_time: BatchTimeModel
    first_token: str = "counted"
    progress_on_evict: str = "lost"
    requeue: str = "arrival"
    horizon: float = np.inf
    stall_limit: int | None = None
    swap_time: float = 0.0
    transfer_latency: float = 0.0
    transfer_time: float = 0.0
    workers: tuple[Worker, ...] = ()
    block_size: int = 1
    output_kv: str = "at_once"
    prefix_cache: str = "off"
    prefix_block: int | None = None
    cache_rule: str = "lru"
    cache_staleness: float = 0.0
    sessions: str = "open"
    fleet: Fleet | None = None
    transfer_link: str = "private"
    transfer_overlap: int = 0
    local_prefill: bool = False
    knowledge: Knowledge | None = None
    speculation: Speculation | None = None
    host_memory: HostMemory | None = None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value out of range, with the valid ones.
        """
        check_capacity(self.kv_capacity)
        check_model(self.batch_time)
        check_one_of(self.first_token, "first_token", tuple(FIRST_TOKEN))
        check_one_of(self.progress_on_evict, "progress_on_evict", tuple(PROGRESS_ON_EVICT))
        check_one_of(self.requeue, "requeue", tuple(REQUEUE))
        check_one_of(self.output_kv, "output_kv", tuple(OUTPUT_KV))
        check_one_of(self.sessions, "sessions", tuple(SESSIONS))
        check_flag(self.local_prefill, "local_prefill")
        check_one_of(self.transfer_link, "transfer_link", tuple(TRANSFER_LINKS))
        whole_number(self.transfer_overlap, "transfer_overlap", "layers, 0 … 10,000", least=0, most=10_000)
        if self.output_kv != "at_once" and self.first_token != "counted":
            raise ConfigError(
                f"output_kv = {self.output_kv} with first_token = {self.first_token}; expected first_token = counted, "
                "as in engines, or output_kv = at_once"
            )
        real_number(
            self.horizon,
            "horizon",
            "seconds > 0, at most 1e15, or inf",
            lambda x: 0 < x <= MAX_TIME or x == np.inf,
        )
        if not isinstance(self.workers, tuple) or not all(isinstance(w, Worker) for w in self.workers):
            raise ConfigError(
                f"workers = {shown(self.workers)}; make clusters with System.cluster or replicate"
            )
        self._check_blocks()
        self._check_cache()
        if self.stall_limit is not None:
            whole_number(self.stall_limit, "stall_limit", "a whole number ≥ 1, or None", most=2**62)
        for name in ("swap_time", "transfer_latency", "transfer_time", "cache_staleness"):
            real_number(getattr(self, name), name, "seconds, 0 … 1e6", lambda x: 0 <= x <= MAX_SECONDS)
        roles = [worker.role for worker in self.workers]
        apart = ["prefill"] * roles.count("prefill") + ["decode"] * roles.count("decode")
        if "mixed" in roles and apart:
            raise ConfigError("a cluster has either mixed workers, or prefill and decode workers")
        smallest = _smallest(self.workers, self.local_prefill) if self.workers else self.kv_capacity
        if self.kv_capacity != smallest:
            raise ConfigError(
                f"kv_capacity = {self.kv_capacity}, but the workers have {smallest}; make clusters "
                "with System.cluster or System.replicate"
            )
        if apart and (roles != apart or len(set(apart)) < 2):
            raise ConfigError(
                f"workers with roles {', '.join(roles)}; expected at least one prefill worker, then at least one "
                "decode worker"
            )
        if self.host_memory is not None:
            self.host_memory.check(self)
        if self.fleet is not None:
            self.fleet.check(self.workers, self.rule.name)
        if self.speculation is not None:
            self.speculation.check(self.batch_time, len(self.workers), self.first_token)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy the attributes, not the values derived from them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _check_blocks(self) -> None:
        size = whole_number(self.block_size, "block_size", "a whole number of tokens ≥ 1")
        smallest = min(worker.kv_capacity for worker in self.all_workers)
        if size > smallest:
            raise ConfigError(
                f"block_size = {size}, but a worker has kv_capacity = {smallest} tokens; expected at most that"
            )

    def _check_cache(self) -> None:
        smallest = min(whole_blocks(worker.kv_capacity, self.block_size) for worker in self.all_workers)
        cache = CacheSettings(self.prefix_cache, self.prefix_block, self.cache_rule, self.cache_staleness)
        check_cache_settings(cache, self.block_size, smallest)

    @classmethod
    def cluster(cls, workers: Iterable[Worker], **rules: Any) -> System:
        """Return a cluster.

        Args:
            workers: its workers, prefill workers first; they may differ in memory and in batch-time model.
            **rules: other attributes.

        Raises:
            ConfigError: no workers, or a value out of range.
        """
        chosen = tuple(itertools.islice(workers, MAX_WORKERS + 1))
        if not 1 <= len(chosen) <= MAX_WORKERS or not all(isinstance(worker, Worker) for worker in chosen):
            raise ConfigError(f"a cluster needs at least one Worker, and takes at most {MAX_WORKERS:,}")
        return cls(
            kv_capacity=_smallest(chosen, bool(rules.get("local_prefill"))),
            batch_time=chosen[0].batch_time,
            workers=chosen,
            **rules,
        )

    def replicate(self, count: int) -> System:
        """Return a cluster of ``count`` workers like this one.

        Raises:
            ConfigError: ``count`` is below 1, or this is a cluster already.
        """
        if self.workers:
            raise ConfigError(f"{len(self.workers)} workers cannot be replicated; expected a system of one")
        number = whole_number(count, "replicas", f"1 … {MAX_WORKERS:,}", most=MAX_WORKERS)
        return replace(self, workers=self.all_workers * number)

    @cached_property
    def all_workers(self) -> tuple[Worker, ...]:
        """The workers; one if the system is not a cluster."""
        return self.workers or (Worker(self.kv_capacity, self.batch_time),)

    @property
    def prefix_unit(self) -> int:
        """Tokens of a unit of the prefix cache; 0 without one."""
        return 0 if self.prefix_cache == "off" else self.prefix_block or self.block_size

    @cached_property
    def rule(self) -> CacheRule:
        """The cache rule, without the values of its options."""
        return parse_rule(self.cache_rule)[0]

    @property
    def caches_late(self) -> bool:
        """Whether routers know changes of prefix caches late."""
        scraped = self.knowledge is not None and self.knowledge.code in (SCRAPED, BOTH)
        return self.cache_staleness > 0 or scraped

    @cached_property
    def num_prefill_workers(self) -> int:
        """Number of workers that only prefill."""
        return sum(worker.role == "prefill" for worker in self.workers)

    @property
    def unwritten_tokens(self) -> int:
        """Output tokens of a decoding request without KV yet: 1 or 0, see ``output_kv``."""
        return int(self.output_kv == "next_iteration")

    @property
    def usable_capacity(self) -> int:
        """KV memory of :attr:`kv_capacity` in whole blocks, tokens: the longest request that can be served."""
        return whole_blocks(self.kv_capacity, self.block_size)

    @cached_property
    def usable_capacities(self) -> NDArray[np.int64]:
        """KV memory of each worker in whole blocks, tokens, int64 (number of workers,), read-only."""
        sizes = [whole_blocks(worker.kv_capacity, self.block_size) for worker in self.all_workers]
        capacities = np.array(sizes, np.int64)
        capacities.setflags(write=False)
        return capacities

    @cached_property
    def rough_figures(self) -> NDArray[np.float64]:
        """Each worker's speed as routers know it, float64 (number of workers, fields of ``RoughFigures``), read-only.

        Raises:
            UserCodeError: a batch-time model from outside kvgym raised an exception.
        """
        found: dict[tuple[int, int], RoughFigures] = {}  # equal workers usually share a model
        rows = []
        for worker, capacity in zip(self.all_workers, self.usable_capacities.tolist(), strict=True):
            key = id(worker.batch_time), capacity
            if key not in found:
                with calling(worker.batch_time, "batch-time model", "it"):
                    found[key] = worker.batch_time.rough_figures(capacity)
            rows.append(found[key])
        figures = np.array(rows, np.float64)
        figures.setflags(write=False)
        return figures

    def follows_turns(self, table: RequestTable) -> bool:
        """Return whether the cache rule observes the turns of sessions.

        Raises:
            WorkloadError: it needs sessions, and the requests have none.
        """
        if self.rule.sessions and table.session_id is None:
            raise WorkloadError(
                f"cache rule {self.rule.name!r} observes the turns of sessions, but the requests have no session_id; "
                "choose a workload with sessions, or the rule lru or fixed"
            )
        return self.rule.code != LRU and table.session_id is not None

    def check_independent(self, what: str) -> None:
        """Check that arrivals do not depend on the schedule, and that every request computes its whole prompt itself.

        Args:
            what: what depends on it, the subject of the message.

        Raises:
            ConfigError: sessions are closed, there is a prefix cache, or decodes make several tokens.
        """
        if self.speculation is not None:
            raise ConfigError(
                f"{what} assumes one token per decode, and does not hold with speculation; set it to off"
            )
        if self.sessions != "open":
            raise ConfigError(
                f"{what} needs the same arrivals for every schedule, and does not hold with sessions = "
                f"{self.sessions}; set it to open"
            )
        if self.prefix_unit:
            raise ConfigError(
                f"{what} assumes that every request computes its whole prompt, and does not hold with prefix_cache = "
                f"{self.prefix_cache}; set it to off"
            )

    def check_fits(self, table: RequestTable) -> None:
        """Check that every request can be served alone on every worker it may go to.

        Raises:
            WorkloadError: the KV of a request at its last token exceeds the capacity in whole blocks.
        """
        drafts = 0 if self.speculation is None else self.speculation.memory
        for worker, usable in zip(self.all_workers, self.usable_capacities.tolist(), strict=True):
            whole = self.local_prefill or worker.role != "prefill"
            output_len = table.output_len if whole else np.minimum(table.output_len, 1)
            output_len = output_len - self.unwritten_tokens + drafts
            peak = table.prompt_len + output_len
            if peak.max(initial=0) > usable:
                too_long, i = peak > usable, int(np.argmax(peak))
                blocks = f" in blocks of {self.block_size}" if self.block_size > 1 else ""
                raise WorkloadError(
                    f"{int(too_long.sum())} of {len(table)} requests can never be served: prompt + output exceeds "
                    f"kv_capacity = {usable} tokens{blocks} (longest: request {i}, {table.prompt_len[i]} + "
                    f"{output_len[i]} = {peak[i]}). Drop or clip them (too_long: drop, --set too_long=drop; "
                    "kvgym server validate --drop-long), or choose hardware with more memory."
                )

    @cached_property
    def _settings(self) -> np.ndarray[Any, Any]:
        """The settings in the simulator's layout, dtype PROBLEM, shape (number of workers,), without those of a run."""
        problem = np.zeros(len(self.all_workers), PROBLEM)
        p = problem[0]
        p["block_size"], p["prefix_unit"] = self.block_size, self.prefix_unit
        if self.speculation is not None:
            p["drafts"], p["lookahead"] = self.speculation.depth, self.speculation.reserved
        p["prefix_in_order"] = self.prefix_cache == "scheduled"
        p["prefix_tree"] = self.prefix_cache == "radix"
        rule, options = parse_rule(self.cache_rule)
        p["cache_rule"] = rule.code
        p["rule_params"][: len(options)] = options
        p["prefill_emits"], p["ttft_at_prefill"] = FIRST_TOKEN[self.first_token]
        p["prefill_writes"] = p["prefill_emits"] - self.unwritten_tokens
        p["progress_on_evict"] = PROGRESS_ON_EVICT[self.progress_on_evict]
        p["requeue"] = REQUEUE[self.requeue]
        p["effort_limit"] = np.iinfo(np.int64).max
        p["horizon"], p["swap_time"] = self.horizon, self.swap_time
        p["api_time"] = max(worker.batch_time.api_time for worker in self.all_workers)
        p["transfer_latency"], p["transfer_time"] = self.transfer_latency, self.transfer_time
        p["cache_staleness"] = self.cache_staleness
        problem[1:] = p
        problem["kv_capacity"] = self.usable_capacities
        problem["hands_over"] = [
            worker.role == "prefill" and not self.local_prefill for worker in self.all_workers
        ]
        return problem

    def to_record(self, table: RequestTable, needs: frozenset[str], log: bool) -> np.ndarray[Any, Any]:
        """Return the settings of a run in the simulator's layout, dtype PROBLEM, shape (number of workers,)."""
        settings = self._settings
        problem: np.ndarray[Any, Any] = np.ndarray(settings.shape, PROBLEM, words(settings).copy())
        longest = int((table.prompt_len + table.output_len).max()) if len(table) else 0
        problem["num_requests"] = len(table)
        problem["stall_limit"] = self.stall_limit or 10_000 + 20 * longest
        if self.stall_limit is None and self.horizon == np.inf:
            weight = 1_000 + longest
            limit = max(LEAST_EFFORT, weight * max(10_000, 10 * len(table)))
            problem["effort_weight"], problem["effort_limit"] = weight, limit
            problem["idle_weight"] = limit // max(10_000, LEAST_EFFORT // weight)
        problem["keep_log"] = log
        for field, need in REVEALED.items():
            problem[field] = need in needs
        if table.forecasts is not None and "renewed_length" in needs:
            problem["renew_every"] = table.forecasts.every
        return problem
