"""The scheduler of vLLM's V1 engine: one token budget, running requests first, prompts in chunks, preemption.

Sources: the engine's pages on optimization and tuning and on scheduler configuration (docs.vllm.ai, V1 engine), and
releases 0.24.0 and 0.33.0 of vllm-project/vllm: ``vllm/v1/core/sched/scheduler.py``,
``vllm/v1/core/kv_cache_manager.py``, ``vllm/config/scheduler.py``. Hyperparameters have the engine's names and
meanings.
``scripts/conformance`` compares this policy with the scheduler of a release, batch by batch; see docs/conformance.md.

The scheduler does not distinguish prefills and decodes: every request has prompt or output tokens to compute. Every
iteration follows these rules:

- Running requests come first, in order of activation. Each gets the tokens that it lacks, limited by
  ``long_prefill_token_threshold`` (if set) and by the rest of the budget ``max_num_batched_tokens``. Requests that
  find the budget spent keep their KV and skip the iteration.
- If the tokens of a running request do not fit into memory, it preempts others until they fit: the newest or, with
  priorities, the least urgent, and of equal ones the latest arrived; or as ``preemption_victim`` says. Later requests
  may use the tokens that a preempted request was given in this iteration. If a request preempts itself, those after it
  also skip the iteration; in release 0.33 with priorities, they go on.
- Only if no request was preempted, waiting requests start, in order of the queue or of priority, while the budget,
  ``max_num_seqs`` places and memory last. The first that does not fit ends admission. A request then takes only the
  memory of its first chunk, but all its tokens to compute must fit (``scheduler_reserve_full_isl``). Next to other
  running requests, the ``watermark`` must stay free.

Release 0.33 differs from 0.24 in four points. A request that is alone, running or waiting, ignores
``long_prefill_token_threshold``. With ``long_prefill_token_threshold_adaptive``, that threshold is at least the budget
divided by the number of requests. ``max_num_active_seqs`` limits running requests in place of ``max_num_seqs``, which
then only sizes buffers. With ``prefill_schedule_interval`` = N, iterations process no prompt until N have passed since
the last that did, unless all running requests are prompts, or a waiting request was left over when prompts were last
allowed.

With ``async_scheduling``, the engine decides a batch when the one before it starts. It knows what that batch will do,
but a request that finishes with it holds its place and its memory in the decision, and can be preempted; requests that
arrive while it runs wait for the next decision. If nothing can run then, the engine decides again when the batch ends:
a step without tokens takes no time. Blocks that the output of that batch fills enter the prefix cache one step later,
when their tokens are known.

A preempted request loses its KV, keeps its output tokens and returns to the front of the queue, or to its place by
priority. In kvgym these are settings of the system: ``first_token="counted"``, ``progress_on_evict="recompute"`` and
``requeue="front"`` reproduce the engine, as in scenario ``vllm-v1``. The order by priority is this policy's own and
applies under any ``requeue``.

Priority: in vLLM lower values come first; in kvgym larger values of the column ``priority`` are more important. The
policy follows kvgym's column, the negative of vLLM's value. Ties go by arrival. Of requests that also arrived together,
the one with the smallest id starts first, and the one that has run longest is preempted first.

Deviations and readings:

- By default, the system writes the KV of an output token with the batch that generates it; the engine writes it with
  the next batch. So every request takes one more token of memory, one iteration earlier. The same applies to the memory
  that must fit at a start. ``output_kv="next_iteration"`` of the system is the engine's way.
- If the first running request preempts itself in release 0.24, the engine runs an empty step, which takes almost no
  time, and decides again. Here both steps are one decision, so a request preempted in the first cannot start in the
  second. In the engine that can happen without ``scheduler_reserve_full_isl``, or after two such steps in a row.
- A request without a prompt left (handed over by a prefill worker, or swapped out and back) needs one token.
- The engine counts one block more than requests can use, its null block; the watermark is a share of all of them.
- With ``prefix_cache="scheduled"`` of the system, requests find what the engine's find, those that start together
  included. With ``"computed"`` units enter the cache at the end of a batch.
- With priorities, the engine leaves in its cache what it scheduled for a request that it preempts in the same step,
  though it is never computed. Here that is so with ``async_scheduling``; otherwise such a request gives up only what
  it had.
- With ``async_scheduling``, all of that needs ``prefix_cache="scheduled"``; with ``"computed"`` units enter the cache
  at the end of a batch, and those of requests that have just finished count as free.
- With speculation, drafts count as tokens in the budget and in memory. The engine pads a start that lacks one token
  to as many tokens as decodes with drafts have; here it gets one. Asynchronous scheduling excludes drafts.
- Left out: encoders, adapters, pipeline parallelism, KV connectors.
  ``max_num_partial_prefills`` and ``max_long_partial_prefills`` of release 0.24 are not read by its scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvgym.baselines.iteration_level import VLLM_RULES
from kvgym.baselines.vllm_decisions import (
    LAST_PREFILL,
    NUM_COUNTERS,
    state_size,
    vllm_v1_kernel,
)
from kvgym.baselines.vllm_releases import (
    RELEASES,
    USUAL,
    VICTIMS,
    Settings,
    check_active,
    check_budget,
    engine_defaults,
    release_of,
)
from kvgym.errors import ConfigError, shown
from kvgym.kernels import PolicyMemory, policy_memory
from kvgym.policies.hyperparameters import (
    AUTO,
    choice,
    flag,
    fraction,
    parsed,
    whole,
)
from kvgym.policies.policy import CompiledPolicy, PolicyInfo, SystemInfo, register_policy
from kvgym.simulator.view import SystemView


@register_policy
class VLLMV1(CompiledPolicy):
    """vLLM's V1 engine: a token budget for running and then waiting requests, preemption by recomputation."""

    info = PolicyInfo(
        name="vllm_v1",
        summary="running requests first, then waiting ones, within one token budget; preempts the newest",
        paper="vLLM project, documentation and source of the V1 engine (docs.vllm.ai)",
        algorithm="scheduler",
        chunks_prefill=True,
        pauses=True,
        evicts=True,
        rules=VLLM_RULES,
        auto=(
            *zip(("max_num_batched_tokens", "max_num_seqs"), USUAL, strict=True),
            ("engine_version", RELEASES[0]),
            ("async_scheduling", False),
        ),
        budget="max_num_batched_tokens",
        drafts=True,
        loads=True,
    )
    kernel = vllm_v1_kernel

    parameters = Settings

    max_num_batched_tokens: int | str = whole(
        AUTO, expected=f"a whole number ≥ 1, or {AUTO}", search=(512, 1024, 2048, 4096, 8192)
    )
    """tokens per iteration; a decode is one. ``"auto"``: the engine's default for the GPU as an API server: 16,384 from
    160 GiB of memory on, 8,192 from 70 GiB on except on an A100, and 2,048 otherwise, also on unknown hardware."""
    max_num_seqs: int | str = whole(AUTO, expected=f"a whole number ≥ 1, or {AUTO}", search=(128, 256, 512))
    """maximum number of running requests. ``"auto"``: the engine's default by the same table (1,024, 1,024 and 256), at
    most ``max_num_batched_tokens``."""
    long_prefill_token_threshold: int = whole(0, least=0, search=(0, 512))
    """maximum tokens of one prompt in an iteration; 0 = no limit."""
    policy: str = choice("fcfs", ("fcfs", "priority"))
    """``"fcfs"``, or ``"priority"``: by priority, then by arrival, waiting requests start and running ones are
    preempted."""
    enable_chunked_prefill: bool = flag(True)
    """whether a prompt may start with a part that fits into the remaining budget. If not, it waits until the budget
    holds all of it (or all up to ``long_prefill_token_threshold``). A prompt longer than the whole budget never starts:
    the engine refuses models with a longer context; here the run ends with an error that names the request."""
    scheduler_reserve_full_isl: bool = flag(True)
    """whether a request starts only if all its tokens to compute fit into memory, not just its first chunk."""
    watermark: float = fraction(0.0, search=(0.0, 0.02, 0.05, 0.1))
    """fraction of the memory that stays free when a request starts with others, in [0, 1)."""
    engine_version: str = parsed(AUTO, release_of)
    """release of the engine, ``"0.24"`` or ``"0.33"``. ``"auto"``: 0.33 if the GPU is known or one of the next three
    options is used; otherwise 0.24, as for the batch times of papers. Results name the release where it matters."""
    max_num_active_seqs: int | None = whole(None)
    """maximum number of running requests, at most ``max_num_seqs``; None = ``max_num_seqs``."""
    prefill_schedule_interval: int = whole(1)
    """iterations from one that processes prompts to the next, if requests decode."""
    long_prefill_token_threshold_adaptive: bool = flag(False)
    """whether ``long_prefill_token_threshold`` is at least ``max_num_batched_tokens`` divided by the number of requests
    that run or wait."""
    async_scheduling: bool | str = flag(AUTO)
    """whether a batch is decided when the one before it starts, as servers do by default to hide the scheduler's time;
    ``"auto"``: as the engine of the hardware does, which headings name."""
    preemption_victim: str = choice("latest", VICTIMS)
    """which request is preempted (among the least urgent ones, with priorities): ``"latest"``, as in the engine;
    ``"least_computed"``, the one with the fewest computed tokens; ``"cheapest"`` to repeat: without those tokens that
    other requests hold in the prefix cache. Of equal ones the newest."""

    def __post_init__(self) -> None:
        """Raise a ConfigError if the release lacks an option, or the limits contradict each other as in the engine."""
        check_budget(self.max_num_batched_tokens, self.max_num_seqs)
        check_active(self.max_num_active_seqs, self.max_num_seqs)
        if self.engine_version == "0.24" and (newer := self._newer_options()):
            raise ConfigError(
                f"engine_version = 0.24 has no {newer[0]} = {shown(getattr(self, newer[0]))}; use engine_version = 0.33"
            )

    def _newer_options(self) -> list[str]:
        """Return the options in use that release 0.24 does not have."""
        usual = {"max_num_active_seqs": None, "prefill_schedule_interval": 1}
        usual |= {"long_prefill_token_threshold_adaptive": False}
        return [name for name, value in usual.items() if getattr(self, name) != value]

    def _release_on(self, system: SystemInfo) -> str:
        """Return the release on a system, see ``engine_version``."""
        if self.engine_version != AUTO:
            return self.engine_version
        newest = system.batch_time.device is not None or self._newer_options()
        return RELEASES[-1] if newest else RELEASES[0]

    def _ahead(self, system: SystemInfo) -> bool:
        """Return whether scheduling is asynchronous on a system, see ``async_scheduling``."""
        given = self.async_scheduling
        if system.drafts and given is True:
            raise ConfigError(
                "vllm_v1: async_scheduling = True with speculation is not modelled; set it to false or auto"
            )
        usual = system.batch_time.asynchronous and system.drafts == 0
        return usual if isinstance(given, str) else given

    def resolve(self, system: SystemInfo) -> dict[str, Any]:
        """Return the budget and the number of running requests that the engine chooses for the GPU, unless given.

        The release is among them if it matters: by default both releases decide alike.

        Raises:
            ConfigError: the engine's budget is below the given ``max_num_seqs``.
        """
        release = self.engine_version if self.engine_version != AUTO else RELEASES[-1]
        budget, seqs = engine_defaults(system.batch_time.device, release)
        found: dict[str, Any] = {}
        if self.max_num_batched_tokens == AUTO:
            found["max_num_batched_tokens"] = budget
            check_budget(budget, self.max_num_seqs)
        else:
            budget = int(self.max_num_batched_tokens)
        if self.max_num_seqs == AUTO:
            found["max_num_seqs"] = min(seqs, budget)
            check_active(self.max_num_active_seqs, found["max_num_seqs"])
        matters = self.policy == "priority" or self.long_prefill_token_threshold > 0 or self._newer_options()
        if self.engine_version == AUTO and matters:
            found["engine_version"] = self._release_on(system)
        return found

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the hyperparameters, with the watermark in tokens of whole blocks, rounded down like the engine's."""
        blocks = int(self.watermark * (system.kv_capacity // system.block_size + 1))  # with the null block
        limits: dict[str, Any] = {
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
        }
        limits |= self.resolve(system)
        return {
            "max_tokens": limits["max_num_batched_tokens"],
            "max_seqs": self.max_num_active_seqs or limits["max_num_seqs"],
            "threshold": self.long_prefill_token_threshold,
            "by_priority": self.policy == "priority",
            "chunked": self.enable_chunked_prefill,
            "whole_input": self.scheduler_reserve_full_isl,
            "watermark": blocks * system.block_size,
            "newer": self._release_on(system) != RELEASES[0],
            "adaptive": self.long_prefill_token_threshold_adaptive,
            "interval": self.prefill_schedule_interval,
            "ahead": self._ahead(system),
            "api_time": system.batch_time.api_time,
            "victim": VICTIMS.index(self.preemption_victim),
        }

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the heap of waiting requests and the counters, and what asynchronous scheduling remembers."""
        state = np.zeros(state_size(system.max_requests, self._ahead(system)))
        state[
            LAST_PREFILL - NUM_COUNTERS
        ] = -self.prefill_schedule_interval  # the first iteration may process prompts
        return policy_memory(self.params(system), state=state)

    def blocking(self, view: SystemView) -> int | None:
        """Return the first waiting request in the policy's order, which no other may pass."""
        waiting = view.waiting
        if len(waiting) == 0:
            return None
        if self.policy == "fcfs":
            return int(waiting.request_id[0])
        return int(
            waiting.request_id[np.lexsort((waiting.request_id, -waiting.priority.astype(np.int64)))[0]]
        )
