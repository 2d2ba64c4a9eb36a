"""Rewards relative to a reference policy on the same requests: a control variate.

The latency of an episode depends mostly on its requests, which no action changes. With a reference, every step's
reward is reduced by the reference policy's reward over the same time on the same requests; the last step also
subtracts the rest of the reference's return. The difference is divided by the absolute return of the reference. So
the sum over an episode is the relative improvement (R - R_ref) / |R_ref|. R_ref depends on the requests alone: the
noise of the requests cancels (variance reduction for input-driven environments), and episodes of light and heavy load
have equal weight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.scheduling.tables import REWARD_TERMS
from kvgym.errors import ConfigError, shown
from kvgym.metrics.attainment import slo_met
from kvgym.policies.policy import CompiledPolicy, Policy, make_policy
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.tables import FUTURE

TERMS = ("latency", "ttft", "goodput")
"""Reward terms that support a reference."""


class ReferenceRewards:
    """Rewards of a policy up to any moment of its run.

    Args:
        result: the run.
        weights: weight of each reward term by name; those outside :data:`TERMS` must be 0.
        scale: divisor of the terms.
    """

    def __init__(self, result: SimulationResult, weights: dict[str, float], scale: float) -> None:
        arrival, r = result.table.arrival_time, result.requests
        end = float(result.worker["clock"].max())
        come = arrival[r["status"] != FUTURE]  # a truncated run counts up to its end
        finish = np.where(np.isnan(r["finish_time"]), np.inf, r["finish_time"])
        done = finish < np.inf
        times = np.concatenate([come, finish[done]])
        change = np.concatenate([np.ones(len(come)), -np.ones(int(done.sum()))])
        order = np.argsort(times, kind="stable")
        self._times: NDArray[np.float64] = np.append(times[order], end)
        present = np.cumsum(change[order])
        spent = np.concatenate([[0.0], np.cumsum(present * np.diff(self._times))])
        self._spent = -weights.get("latency", 0.0) / scale * spent
        order = np.argsort(finish[done], kind="stable")
        self._finishes: NDArray[np.float64] = finish[done][order]
        earned = -weights.get("ttft", 0.0) * (r["first_token_time"] - arrival)[done]
        earned += weights.get("goodput", 0.0) * slo_met(result)[done]
        self._earned = np.concatenate([[0.0], np.cumsum(earned[order])]) / scale
        self.last = 0.0
        self.total = abs(self.until(np.inf)) or 1.0

    def until(self, time: float) -> float:
        """Return the sum of rewards up to ``time``, seconds."""
        k = int(np.searchsorted(self._finishes, time, side="right"))
        return float(np.interp(time, self._times, self._spent) + self._earned[k])

    def step(self, time: float, over: bool) -> float:
        """Return the rewards since the last call; if ``over``, all the remaining ones as well."""
        now = self.until(np.inf if over else time)
        earned, self.last = now - self.last, now
        return earned


def episode_return(result: SimulationResult, weights: dict[str, float], scale: float) -> float:
    """Return the undiscounted return that an environment gives for a run, of the standard terms.

    Args:
        result: the run, of one worker.
        weights: weight of each reward term by name.
        scale: divisor of the terms.

    Raises:
        ConfigError: a registered term has a weight; it can be earned only in an environment.
    """
    for name, weight in weights.items():
        if weight and name not in REWARD_TERMS:
            raise ConfigError(
                f"reward term {name} (weight {weight:g}) is earned only by steps of an environment; leave it out, or "
                "choose actions that can express the policy, e.g. kvgym/Tokens-v0"
            )
    worker = result.worker[0]
    counted = weights.get("tokens", 0.0) * int(worker["total_delivered_tokens"])
    counted -= weights.get("evictions", 0.0) * int(worker["total_recomputed_tokens"])
    return ReferenceRewards(result, weights, scale).until(np.inf) + counted / scale


def reference_policy(spec: str, reward: dict[str, float]) -> Policy:
    """Return the reference policy.

    Raises:
        ConfigError: the policy is not compiled, or a weighted reward term does not support a reference.
    """
    policy = make_policy(spec)
    if not isinstance(policy, CompiledPolicy):
        raise ConfigError(
            f"reward_reference {shown(spec)} is not a compiled policy and would be too slow; choose a built-in one"
        )
    for name, weight in reward.items():
        if weight and name not in TERMS:
            raise ConfigError(
                f"reward_reference supports the reward terms {', '.join(TERMS)}; {name} has weight {weight:g}"
            )
    return policy
