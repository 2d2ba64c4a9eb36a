"""The part of the scheduler that is kvgym's: a mixin over a scheduler class of vLLM.

vLLM's own ``schedule()`` does all bookkeeping. Before it is called, the mixin preempts the requests that the policy
evicts, replaces the waiting queue by the requests that it admits, and limits the tokens of those that run in part; what
vLLM keeps free for its own rule is lifted for that call. Whatever fails, vLLM's own rule decides that step, and the
tables that the policy sees are built again from vLLM's state. A policy that starts nothing for too long loses the
requests that it keeps waiting to vLLM's own rule.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from kvgym.errors import ConfigError, LivelockError, cut, printable, shown
from kvgym.integrations.vllm.mirror import Mirror, Place, Plan
from kvgym.integrations.vllm.settings import PREDICTIONS, RowReader, choose_policy, read_settings
from kvgym.simulator.tables import RUN, WAIT

logger = logging.getLogger("vllm.kvgym")
"""A logger below vLLM's own, so that its messages go where vLLM's go."""

LEAST_ROWS = 1 << 14
"""Requests that the tables hold at least, finished ones included; when they are full, they are built again."""

OPTIONS = (
    ("speculative_config", "speculative decoding"),
    ("kv_transfer_config", "KV connectors"),
    ("ec_transfer_config", "encoder connectors"),
)
"""Parts of vLLM's configuration that must be off, with their names in messages."""


def check_configuration(vllm_config: Any, kv_cache_config: Any) -> None:
    """Check that kvgym's policies can decide in an engine with this configuration.

    Raises:
        ConfigError: what does not fit.
    """
    scheduler, model = vllm_config.scheduler_config, vllm_config.model_config
    found = [name for field, name in OPTIONS if getattr(vllm_config, field) is not None]
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        found.append("pipeline parallelism")
    if model.is_encoder_decoder or model.is_diffusion or model.runner_type != "generate":
        found.append("models that do not generate token by token")
    if kv_cache_config.has_mamba_layers:
        found.append("Mamba layers")
    if scheduler.long_prefill_token_threshold:
        found.append("long_prefill_token_threshold (here a hyperparameter of vllm_v1)")
    if scheduler.prefill_schedule_interval != 1:
        found.append("prefill_schedule_interval (here a hyperparameter of vllm_v1)")
    if found:
        raise ConfigError(f"kvgym's scheduler does not support {', '.join(found)}; start vLLM without")


def block_size_of(manager: Any) -> int:
    """Return the tokens of a block of vLLM's KV cache manager.

    Raises:
        ConfigError: groups of layers have blocks of different sizes.
    """
    sizes = sorted({part.block_size for part in manager.coordinator.single_type_managers})
    if len(sizes) != 1:
        raise ConfigError(f"kvgym's scheduler needs blocks of one size in all layers, got {sizes} tokens")
    return int(sizes[0])


