"""Memory, resets and steps of N environments of one configuration.

The scalar and the vector environment are interfaces to this class, with N = 1 and N = n.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.checked_build import check, watched
from kvgym.compiling.kernel import uncompiled
from kvgym.compiling.pointers import runs_compiled
from kvgym.envs.closing import Closed
from kvgym.envs.scheduling.actions.reading import outside
from kvgym.envs.scheduling.config import EnvConfig, use_action_bounds, use_batch_time
from kvgym.envs.scheduling.drawing import at_load
from kvgym.envs.scheduling.layout import Layout
from kvgym.envs.scheduling.memory import Arrays, Block, Rows, zeroed
from kvgym.envs.scheduling.observations import observation_size
from kvgym.envs.scheduling.revealed import class_table
from kvgym.envs.scheduling.reward_reference import ReferenceRewards, reference_policy
from kvgym.envs.scheduling.state import EpisodeState, frozen
from kvgym.envs.scheduling.stepping import OBSERVE, RUNNING, START, STEP, TERMINATED, TRUNCATED, step_envs
from kvgym.envs.scheduling.tables import MOST_CLASSES
from kvgym.envs.threads import Threads
from kvgym.errors import ConfigError, KVGymError, shown
from kvgym.metrics.catalogue import STANDARD_METRICS
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import Decision, Policy, PolicyInfo
from kvgym.policies.runner import (
    SimulationResult,
    arrived_table,
    check_needs,
    copy_of,
    final_records,
    simulate,
    system_info,
)
from kvgym.simulator.batch_time import duration_error
from kvgym.simulator.recording.gaps import used_bins
from kvgym.simulator.system import System
from kvgym.simulator.tables import FINISHED
from kvgym.simulator.view import SystemView
from kvgym.utils.checks import check_array
from kvgym.utils.resources import check_free
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import Workload


class _Agent(Policy):
    """Placeholder for the agent in results."""

    info = PolicyInfo(name="agent", summary="actions from outside")

    def schedule(self, view: SystemView) -> Decision:
        """Never called: actions come from outside."""
        raise NotImplementedError


@dataclass
class Slot:
    """One environment of the batch.

    Attributes:
        block: its tables.
        table: the requests of its episode.
        reference: the rewards of a reference policy on them.
    """

    block: Block
    table: RequestTable | None = None
    reference: ReferenceRewards | None = None


class Episodes(Arrays):
    """N environments of one configuration; the arrays of :class:`Arrays` hold the results of the latest step.

    Attributes:
        config: the configuration.
        system: the system all episodes run on.
        workload: the source of requests.
        kind: the kind of action.
        space: the space of single actions.
        slots: the N environments.
        load: range of the factor on arrival rates of future episodes, see :class:`EnvConfig`.
        lock: held during steps, resets and closing, because compiled code releases the GIL.
    """

    def __init__(self, config: EnvConfig, count: int, *, compiled: bool = True, threads: int = 1) -> None:
        """Allocate memory for ``count`` environments; ``threads`` threads step a part of them each."""
        self.config = config
        self.compiled = runs_compiled(compiled)
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
        self.space = config.action_space
        self._bounds = use_action_bounds(self.settings, config)
        follows = self.kind.follows_turns and first.session_id is not None
        self._layout = Layout(
            config,
            self.system,
            self.settings,
            system_info(self.system, first, 0, config.information),
            follows or self.system.follows_turns(first),
        )
        sizes = self._layout.sizes(self._layout.rows(first))
        check_free(
            count * sizes.num_bytes,
            f"{count:,} environments of {len(first):,} requests",
            "choose fewer of either",
        )
        memory = zeroed(count, sizes.num_bytes)
        self.slots = [Slot(Block(sizes, self.settings, memory[i])) for i in range(count)]
        super().__init__(
            np.stack([slot.block.control for slot in self.slots]),
            actions=self.kind.size(config),
            observation=observation_size(config),
            mask=self.kind.mask_size(config),
            terms=len(config.reward_terms),
            threads=threads,
            dtype=self.space.dtype,
        )
        self.load = config.load
        self.reference = (
            None
            if config.reward_reference is None
            else reference_policy(config.reward_reference, config.reward)
        )
        if self.reference is not None:
            check_needs(self.reference, first)
        self._needs = frozenset(config.information)
        self.lock = threading.Lock()
        self._entry: Any = None
        self._threads = Threads(self.orders, self.taken, compiled=self.compiled)
        self._drawn: dict[int, tuple[RequestTable, ReferenceRewards | None]] = {}

    def check_information(self, table: RequestTable) -> None:
        """Check that the workload has the information to be revealed.

        Raises:
            ConfigError: the workload lacks some of it.
        """
        for need, column in (
            ("predicted_length", "predicted_output_len"),
            ("length_interval", "predicted_low"),
            ("class", "class_id"),
            ("features", "feature_0"),
            ("client", "client_id"),
            ("length_distribution", "predicted_tenths"),
            ("renewed_length", "renewals"),
        ):
            if need in self.config.needed and not self._has(table, column):
                lacking = {"class": "classes", "features": "feature columns", "client": "clients"}.get(need)
                what = f"has no {lacking}" if lacking else "does not predict it"
                raise ConfigError(
                    f"information has {shown(need)}, but the workload {what}; leave it out of information or choose a "
                    f"workload with {lacking or 'predictions'}"
                )
        if "class_rates" in self.config.information and len(table.classes) > MOST_CLASSES:
            raise ConfigError(
                f"information has 'class_rates', but the workload has {len(table.classes)} classes; an observation "
                f"has room for {MOST_CLASSES}"
            )
        if "class_rates" in self.config.needed and not table.classes:
            raise ConfigError(
                "information has 'class_rates', but the workload has none; leave it out of information or choose a "
                "workload with classes, e.g. wait-low (kvgym list workloads)"
            )

    @staticmethod
    def _has(table: RequestTable, column: str) -> bool:
        """Return whether requests have a column, distributions or renewals of their predictions."""
        forecasts = table.forecasts
        if column == "predicted_tenths":
            return forecasts is not None and forecasts.tenths is not None
        if column == "renewals":
            return forecasts is not None and forecasts.every > 0
        return getattr(table, column) is not None

    def check_memory(self, culprit: str) -> None:
        """Check, in the checked build, that compiled code has not written outside the tables.

        Args:
            culprit: the code to blame, for the message.

        Raises:
            OutOfBoundsError: it has written outside them.
        """
        for index, slot in enumerate(self.slots):
            slot.block.check(f"{culprit}, environment {index}" if len(self.slots) > 1 else culprit)
        names = ("settings", "batch_params", "actions", "converted", "observations", "masks", "rewards", "terms",
                 "outcomes", "ignored", "times", "given")  # fmt: skip
        check(culprit, {"bounds": self._bounds, **{name: getattr(self, name) for name in names}})

    def _culprit(self) -> str:
        return f"environment with {self.config.action}"

    # ------------------------------------------------------------ running

    def prepare(self, index: int, seed: int) -> None:
        """Draw the requests of the next episode of environment ``index``; :meth:`begin` starts it."""
        table, reference = self.requests(seed), None
        if self.reference is not None:
            result = self.simulate(self.reference, table, seed)
            reference = ReferenceRewards(result, self.config.reward, self.reward_scale)
        self._drawn[index] = table, reference

    def begin(self, indices: Iterable[int]) -> None:
        """Start the prepared episodes of some environments."""
        self.todo[:] = 0
        for index in indices:
            slot = self.slots[index]
            slot.table, slot.reference = table, _ = self._drawn.pop(index)
            needed, sizes = self._layout.rows(table), slot.block.sizes
            if not needed.fit(Rows.of(sizes)):
                self._use(index, Block(self._layout.larger(sizes, needed), self.settings))
            self._layout.begin(slot.block, table, self._needs)
            if "class_rates" in self._needs:
                slot.block["episode"][0]["classes"] = class_table(table.classes)
            self.todo[index] = START
        self.run()

    @property
    def reward_scale(self) -> float:
        """Divisor of the reward terms."""
        return float(self.settings["reward_scale"][0])

    def requests(self, seed: int) -> RequestTable:
        """Return the requests of an episode.

        Raises:
            WorkloadError: one can never be served.
        """
        table = self.scenario.requests(self.workload, seed, self.system.usable_capacity)
        table = at_load(table, self.load, seed)
        self.system.check_fits(table)
        return table

    def simulate(self, policy: Policy, table: RequestTable, seed: int) -> SimulationResult:
        """Run a policy on the requests of an episode with the engine, without the limits of the actions."""
        system = replace(self.system, stall_limit=None)  # the agent's limit would end slow starts
        return simulate(system, table, policy, seed=seed)

    def _use(self, index: int, block: Block) -> None:
        """Replace the tables of an environment."""
        self.slots[index].block = block
        self.control[index] = block.control

    def run(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Start, step or observe each environment as ``todo`` requests, with ``actions``.

        Args:
            meanwhile: is called as soon as no action has been refused; it must not touch the tables.

        Raises:
            ConfigError: an action is not in the space; nothing has changed.
            RunError: the batch-time model returned an invalid duration, or the clock cannot resolve it.
            KVGymError: the engine refused a decision, which is a bug in kvgym.
        """
        if self._entry is None:
            self._entry = (
                watched(step_envs.compiled, self._culprit, self.check_memory)
                if self.compiled
                else uncompiled(step_envs)
            )
        failed = self._threads.run(self._entry, meanwhile)
        if failed < 0:
            owner = f" of environment {-1 - failed}" if len(self.slots) > 1 else ""
            raise outside(self.space, self.actions[-1 - failed], owner)
        if failed:
            index = failed - 1
            block = self.slots[index].block
            status, worker = int(block["episode"][0]["status"]), block["workers"][0]
            where = f"environment {index}, iteration {int(worker['iteration'])}"
            raise duration_error(status, worker, block["load"][0], where) or KVGymError(
                f"{where}: the engine stopped with status {status}; please report this"
            )
        if self.reference is not None:
            for index in np.flatnonzero(self.todo == STEP).tolist():
                reference = self.slots[index].reference
                assert reference is not None
                over = bool(self.outcomes[index] != RUNNING)
                earned = reference.step(float(self.times[index]), over)
                self.rewards[index] = (self.rewards[index] - earned) / reference.total

    def close(self) -> None:
        """Stop the threads and free all memory; later access raises ClosedEnvironmentError."""
        self._threads.close()
        freed: Any = Closed()
        self.slots = self._entry = freed

    @property
    def closed(self) -> bool:
        """Whether the memory has been freed."""
        return isinstance(self.slots, Closed)

    def observe(self, chosen: NDArray[np.bool_]) -> None:
        """Write the observations and masks of some environments again; 0 for those without an episode.

        Args:
            chosen: bool (N,).
        """
        begun = np.array([slot.table is not None for slot in self.slots])
        self.observations[chosen & ~begun] = 0.0
        self.todo[:] = 0
        self.todo[chosen & begun] = OBSERVE
        self.run()

    def start(self, index: int, seed: int) -> None:
        """Start a new episode in one environment."""
        self.prepare(index, seed)
        self.begin([index])

    def _begun(self, index: int) -> Slot:
        """Return an environment that has an episode, else raise ResetNeeded."""
        slot = self.slots[index]
        if slot.table is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        return slot

    def save(self, index: int) -> EpisodeState:
        """Return a copy of the current episode of an environment.

        Raises:
            gymnasium.error.ResetNeeded: there is none yet.
        """
        slot = self._begun(index)
        assert slot.table is not None
        return EpisodeState(
            slot.block.sizes,
            frozen(slot.block.memory),
            tuple(frozen(array[index, ...]) for array in self.outputs),
            slot.table,
            copy.copy(slot.reference),
        )

    def check_state(self, index: int, state: Any) -> None:
        """Check that ``state`` is an episode that can be restored in environment ``index``.

        Raises:
            ConfigError: it is not, or its tables have another layout: another version or build of kvgym saved it.
        """
        if not isinstance(state, EpisodeState) or not isinstance(state.table, RequestTable):
            raise ConfigError(
                f"episode of the state = {shown(state)}; expected what get_state() has returned"
            )
        memory, sizes = state.memory, state.sizes
        if not isinstance(memory, np.ndarray) or memory.dtype != np.uint8:
            raise ConfigError(f"the state is damaged: its tables are {shown(memory)}")
        if not self._layout.fits(sizes, self.slots[index].block.sizes, memory.size):
            raise ConfigError(f"the state is damaged: tables of the sizes {shown(sizes)}")
        if memory.shape != (sizes.num_bytes,):
            raise ConfigError(
                f"the state has tables of {memory.nbytes} bytes; expected {sizes.num_bytes}: it was saved by another "
                "version of kvgym, or with the checked build on one side only (KVGYM_DEBUG)"
            )
        fits = self._layout.rows(state.table).fit(Rows.of(sizes))
        if not fits or (state.reference is None) != (self.reference is None):
            raise ConfigError("the state is damaged: its requests do not match its tables")
        if not isinstance(state.reference, ReferenceRewards | None) or not isinstance(state.outputs, tuple):
            raise ConfigError(f"the state is damaged: {shown(state)}")
        if len(state.outputs) != len(self.outputs):
            raise ConfigError(
                f"outputs of the state: {len(state.outputs)} arrays; expected {len(self.outputs)}"
            )
        for array, saved in zip(self.outputs, state.outputs, strict=True):
            check_array(saved, array[index, ...], "outputs of the state")
        state.check_seal()

    def restore(self, index: int, state: EpisodeState) -> None:
        """Restore a saved and checked episode in environment ``index``."""
        slot = self.slots[index]
        if slot.block.sizes != state.sizes:
            self._use(index, Block(state.sizes, self.settings))
        slot.block.memory[:] = state.memory
        for array, saved in zip(self.outputs, state.outputs, strict=True):
            array[index] = saved
        slot.table, slot.reference = state.table, copy.copy(state.reference)

    # ------------------------------------------------------------ results

    def result(self, index: int, *, copied: bool = True) -> SimulationResult:
        """Return the records of the current episode of an environment.

        Args:
            index: the environment.
            copied: whether the arrays are copies; otherwise they change with the next step.

        Raises:
            gymnasium.error.ResetNeeded: there is none yet.
        """
        slot = self._begun(index)
        assert slot.table is not None
        block, n = slot.block, len(slot.table)
        arrived = arrived_table(self.system, slot.table, block["tracker"], block["turns"], block["workload"])
        requests = block["requests"][: len(arrived["table"])]
        gap_counts, gap_sums = used_bins(block["gap_counts"], block["gap_sums"])
        num_active = block["workers"]["num_active"]
        # The records of active requests are completed from their slots.
        copied = copied or bool(num_active.any())
        return SimulationResult(
            policy=_Agent(),
            system=self.system,
            **arrived,
            requests=final_records(requests, block["active"][None], num_active, copied=copied),
            worker=copy_of(block["workers"]) if copied else block["workers"],
            log=None,
            gap_counts=gap_counts,
            gap_sums=gap_sums,
            completed=bool((block["requests"]["status"][:n] == FINISHED).all()),
        )

    def metrics(self, index: int) -> NDArray[np.float64]:
        """Return the metrics of the current episode, float64, in the order of ``STANDARD_METRICS``."""
        return np.array(list(compute_metrics(self.result(index, copied=False), STANDARD_METRICS).values()))


__all__ = [
    "RUNNING",
    "STEP",
    "TERMINATED",
    "TRUNCATED",
    "Episodes",
    "Slot",
]
