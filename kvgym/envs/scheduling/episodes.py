"""Many episodes side by side: memory, resets and steps of N environments of one configuration.

The scalar and the vector environment are faces of this class, with N = 1 and N = n.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.envs.scheduling.actions.reading import outside
from kvgym.envs.scheduling.config import EnvConfig, use_action_bounds, use_batch_time
from kvgym.envs.scheduling.drawing import at_load
from kvgym.envs.scheduling.memory import Block, Sizes, rule_tables
from kvgym.envs.scheduling.observations import observation_size
from kvgym.envs.scheduling.revealed import class_table
from kvgym.envs.scheduling.reward_reference import ReferenceRewards, reference_policy
from kvgym.envs.scheduling.state import EpisodeState
from kvgym.envs.scheduling.stepping import RUNNING, START, STEP, TERMINATED, TRUNCATED, step_envs
from kvgym.envs.scheduling.tables import MOST_CLASSES
from kvgym.errors import ConfigError, KVGymError
from kvgym.metrics import compute_metrics
from kvgym.policy import Decision, Policy, PolicyInfo
from kvgym.runner import SimulationResult, check_needs, final_records, simulate
from kvgym.simulator.compiled import Kernel, jit_disabled, uncompiled
from kvgym.simulator.system import System
from kvgym.simulator.tables import FINISHED, GAP_OCTAVES, UNKNOWN, as_records
from kvgym.simulator.view import SystemView
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import Workload

GAP_BINS = 32 * GAP_OCTAVES
"""Bins of an environment's histogram of token gaps: percentiles of the time between tokens to 3 %."""


class _Agent(Policy):
    """Names the agent in results."""

    info = PolicyInfo(name="agent", summary="actions from outside")

    def schedule(self, view: SystemView) -> Decision:
        """Never called: actions come from outside."""
        raise NotImplementedError


@dataclass
class Slot:
    """One environment's place.

    Attributes:
        block: its tables.
        rule: what the tables of the rule of its kind of action hold when an episode begins.
        table: the requests of its episode.
        reference: what a reference policy earns on them.
    """

    block: Block
    rule: dict[str, NDArray[Any]]
    table: RequestTable | None = None
    reference: ReferenceRewards | None = None


