"""``keep``: how long the KV of a finished request stays in the prefix cache; Discrete(2 + number of ``lifetimes``).

The agent is asked at every finished request, one after the other, and at no other time. Action 0 keeps nothing: its KV
stays until others need the memory, like the KV of every request without a pin. Action k keeps it for the k-th of the
``lifetimes``: until then other KV is dropped before it. The last action sets no such time. Kept KV takes no memory from
requests, see :mod:`kvgym.simulator.prefix.pins`. The scheduler below decides everything else; if nothing is kept,
its schedule equals the one of :func:`kvgym.simulate`, bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit_inline
from kvgym.compiling.places import places
from kvgym.envs.scheduling.actions.below import WithScheduler, decide
from kvgym.envs.scheduling.actions.kind import (
    COMPLETE,
    MORE,
    ActionConfig,
    ActionPart,
    apply_kernel,
    asks_kernel,
    boundary_kernel,
    mask_kernel,
)
from kvgym.envs.scheduling.components import ObservationPart, observation_kernel
from kvgym.envs.scheduling.opening import open_environment, open_view
from kvgym.envs.scheduling.revealed import saturate
from kvgym.envs.scheduling.tables import Env, Features
from kvgym.errors import ConfigError, shown
from kvgym.simulator.batch_time import clear_load
from kvgym.simulator.boundary import cache_of
from kvgym.simulator.prefix.pins import begin_pin
from kvgym.simulator.prefix.returns import gap_after, kind_of
from kvgym.simulator.tables import UNKNOWN

MOST_LIFETIMES = 14
"""Upper limit of finite times to live."""

ASKED_FEATURES: Features = (
    ("present", "1 if a request has finished that the action is for"),
    ("kv", "memory of its KV in the prefix cache / capacity"),
    ("reload", "time to compute that KV again in a batch of its own (scale: time_scale)"),
    ("pins", "finished requests with KV that is kept (scale: 16)"),
    ("latency", "time from its arrival to its end (scale: time_scale)"),
    ("class", "class + 1 (scale: 4); 0 where it has none, or classes are not revealed"),
    ("turn", "number of its turn in its session (scale: 8)"),
    ("age", "time since the first turn of its session arrived (scale: 10 time_scale)"),
    ("tool", "1 if it waits for a tool, 0 if for a person or for nothing"),
    ("mean_gap", "mean of the gaps after turns of this kind so far (scale: time_scale)"),
    ("returns", "share of the turns of this kind so far that a next turn has followed"),
    ("follows", "1 if a next turn follows; 0 unless true lengths are revealed, like the next"),
    ("gap", "true time until it arrives (scale: time_scale)"),
)
"""Features of the request in question (key ``asked``)."""
_ASKED = places(ASKED_FEATURES)

# The kind's notes: number of finished requests that have been asked about at this boundary.
ASKED = 0


@jit_inline
def asked_request(e: Env) -> int:
    """Return the finished request that the agent is asked about next, UNKNOWN if there is none."""
    asked = int(e.notes[ASKED])
    return int(e.run.finished[asked]) if asked < e.run.w.num_finished else UNKNOWN


@boundary_kernel
def ask_first(where: Any) -> None:
    """Begin with the first request that has finished."""
    open_environment(where).notes[ASKED] = 0.0


@asks_kernel
def asks(where: Any) -> int:
    """Whether a request has finished that has not been asked about."""
    return 1 if asked_request(open_environment(where)) != UNKNOWN else 0


@mask_kernel
def write_mask(where: Any, mask: Any) -> None:
    """Allow every time to live for the request in question; without one, only action 0."""
    asked = asked_request(open_environment(where)) != UNKNOWN
    for k in range(mask.shape[0]):
        mask[k] = 1 if asked or k == 0 else 0


@apply_kernel
def apply(where: Any, action: Any) -> int:
    """Pin the units of the request in question; after the last question the scheduler decides."""
    e = open_environment(where)
    run, i = e.run, asked_request(e)
    if i != UNKNOWN:
        seconds = e.settings.options[int(action[0])]
        if seconds > 0.0 and run.problem.prefix_unit > 0:
            begin_pin(cache_of(run), i, run.w.clock + seconds)
        e.notes[ASKED] += 1.0
        if asked_request(e) != UNKNOWN:
            return MORE
    decide(e, where)
    return COMPLETE


@observation_kernel
def write_asked(where: Any, out: Any) -> None:
    """Write what is known of the request in question."""
    e = open_environment(where)
    s, run, i = e.settings, e.run, asked_request(e)
    for k in range(out.shape[0]):
        out[k] = np.float32(0.0)
    if i == UNKNOWN:
        return
    r, scale = run.requests[i], s.time_scale
    out[_ASKED.present] = np.float32(1.0)
    if run.problem.prefix_unit > 0:
        view, load, tokens = open_view(e), run.load, run.prefix[i].left * run.problem.prefix_unit
        clear_load(load)
        load.num_prefills, load.prefill_tokens, load.prefill_squares = 1, tokens, tokens * tokens
        out[_ASKED.kv] = np.float32(tokens / run.problem.kv_capacity)
        out[_ASKED.reload] = saturate(view.batch_time(load, view.batch_params) if tokens > 0 else 0.0, scale)
        out[_ASKED.pins] = saturate(float(run.pool.num_pins), 16.0)
    out[_ASKED.latency] = saturate(max(run.w.clock - r.arrival_time, 0.0), scale)
    out[_ASKED.class_] = np.float32(0.0) if r.class_id == UNKNOWN else saturate(r.class_id + 1.0, 4.0)
    if run.turns.shape[0] == 0:
        return
    turn = run.turns[run.turns[i].row]
    kind, first = kind_of(turn), turn
    while first.previous != UNKNOWN:
        first = run.turns[first.previous]
    out[_ASKED.turn] = saturate(float(turn.turn), 8.0)
    out[_ASKED.age] = saturate(max(run.w.clock - run.requests[first.arrival].arrival_time, 0.0), 10.0 * scale)
    out[_ASKED.tool] = np.float32(kind)
    count = run.pool.gap_counts[kind]
    if count > 0:
        out[_ASKED.mean_gap] = saturate(run.pool.gap_totals[kind] / count, scale)
        out[_ASKED.returns] = np.float32(count / max(run.pool.turn_counts[kind], count))
    if run.problem.reveal_output == 1 and turn.next != UNKNOWN:
        out[_ASKED.follows] = np.float32(1.0)
        out[_ASKED.gap] = saturate(
            gap_after(turn, run.workload, run.script.shape[0] > 0, r.finish_time), scale
        )


ASKED_PART = ObservationPart("asked", write_asked, ASKED_FEATURES)


class Keep(WithScheduler):
    """How long the KV of the request that has just finished stays in the prefix cache."""

    name = "keep"
    examples = "'fcfs'"
    own_options = ("scheduler", "lifetimes")
    defaults = {  # noqa: RUF012
        "scenario": "agent-sessions",
        "scheduler": "fcfs",
        "lifetimes": (2.0, 8.0, 30.0, 120.0),
        "information": (),
        "features": ("prefix_cache",),
        "queue_window": 1,
        "active_window": 1,
    }
    follows_turns = True
    keeps = True
    observed = (ASKED_PART,)
    at_boundary = ask_first
    asks = asks
    write_mask = write_mask
    apply = apply

    def check(self, config: ActionConfig) -> None:
        """Check the configuration.

        Raises:
            ConfigError: the scheduler cannot be below, a time to live is wrong, or an option of another kind is given.
        """
        super().check(config)
        times = config.lifetimes
        if len(times) > MOST_LIFETIMES or any(a >= b for a, b in zip((0.0, *times), times, strict=False)):
            raise ConfigError(
                f"lifetimes = {shown(list(times))}; expected at most {MOST_LIFETIMES} seconds > 0, in ascending order"
            )

    def num_notes(self, config: ActionConfig) -> int:
        """Return the length of the notes."""
        return 1

    def options(self, config: ActionConfig) -> tuple[float, ...]:
        """Return the time to live of each action, seconds."""
        return (0.0, *config.lifetimes, math.inf)

    def space(self, config: ActionConfig) -> spaces.Discrete:
        """Return Discrete(2 + number of lifetimes)."""
        return spaces.Discrete(self.mask_size(config))

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return the meaning of each action."""
        last = len(config.lifetimes) + 1
        times = ", ".join(f"{seconds:g}" for seconds in config.lifetimes)
        kept = ActionPart(f"1 … {last - 1}", f"drop other KV first, for {times} s", "s", 1, last - 1)
        return (
            ActionPart("0", "keep nothing: KV is dropped in the order in which it was last used", "–", 0, 0),
            *((kept,) if times else ()),
            ActionPart(
                f"{last}",
                "drop other KV first, until a request finds it or no other is left",
                "–",
                last,
                last,
            ),
        )

    def mask_size(self, config: ActionConfig) -> int:
        """Return the number of actions."""
        return len(config.lifetimes) + 2

    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> int:
        """Keep nothing; the scheduler admits what it can."""
        return 0
