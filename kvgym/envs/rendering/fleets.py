"""Recording of an episode of a fleet."""

from __future__ import annotations

from typing import Any

from kvgym.envs.rendering.picture import round_up
from kvgym.envs.rendering.recorder import Recorder
from kvgym.envs.rendering.scene import FleetScene, Sized
from kvgym.policies.policy import Policy
from kvgym.policies.runner import result_of
from kvgym.report.fleets import fleet_panels


class FleetRecorder(Recorder):
    """Records an episode of a fleet.

    Args:
        simulation: the cluster.
        policy: of its first worker.
    """

    def __init__(self, simulation: Any, policy: Policy) -> None:
        super().__init__(simulation)
        self._policy = policy

    def scene(self, *, whole: bool = False) -> FleetScene:
        """Return the current moment; the time axis of a whole scene ends there."""
        result, now = result_of(self._simulation, self._policy), self._clock()
        view = self._simulation.changing_fleet.view()
        most = sum(pool.settings.most for pool in view.pools)
        end = (now if whole else round_up(now)) or 1.0
        return FleetScene(
            **self._common(now, with_history=whole),
            panels=tuple(fleet_panels("", result, end, most)),
            pools=tuple(
                Sized(
                    pool.target, pool.ready, pool.starting, pool.draining, pool.settings.most,
                    int(pool.ongoing.sum()), float(pool.kv.mean()) if pool.ready else 0.0,
                )
                for pool in view.pools
            ),
        )  # fmt: skip

    def _clock(self) -> float:
        """Return the time of the run; workers may be ahead of it."""
        return float(self._simulation.tracker[0]["clock"])