class Episodes:
    """N environments of one configuration.

    Attributes:
        config: the configuration.
        system: the system all episodes run on.
        workload: where requests come from.
        observations: float32 (N, D), of the latest step.
        kind: the kind of action.
        space: of single actions.
        control: int64 (N, 2 NUM_TABLES + 1), where the tables of each lie.
        masks: uint8 (N, K), as the kind of action writes them.
        actions: float64 (N, a), of the coming step.
        rewards: float64 (N,).
        terms: float64 (N, number of terms).
        outcomes: int64 (N,): RUNNING, TERMINATED or TRUNCATED.
        ignored: int64 (N,): parts of the latest action that were not possible.
        times: float64 (N,): clocks, seconds.
        gap_bins: bins of each histogram of token gaps.
        load: range of the factor on arrival rates, for episodes to come, see :class:`EnvConfig`.
        outputs: all arrays that a step writes.
    """

    gap_bins: ClassVar[int] = GAP_BINS

    def __init__(self, config: EnvConfig, count: int, *, compiled: bool = True) -> None:
        """Set up memory for ``count`` environments."""
        self.config = config
        self.compiled = compiled and not jit_disabled()
        self.scenario = config.make_scenario()
        self.workload: Workload = self.scenario.make_workload()
        first = self.workload.sample(0)
        self.check_information(first)
        self.system: System = config.make_system(self.scenario, self.workload, len(first))
        self.kind = config.kind
        self.settings = config.make_settings(
            self.system.batch_time, len(first), self.workload.mean_rate, compiled=self.compiled
        )
        self.batch_params = use_batch_time(self.settings, self.system.batch_time, compiled=self.compiled)
        self.space = self.kind.space(config)
        self._bounds = use_action_bounds(self.settings, self.space)
        self.slots = [Slot(*self._memory(len(first))) for _ in range(count)]
        self.control = np.stack([slot.block.control for slot in self.slots])
        size = observation_size(config)
        self.observations = np.zeros((count, size), np.float32)
        self.masks = np.zeros((count, self.kind.mask_size(config)), np.uint8)
        self.rewards = np.zeros(count)
        self.terms = np.zeros((count, len(config.reward_terms)))
        self.outcomes = np.zeros(count, np.int64)
        self.ignored = np.zeros(count, np.int64)
        self.times = np.zeros(count)
        self.outputs: tuple[NDArray[Any], ...] = (
            self.observations, self.masks, self.rewards, self.terms, self.outcomes, self.ignored, self.times,
        )  # fmt: skip
        self.actions = np.zeros((count, self.kind.size(config)))
        self.todo = np.zeros(count, np.uint8)
        self.load = config.load
        self.reference = (
            None
            if config.reward_reference is None
            else reference_policy(config.reward_reference, config.reward)
        )
        if self.reference is not None:
            check_needs(self.reference, first)
        self._needs = frozenset(config.information)
        self._entry: Any = None
        self._arguments: tuple[Any, ...] = ()

    def _memory(self, num_requests: int) -> tuple[Block, dict[str, NDArray[Any]]]:
        """Return tables for episodes of so many requests, and what those of a rule begin with."""
        n = max(1, num_requests)
        slots = min(n, self.system.usable_capacity)
        rule = rule_tables(self.kind.rule_memory(self.config, n, slots))
        sizes = Sizes(
            num_requests=n,
            slots=slots,
            window=self.config.queue_window,
            heap=0 if self.config.queue_order in ("queue", "rank") else n + 2,
            gap_bins=self.gap_bins,
            rule=tuple(table.size for table in rule.values()),
            terms=int(self.settings["term_memory"].sum()),
        )
        return Block(sizes, self.settings), rule

    def check_information(self, table: RequestTable) -> None:
        """Check that the workload carries what is to be revealed.

        Raises:
            ConfigError: it does not.
        """
        for need, column in (
            ("predicted_length", "predicted_output_len"),
            ("length_interval", "predicted_low"),
            ("class", "class_id"),
        ):
            if need in self.config.information and getattr(table, column) is None:
                what = "has no classes" if need == "class" else "predicts no such thing"
                raise ConfigError(
                    f"information has {need!r}, but the workload {what}; leave it out of information or choose a "
                    f"workload with {'classes' if need == 'class' else 'predictions'}"
                )
        if "class_rates" in self.config.information and len(table.classes) > MOST_CLASSES:
            raise ConfigError(
                f"information has 'class_rates', but the workload has {len(table.classes)} classes; an observation "
                f"shows the rates of {MOST_CLASSES} at most"
            )
        if "class_rates" in self.config.information and not table.classes:
            raise ConfigError(
                "information has 'class_rates', but the workload carries none; leave it out of information or choose a "
                "workload with classes, e.g. wait-low (kvgym list workloads)"
            )

    # ------------------------------------------------------------ running

    def prepare(self, index: int, seed: int) -> None:
        """Write a new episode into the tables of environment ``index``; :meth:`run` with START begins it."""
        table = at_load(self.workload.sample(seed), self.load, seed)
        self.system.check_fits(table)
        slot = self.slots[index]
        if len(table) > slot.block.sizes.num_requests:
            slot.block, slot.rule = self._memory(2 * len(table))
            self.control[index] = slot.block.control
        block = slot.block
        block.clear()
        block["problem"][:] = self.system.to_record(table, self._needs, log=False)
        worker = block["workers"][0]
        worker["queue_head"] = worker["queue_tail"] = UNKNOWN
        block["episode"][0]["cursor"] = UNKNOWN
        if "class_rates" in self._needs:
            block["episode"][0]["classes"] = class_table(table.classes)
        block["workload"][: len(table)] = table.to_records()
        for name in ("start_time", "first_token_time", "last_token_time", "finish_time", "ready_time"):
            block["requests"][name] = np.nan
        block["requests"]["worker"] = UNKNOWN
        for name, content in slot.rule.items():
            block[name][:] = content
        slot.table = table
        if self.reference is not None:
            system = replace(self.system, stall_limit=None)  # that of the agent would end slow starters
            result = simulate(system, table, self.reference, seed=seed)
            slot.reference = ReferenceRewards(
                result, self.config.reward, float(self.settings["reward_scale"][0])
            )

    def run(self) -> None:
        """Do what ``todo`` says with ``actions``.

        Raises:
            ConfigError: an action is not in the space; nothing has changed.
            KVGymError: the engine refused a decision, which is a bug of kvgym.
        """
        if self._entry is None:
            self._entry = step_envs.compiled if self.compiled else uncompiled(step_envs)
            self._arguments = (
                self.control, self.todo, self.actions, *self.outputs,
            )  # fmt: skip
        failed = self._entry(*self._arguments)
        if failed < 0:
            who = f" of environment {-1 - failed}" if len(self.slots) > 1 else ""
            raise outside(self.space, self.actions[-1 - failed], who)
        if failed:
            index = failed - 1
            status = int(self.slots[index].block["episode"][0]["status"])
            raise KVGymError(
                f"environment {index}: the engine stopped with status {status}; please report this"
            )
        if self.reference is not None:
            for index in np.flatnonzero(self.todo == STEP).tolist():
                reference = self.slots[index].reference
                assert reference is not None
                over = bool(self.outcomes[index] != RUNNING)
                earned = reference.step(float(self.times[index]), over)
                self.rewards[index] = (self.rewards[index] - earned) / reference.total

    def start(self, index: int, seed: int) -> None:
        """Begin a new episode in one environment."""
        self.prepare(index, seed)
        self.todo[:] = 0
        self.todo[index] = START
        self.run()

    def save(self, index: int) -> EpisodeState:
        """Return the present episode of an environment, which later steps do not change.

        Raises:
            gymnasium.error.ResetNeeded: there is none yet.
        """
        slot = self.slots[index]
        if slot.table is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        return EpisodeState(
            slot.block.sizes.num_requests,
            slot.block.memory.copy(),
            tuple(array[index].copy() for array in self.outputs),
            slot.table,
            copy.copy(slot.reference),
        )

    def restore(self, index: int, state: EpisodeState) -> None:
        """Go on from a saved episode, in environment ``index``."""
        slot = self.slots[index]
        if slot.block.sizes.num_requests != state.num_requests:
            slot.block, slot.rule = self._memory(state.num_requests)
            self.control[index] = slot.block.control
        slot.block.memory[:] = state.memory
        for array, saved in zip(self.outputs, state.outputs, strict=True):
            array[index] = saved
        slot.table, slot.reference = state.table, copy.copy(state.reference)

    # ------------------------------------------------------------ looking

    def result(self, index: int) -> SimulationResult:
        """Return the records of the present episode of an environment; the arrays are copies."""
        slot = self.slots[index]
        assert slot.table is not None
        block, n = slot.block, len(slot.table)
        requests = final_records(block["requests"][:n], block["active"][None], block["workers"]["num_active"])
        return SimulationResult(
            policy=_Agent(),
            system=self.system,
            table=slot.table,
            requests=requests,
            worker=block["workers"].copy(),
            log=None,
            gap_counts=block["gap_counts"].copy(),
            gap_sums=block["gap_sums"].copy(),
            completed=bool((requests["status"] == FINISHED).all()),
        )

    def metrics(self, index: int) -> NDArray[np.float64]:
        """Return the metrics of the present episode, float64, in the order of ``metric_names()``."""
        return np.array(list(compute_metrics(self.result(index)).values()))


