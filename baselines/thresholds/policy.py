"""Base of WAIT and Nested WAIT: where thresholds come from, and the drain rule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines.thresholds.counting import (
    ADJUST,
    COUNTED,
    COUNTS,
    DRAINING,
    HOLDING,
    IN_FORCE,
    NEXT_COUNT,
    NUM_QUEUES,
    NUM_THRESHOLDS,
    THRESHOLDS,
)
from kvgym.errors import ConfigError, shown
from kvgym.kernels import UNKNOWN, RuleMemory, rule_memory
from kvgym.policy import (
    CompiledPolicy,
    SystemInfo,
    numbers_of,
    policy_defaults,
    require,
    require_count,
    require_flag,
)
from kvgym.utils.docstrings import meanings

PAPER = "Ao et al., Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory Constraints"

RULES = ("fluid", "peak", "practical")


class ThresholdPolicy(CompiledPolicy):
    """Base of WAIT and Nested WAIT: where thresholds come from, and the drain rule."""

    strict = False
    """Whether thresholds must exceed the arrivals of a full batch, as (12) asks, or reach them, as (11) does."""

    def __init__(
        self,
        *,
        thresholds: str | int | Sequence[int] | None = None,
        rule: str = "fluid",
        batch_limit: int = 128,
        drain: bool = True,
        patience: float | None = None,
        slack: float = 0.0,
        adjust: float | None = None,
    ) -> None:
        """Set thresholds and drain rule.

        Args:
            thresholds: requests per stage, whole numbers ≥ 1, one for each class as in ``"20/10/5"`` (``nested_wait``:
                for each segment, group by group), or one for all. None = computed by ``rule``.
            rule: ``"fluid"``, the least thresholds that satisfy the paper's condition ((11), or (12) of Nested WAIT)
                under the run's batch-time model at mean rates; ``"peak"``, those that satisfy (15), which holds at
                all times where rates are known to change; or ``"practical"``, those of its experiments, which share
                out ``batch_limit`` (Nested WAIT: in proportion to the arrivals that reach each segment, Section 6.2).
            batch_limit: B of the practical rule, requests; over all stages, and over the groups by their rates.
            drain: whether requests that reach no threshold are served after ``patience`` seconds. Without
                it the end of a finite trace is a deadlock.
            patience: seconds without arrival or batch after which the drain rule begins; None = ten times
                the mean time that arrivals (of Nested WAIT those that reach the segment) take to reach a threshold,
                the slowest one's, at least 1 s.
            slack: how much larger than what arrives thresholds of the rules ``fluid`` and ``peak`` must be, as a
                share; > 0 gives the drift with which Theorem 1 bounds latency.
            adjust: seconds over which rates are estimated from arrivals, for thresholds of the rule ``fluid``
                that follow them in the run; None = they stay as they are.
        """
        self.thresholds = None if thresholds is None else numbers_of("thresholds", thresholds)
        require("thresholds", thresholds, min(self.thresholds or (1,)) >= 1, "whole numbers >= 1, or None")
        require("rule", rule, rule in RULES, " or ".join(RULES))
        require_count("batch_limit", batch_limit)
        require_flag("drain", drain)
        require(
            "patience",
            patience,
            patience is None or 0 < patience < np.inf,
            "a number of seconds > 0, or None",
        )
        require("slack", slack, 0 <= slack < np.inf, "a number >= 0")
        require("adjust", adjust, adjust is None or 0 < adjust < np.inf, "a number of seconds > 0, or None")
        computed = self.thresholds is None and rule != "practical"
        if slack and not computed:
            raise ConfigError(f"slack = {slack} needs thresholds that rule=fluid or rule=peak computes")
        if adjust is not None and not (computed and rule == "fluid"):
            raise ConfigError(f"adjust = {adjust} needs thresholds that rule=fluid computes")
        self.rule, self.batch_limit, self.drain, self.patience = rule, batch_limit, drain, patience
        self.slack, self.adjust = slack, adjust

    def given_thresholds(self, count: int, what: str) -> NDArray[np.int64] | None:
        """Return the thresholds of the constructor, int64 (count,), or None if they are to be computed.

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
        """Return what ``compute`` returns, thresholds of shape (m,).

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
        """Return the parameters that the kernels share.

        Args:
            thresholds: of each class or segment, shape (m,).
            rates: arrivals per second that count towards each, shape (m,); 0 = none.
            loads: what a request per stage adds to a full batch, shape (m, 5).
            firsts: of each queue the index of its first threshold, then m, shape (queues + 1,).
            survival: of each threshold the share of the one before that reaches it, shape (m,); 0 for firsts.
        """
        some = rates > 0
        slowest = float((thresholds[some] / rates[some]).max()) if some.any() else 0.0
        patience = max(1.0, 10.0 * slowest) if self.patience is None else self.patience
        counts = (len(thresholds), self.drain, patience, len(firsts) - 1)
        adjusting = (self.adjust or 0.0, self.slack, self.strict)
        p = np.zeros(len(thresholds)) if survival is None else survival
        return np.array([*counts, *adjusting, *thresholds, *loads.ravel(), *p, *firsts], dtype=np.float64)

    def memory(self, system: SystemInfo) -> RuleMemory:
        """Return thresholds, empty queues, rates to begin with, and the policy's counters."""
        params = self.params(system)
        m, queues = int(params[NUM_THRESHOLDS]), int(params[NUM_QUEUES])
        state = np.full(IN_FORCE + m + 4 * queues + system.max_requests, UNKNOWN, dtype=np.int64)
        state[[HOLDING, DRAINING, NEXT_COUNT]] = 0
        state[IN_FORCE : IN_FORCE + m] = params[THRESHOLDS : THRESHOLDS + m]
        state[IN_FORCE + m + 2 * queues : IN_FORCE + m + 4 * queues] = 0
        reals = np.zeros(COUNTS + queues + m)
        reals[COUNTED : COUNTED + 2] = 0.0
        reals[COUNTS : COUNTS + queues] = params[ADJUST] * self.queue_rates(system)
        return rule_memory(params, state=state, reals=reals, profile=self.profile(system))

    def queue_rates(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the mean arrivals per second of each queue, float64 (queues,)."""
        return np.array([c.rate for c in system.classes])

    @abstractmethod
    def profile(self, system: SystemInfo) -> NDArray[np.int32]:
        """Return the counters of the policy, and the threshold of each stage where it needs one."""


SHARED = {
    name: (default, meanings(ThresholdPolicy.__init__).get(name, ""))
    for name, default in policy_defaults(ThresholdPolicy).items()
}
"""Default and meaning of the hyperparameters of both policies."""