class Deciding:
    """A mixin: derive from it and from a scheduler class of vLLM, in that order.

    Attributes:
        queue_class: vLLM's queue in order of arrival.
        now: returns the time, seconds; it never goes back.
        wall: returns the time on the clock of vLLM's arrival times, seconds; it may be set.
        decisions: number of steps that the policy has decided.
        own_rule: number of times that vLLM's own rule has decided because the policy could not, by reason.
        wrong_fields: number of requests with a wrong value, by field.
        resting_until: time until which the policy has decided to run no batch; -inf = it has not.
        rest_ends_early: whether an arrival ends that rest.
    """

    queue_class: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        it: Any = self
        config = it.vllm_config
        check_configuration(config, it.kv_cache_config)
        settings = read_settings(config.additional_config)
        self._policy, self._needs = choose_policy(settings)
        size = block_size_of(it.kv_cache_manager)
        blocks = it.kv_cache_manager.block_pool.num_gpu_blocks - 1  # one is the null block
        self._place = Place(
            kv_capacity=blocks // len(it.kv_cache_config.kv_cache_groups) * size,
            block_size=size,
            max_running=it.max_num_active_reqs,
            token_budget=it.max_num_scheduled_tokens,
            chunks=bool(it.scheduler_config.enable_chunked_prefill),
            batch_time=settings.make_batch_time(),
            max_len=it.max_model_len,
            classes=settings.class_statistics(),
            underestimates=frozenset() if settings.upper_bounds else PREDICTIONS,
            seed=settings.seed_sequence(),
        )
        self._reader = RowReader(
            settings, self._policy.info.needs, self._needs, it.max_model_len,
            settings.trust_requests or it.scheduler_config.policy == "priority", self._note_wrong_field,
        )  # fmt: skip
        self.now: Callable[[], float] = time.monotonic
        self.wall: Callable[[], float] = time.time
        self.decisions, self.own_rule, self.wrong_fields = 0, Counter[str](), Counter[str]()
        self.resting_until, self.rest_ends_early = -math.inf, False
        self._origin = self.now()
        self._patience = self._usual_patience = settings.patience
        self._idle_since: float | None = None  # first step without progress since the last one with it
        self._evicted = False  # whether the policy has evicted requests since the last output token
        self._stale = False  # whether the tables must be built again
        self._arrivals: dict[str, float] = {}  # of the requests in the server, on the clock of now
        self._arrived: dict[str, Any] = {}  # not yet in the tables
        self._gone: list[tuple[int, bool]] = []  # rows that have ended since then, and whether aborted
        self._foreign: set[str] = set()  # requests that vLLM's own rule serves
        self._ends: deque[float | None] = deque()  # predicted ends of the batches under way
        self._limits: dict[str, int] = {}
        self._build()
        logger.info(
            "kvgym: policy %s decides; KV memory of %d tokens in blocks of %d, at most %d running requests",
            settings.policy, self._place.kv_capacity, size, self._place.max_running,
        )  # fmt: skip

    # ------------------------------------------------------------ what vLLM calls

    def add_request(self, request: Any) -> None:
        """Add a request, which the policy sees from the next step on."""
        it: Any = self
        known = request.request_id in it.requests
        super().add_request(request)  # type: ignore[misc]
        if not known:
            name = request.request_id
            if request.resumable or request.mm_features or request.pooling_params is not None:
                self._foreign.add(name)
            self._arrivals[name] = request.arrival_time + (self.now() - self.wall())
            self._arrived[name] = request

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Note when the batch ended, and process its output."""
        if scheduler_output.total_num_scheduled_tokens > 0 and self._ends:
            predicted = self._ends.popleft()
            if predicted is not None:
                late = self._time() - predicted
                self._mirror.correct_end(late)
                self._ends = deque(end if end is None else end + late for end in self._ends)
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Note that a request has ended, and free it."""
        name = request.request_id
        self._foreign.discard(name)
        self._arrivals.pop(name, None)
        self._arrived.pop(name, None)
        row = self._rows.pop(name, None)
        if row is not None:
            self._known[row] = None
            self._gone.append((row, request.status.name == "FINISHED_ABORTED"))
            if request in self._order:
                self._order.remove(request)
        if not self._rows:
            self._idle_since = None
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Carry out the policy's decision; if there is none, let vLLM's own rule decide."""
        plan = self._decide()
        if plan is None:
            self._stale = True
            output = super().schedule(throttle_prefills)  # type: ignore[misc]
        else:
            output = self._carry_out(plan, throttle_prefills)
        if output.total_num_scheduled_tokens > 0:
            self._ends.append(None if self._stale else self._mirror.batch_end)
            if plan is not None:
                self._patience = self._usual_patience
        if self._advances(output) or not self._rows:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self.now()
        return output

    def _advances(self, output: Any) -> bool:
        """Return whether a batch is under way that brings requests further than they have been.

        After an eviction, which loses computed tokens, only one with an output token is sure to.
        """
        it: Any = self
        names = output.num_scheduled_tokens
        if self._evicted and any(not it.requests[name].is_prefill_chunk for name in names):
            self._evicted = False
        return bool(self._ends) and not self._evicted

    # ------------------------------------------------------------ the decision

    def _time(self) -> float:
        return self.now() - self._origin

    def _decide(self) -> Plan | None:
        """Return the policy's decision, which the tables then contain; None if there is none."""
        it: Any = self
        if self._foreign or it._pause_state.name != "UNPAUSED":
            self._idle_since, self._evicted = None, False
            return None
        idle = -1.0 if self._idle_since is None else self.now() - self._idle_since
        in_vain = self._stale  # the last decision could not be carried out
        try:
            if not self._update() and self.now() < self.resting_until:
                plan = Plan(RUN, [], [], [], dict.fromkeys(self._mirror.running.tolist(), 0), 0, 0)
            else:
                plan = self._ask()
        except LivelockError as error:
            self._overrule(type(error).__name__, str(error))
            return None
        except Exception as error:  # whatever a policy does, the server goes on
            self._failed(type(error).__name__, str(error))
            return None
        if idle >= self._patience and (in_vain or plan.evict or not plan.tokens):
            self._overrule("NoProgress", f"no request advanced for {idle:.1f} s")
            return None
        return plan

    def _ask(self) -> Plan:
        """Let the policy decide, and execute the decision in the tables."""
        mirror = self._mirror
        plan = mirror.decide()
        self.rest_ends_early = plan.act == WAIT
        mirror.apply(plan)
        self.decisions += 1
        self.resting_until = self._origin + mirror.clock if plan.tokens == 0 else -math.inf
        return plan

    def _overrule(self, reason: str, text: str) -> None:
        """Leave the requests in the server to vLLM's own rule, as the policy makes no progress with them.

        Until it has run a batch again, others do not wait for it either.
        """
        it: Any = self
        self._patience = 0.0
        self._foreign.update(it.requests)
        self._failed(reason, text, "decides until these requests have left")

    def _failed(self, reason: str, text: str, consequence: str = "decides this step") -> None:
        """Count what the policy could not decide, and log it."""
        self._stale = True
        self._warn(self.own_rule, reason, f"{reason}: {text}", f"vLLM's own rule {consequence}")

    def _note_wrong_field(self, field: str, request: Any, error: Exception) -> None:
        """Count a request with a wrong value, and log it."""
        text = f"request {shown(request.request_id)}: {type(error).__name__}: {error}"
        self._warn(self.wrong_fields, field, text, f"it counts as one without {field}")

    def _warn(self, counts: Counter[str], kind: str, text: str, consequence: str) -> None:
        """Count an event; log the first, the tenth, the hundredth … of a kind, each in one line."""
        counts[kind] += 1
        count = counts[kind]
        if count == 10 ** (len(str(count)) - 1):
            often = "" if count == 1 else f" ({count} times so far)"
            line = " ".join(printable(text).split())  # the text may be of users, and must not forge lines
            logger.warning("kvgym: %s; %s%s", cut(line, 300), consequence, often)

    def _update(self) -> bool:
        """Bring the tables up to date; return whether requests have come or gone."""
        it: Any = self
        mirror, changed = self._mirror, bool(self._gone)
        if not self._stale:
            for row, aborted in self._gone:
                mirror.end(row, aborted)
        self._gone.clear()
        fresh = [r for r in self._arrived.values() if not self._is_blocked(r)]
        for request in fresh:
            del self._arrived[request.request_id]
        if self._stale or it.running != self._order or mirror.used + len(fresh) > len(mirror.requests):
            self._build()
            changed, fresh = True, []
            mirror = self._mirror
        now = self._time()
        for request in fresh:
            self._enter(mirror, request, now)
        late = mirror.batch_end if self._ends else now
        mirror.set_clock(max(now, late))
        if fresh:
            mirror.show_arrivals()
        return changed or bool(fresh)

    def _is_blocked(self, request: Any) -> bool:
        """Return whether a waiting request waits for something else than a decision, such as its grammar."""
        it: Any = self
        blocked = it._is_blocked_waiting_status(request.status)
        return blocked and not it._handle_blocked_waiting_request(request)

    def _enter(self, mirror: Mirror, request: Any, now: float) -> None:
        """Add a request to the tables."""
        reader, name = self._reader, request.request_id
        arrival = min(max(0.0, self._arrivals[name] - self._origin), now)
        self._rows[name] = mirror.arrive(reader.limit(request), arrival_time=arrival, **reader.row(request))
        self._known.append(request)

    def _build(self) -> None:
        """Build the tables from vLLM's state."""
        it: Any = self
        waiting = [r for r in it.waiting if not it._is_blocked_waiting_status(r.status)]
        requests = sorted([*it.running, *waiting], key=lambda r: self._arrivals[r.request_id])
        self._known: list[Any] = []  # requests by row, None for those that have ended
        self._rows: dict[str, int] = {}  # and rows by request
        mirror = Mirror(self._place, self._policy, self._needs, max(LEAST_ROWS, 4 * len(requests)))
        now = self._time()
        mirror.set_clock(now)
        for request in requests:
            self._enter(mirror, request, now)
        mirror.restore(
            [
                (
                    self._rows[r.request_id],
                    r.num_computed_tokens,
                    r.num_output_tokens + r.num_output_placeholders,
                    r.is_prefill_chunk,
                )
                for r in it.running
            ],
            [(self._rows[r.request_id], r.num_output_tokens) for r in waiting],
            now,
        )
        self._ends = deque(None for _ in self._ends)
        self._order, self._mirror, self._stale = list(it.running), mirror, False

    # ------------------------------------------------------------ carrying it out

    def _carry_out(self, plan: Plan, throttle_prefills: bool) -> Any:
        """Let vLLM schedule what the policy has decided."""
        it: Any = self
        admitted = [self._known[i] for i in plan.admit]
        evicted = [self._order[k] for k in plan.evict]
        if evicted:
            self._evicted = True
            leaving = set(evicted)
            it.running = [r for r in it.running if r not in leaving]
            now = time.monotonic()
            for request in evicted:
                it._preempt_request(request, now, drop_stale_output=it.requires_kv_delivery)
        if evicted or admitted:
            self._order = [*it.running, *admitted]
        queue, manager = it.waiting, it.kv_cache_manager
        lifted = it.scheduler_reserve_full_isl, manager.watermark_blocks
        it.scheduler_reserve_full_isl, manager.watermark_blocks = False, 0
        it.waiting = chosen = self.queue_class(admitted)
        if plan.limits:
            self._limits = {self._known[i].request_id: tokens for i, tokens in plan.limits.items()}
            self._reserve = super()._reserve_prefill_lookahead  # type: ignore[misc]
            it._reserve_prefill_lookahead = self._limit_tokens
        try:
            output = super().schedule(throttle_prefills)  # type: ignore[misc]
        finally:
            it.waiting = queue
            it.scheduler_reserve_full_isl, manager.watermark_blocks = lifted
            if plan.limits:
                del it._reserve_prefill_lookahead
            left = list(chosen)
            for request in admitted:
                if request not in left:
                    queue.remove_request(request)
            for request in left:
                if request not in admitted:  # vLLM has preempted it
                    queue.prepend_request(request)
        self._compare(plan, admitted, output)
        return output

    def _limit_tokens(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Limit the tokens of a request to those that the policy has decided.

        In place of ``_reserve_prefill_lookahead``, by which vLLM shortens what it has chosen for a request; with 0 the
        request is left out.
        """
        allowed: int = self._reserve(request, num_computed_tokens, num_new_tokens)
        return min(allowed, self._limits.get(request.request_id, allowed))

    def _compare(self, plan: Plan, admitted: list[Any], output: Any) -> None:
        """Compare what vLLM has scheduled with the plan; a hit in its prefix cache may shorten a prompt."""
        scheduled, expected = output.num_scheduled_tokens, plan.tokens
        if admitted:
            mirror, first = self._mirror, len(self._order) - len(admitted)
            for k, request in enumerate(admitted, first):
                done = int(mirror.active["num_kv_tokens"][0, k])
                tokens = scheduled.get(request.request_id, 0)
                expected -= done - tokens
                if tokens and request.num_computed_tokens != done:
                    mirror.correct_progress(k, request.num_computed_tokens, request.num_tokens)
        if len(scheduled) != plan.members or output.total_num_scheduled_tokens != expected:
            self._failed(
                "OtherSchedule",
                f"the policy decided {plan.members} requests and {plan.tokens} tokens, vLLM could schedule "
                f"{len(scheduled)} and {output.total_num_scheduled_tokens}",
            )