class EpisodeTables:
    """An environment's tables in the form that :class:`SystemView` and compiled policies read."""

    def __init__(self, episodes: Episodes, index: int = 0) -> None:
        """Look at environment ``index``."""
        self._episodes, self._index = episodes, index
        self.needs = frozenset(episodes.config.information)
        self.policy_name = "agent"

    @property
    def _block(self) -> Block:
        return self._episodes.slots[self._index].block

    @property
    def problem(self) -> Any:
        """The PROBLEM record, shape (1,)."""
        return self._block["problem"]

    @property
    def workers(self) -> Any:
        """The WORKER records, shape (1,)."""
        return self._block["workers"]

    @property
    def worker(self) -> Any:
        """The WORKER record."""
        return self.workers[0]

    @property
    def requests(self) -> Any:
        """The request table, shape (n,)."""
        return self._block["requests"]

    @property
    def active(self) -> Any:
        """The active set, shape (1, A)."""
        return self._block["active"][None]

    @property
    def queued(self) -> Any:
        """Requests that joined the queue since the last decision, shape (1, 2n)."""
        return self._block["queued"][None]

    @property
    def finished(self) -> Any:
        """Requests that finished since the last decision, shape (1, A)."""
        return self._block["finished"][None]

    def batch_time_of(self, worker: int) -> tuple[Kernel, NDArray[np.float64]]:
        """Return the batch-time kernel and its parameters."""
        return self._episodes.system.batch_time.kernel, self._episodes.batch_params

    def python_tables(self) -> dict[str, Any]:
        """Return copies of what a decision is written to, and views of the rest, for uncompiled kernels."""
        block = self._block
        found: dict[str, Any] = {}
        for name in ("problem", "workers", "decision", "requests", "load"):
            table = block[name].copy() if name in ("decision", "load") else block[name]
            found[name] = as_records(table)
        found["decision"][:] = 0
        found["active"] = as_records(block["active"].copy()[None])
        for name in ("queued", "finished"):
            found[name] = block[name][None]
        for name in ("admit", "admit_tokens", "evict"):
            found[name] = np.full_like(block[name], UNKNOWN)[None]
        return found


__all__ = [
    "RUNNING",
    "START",
    "STEP",
    "TERMINATED",
    "TRUNCATED",
    "EpisodeTables",
    "Episodes",
    "Slot",
]
