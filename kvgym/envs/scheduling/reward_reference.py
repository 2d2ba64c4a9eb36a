"""Rewards relative to a reference policy on the same requests: a control variate.

How much latency an episode has depends mostly on its requests, which no action changes. With a reference, what
the reference policy would have earned until the same moment on the same requests is subtracted from the reward
of every step, and at the end of the episode what it would still have earned; the difference is divided by what it
earns in all. The sum over an episode is the relative improvement (R - R_ref) / |R_ref| of the return. R_ref depends
on the requests alone, so that the noise of the requests is gone (variance reduction for input-driven environments),
and episodes of light and heavy load weigh the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, shown
from kvgym.metrics import slo_met
from kvgym.policy import CompiledPolicy, Policy, make_policy
from kvgym.runner import SimulationResult
from kvgym.simulator.tables import FUTURE

TERMS = ("latency", "ttft", "goodput")
"""Reward terms that a reference is known for."""


class ReferenceRewards:
    """What a policy has earned by any moment of its run.

    Args:
        result: the run.
        weights: weight of each reward term by name; others than :data:`TERMS` must be 0.
        scale: what terms are divided by.
    """

    def __init__(self, result: SimulationResult, weights: dict[str, float], scale: float) -> None:
        arrival, r = result.table.arrival_time, result.requests
        end = float(result.worker["clock"].max())
        come = arrival[r["status"] != FUTURE]  # a run that is cut short counts to its end
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
        """Return the sum of rewards until a moment, seconds."""
        k = int(np.searchsorted(self._finishes, time, side="right"))
        return float(np.interp(time, self._times, self._spent) + self._earned[k])

    def step(self, time: float, over: bool) -> float:
        """Return what was earned since the last call, and if ``over`` all that was still to come."""
        now = self.until(np.inf if over else time)
        earned, self.last = now - self.last, now
        return earned


def reference_policy(spec: str, reward: dict[str, float]) -> Policy:
    """Return the reference policy.

    Raises:
        ConfigError: it is not compiled, or a weighted reward term is not known of it.
    """
    policy = make_policy(spec)
    if not isinstance(policy, CompiledPolicy):
        raise ConfigError(
            f"reward_reference {shown(spec)} is not a built-in policy; running it would take too long"
        )
    for name, weight in reward.items():
        if weight and name not in TERMS:
            raise ConfigError(
                f"reward_reference goes with the reward terms {', '.join(TERMS)}; {name} has weight {weight:g}"
            )
    return policy
