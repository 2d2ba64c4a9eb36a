"""Base class of WAIT and Nested WAIT: the source of thresholds, and the drain rule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines.thresholds.counting import (
    COUNTED,
    COUNTS,
    DRAINING,
    HOLDING,
    IN_FORCE,
    NEXT_COUNT,
    THRESHOLDS,
    Shared,
)
from kvgym.errors import ConfigError, shown
from kvgym.kernels import UNKNOWN, PolicyMemory, policy_memory
from kvgym.policies.hyperparameters import (
    choice,
    flag,
    hyperparameter,
    numbers_of,
    parsed,
    require,
    whole,
)
from kvgym.policies.policy import CompiledPolicy, SystemInfo
from kvgym.utils.resources import check_table

PAPER = "Ao et al., Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory Constraints"

RULES = ("fluid", "peak", "practical")


def whole_thresholds(name: str, value: Any) -> tuple[int, ...] | None:
    """Return given thresholds, None if there are none: ConfigError if one is not a whole number ≥ 1."""
    given = None if value is None else numbers_of(name, value)
    require(name, value, min(given or (1,)) >= 1, "whole numbers >= 1, or None")
    return given


class ThresholdPolicy(CompiledPolicy):
    """Base class of WAIT and Nested WAIT: the source of thresholds, and the drain rule."""

    strict = False
    """Whether thresholds must exceed the arrivals of a full batch, as in (12), or only reach them, as in (11)."""

    # Manual thresholds and segments depend on the classes of a workload: users give them as a space.
    thresholds: Any = parsed(None, whole_thresholds)
    """requests per stage, whole numbers ≥ 1: one for each class, as in ``"20/10/5"`` (``nested_wait``: for each
    segment, group by group), or one for all. None = computed by ``rule``."""
    rule: str = choice("fluid", RULES, search=("fluid", "practical"))
    """``"fluid"``: the smallest thresholds that satisfy the paper's condition ((11), or (12) for Nested WAIT) under the
    run's batch-time model at mean rates. ``"peak"``: those that satisfy (15) at all times, for known changing rates.
    ``"practical"``: those of the paper's experiments, which divide ``batch_limit`` (Nested WAIT: in proportion to the
    arrivals that reach each segment, Section 6.2)."""
    batch_limit: int = whole(128, search=(16, 32, 64, 128, 256, 512, 1024, 2048))
    """B of the practical rule, requests, over all stages; groups share it by their rates."""
    drain: bool = flag(True)
    """whether requests that reach no threshold are served after ``patience`` seconds. Without it, the end of a finite
    trace is a deadlock."""
    patience: float | None = hyperparameter(
        None,
        lambda value: value is None or 0 < value < np.inf,
        "a number of seconds > 0, or None",
        search=(None, 0.1, 1.0),  # matters if few requests arrive
    )
    """seconds without arrival or batch before the drain rule starts. None = ten times the mean time in which arrivals
    (Nested WAIT: those that reach the segment) fill the slowest threshold, at least 1 s."""
    slack: float = hyperparameter(0.0, lambda value: 0 <= value < np.inf, "a number >= 0")
    """fraction by which thresholds of the rules ``fluid`` and ``peak`` must exceed the arrivals; > 0 gives the drift
    with which Theorem 1 bounds latency."""
    adjust: float | None = hyperparameter(
        None, lambda value: value is None or 0 < value < np.inf, "a number of seconds > 0, or None"
    )
    """time in seconds over which rates are estimated from arrivals, so that thresholds of the rule ``fluid`` follow
    them during the run; None = fixed thresholds."""

    def __post_init__(self) -> None:
        """Raise a ConfigError if ``slack`` or ``adjust`` are given for thresholds that nothing computes."""
        computed = self.thresholds is None and self.rule != "practical"
        if self.slack and not computed:
            raise ConfigError(f"slack = {self.slack} needs thresholds that rule=fluid or rule=peak computes")
        if self.adjust is not None and not (computed and self.rule == "fluid"):
            raise ConfigError(f"adjust = {self.adjust} needs thresholds that rule=fluid computes")

    def given_thresholds(self, count: int, what: str) -> NDArray[np.int64] | None:
        """Return the thresholds given to the constructor, int64 (count,), or None if they must be computed.

        Raises:
            ConfigError: their number is neither 1 nor ``count``.
        """
        if self.thresholds is None:
            return None
        if len(self.thresholds) not in (1, count):
            raise ConfigError(
                f"policy {shown(self.info.name)}: thresholds = {self.thresholds}, but there are {count} {what}; "
                "expected one threshold for each, or one for all"
            )
        return np.broadcast_to(np.array(self.thresholds, dtype=np.int64), (count,))

    def computed_thresholds(self, compute: Callable[[], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return the thresholds that ``compute`` returns, shape (m,); its error gains the policy's name and a remedy.

        Raises:
            ConfigError: no thresholds satisfy the paper's condition.
        """
        try:
            return compute()
        except ConfigError as error:
            raise ConfigError(
                f"policy {shown(self.info.name)}: {error}; lower the rates, or give thresholds or rule=practical"
            ) from error

    def shared_params(
        self,
        thresholds: NDArray[np.int64],
        rates: NDArray[np.float64],
        *,
        loads: NDArray[np.float64],
        firsts: NDArray[np.int64],
        survival: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Return the parameters that both kernels share.

        Args:
            thresholds: threshold of each class or segment, shape (m,).
            rates: arrivals per second that count towards each threshold, shape (m,); 0 = none.
            loads: load that a request per stage adds to a full batch, shape (m, 5).
            firsts: index of the first threshold of each queue, then m, shape (queues + 1,).
            survival: for each threshold, the share of the previous one's requests that reaches it, shape
                (m,); 0 for the first of a queue.
        """
        some = rates > 0
        slowest = float((thresholds[some] / rates[some]).max()) if some.any() else 0.0
        patience = max(1.0, 10.0 * slowest) if self.patience is None else self.patience
        head = Shared(
            num_thresholds=len(thresholds),
            drain=self.drain,
            patience=patience,
            num_queues=len(firsts) - 1,
            adjust=self.adjust or 0.0,
            slack=self.slack,
            strict=self.strict,
        )
        parts = np.zeros(len(thresholds)) if survival is None else survival
        return np.array([*head, *thresholds, *loads.ravel(), *parts, *firsts], dtype=np.float64)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return thresholds, empty queues, initial rates, and the policy's counters."""
        params = self.params(system)
        head = Shared(*params[:THRESHOLDS])
        m, queues = int(head.num_thresholds), int(head.num_queues)
        state = np.full(IN_FORCE + m + 4 * queues + system.max_requests, UNKNOWN, dtype=np.int64)
        state[[HOLDING, DRAINING, NEXT_COUNT]] = 0
        state[IN_FORCE : IN_FORCE + m] = params[THRESHOLDS : THRESHOLDS + m]
        state[IN_FORCE + m + 2 * queues : IN_FORCE + m + 4 * queues] = 0
        reals = np.zeros(COUNTS + queues + m)
        reals[COUNTED : COUNTED + 2] = 0.0
        reals[COUNTS : COUNTS + queues] = head.adjust * self.queue_rates(system)
        return policy_memory(params, state=state, reals=reals, profile=self.profile(system))

    def queue_rates(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the mean arrivals per second of each queue, float64 (queues,)."""
        return np.array([c.rate for c in system.classes])

    def num_counters(self, queues: int, system: SystemInfo) -> int:
        """Return the number of counters that :meth:`profile` has: one for each queue and number of output tokens.

        Raises:
            ConfigError: they would take too much memory.
        """
        count = queues * (system.kv_capacity + 2)
        check_table(
            4 * count,
            f"{self.info.name}: a counter for each class and output length up to kv_capacity = {system.kv_capacity:,}",
            "lower kv_capacity",
        )
        return count

    @abstractmethod
    def profile(self, system: SystemInfo) -> NDArray[np.int32]:
        """Return the counters of the policy, and the threshold of each stage if it needs them."""
