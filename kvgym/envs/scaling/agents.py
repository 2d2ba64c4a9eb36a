"""Autoscalers in the scaling environment, and agents as autoscalers.

:func:`play_autoscaler` runs any autoscaler in the environment for an episode. :class:`AgentAutoscaler` is the reverse:
it wraps any model with Stable-Baselines3's ``predict`` as an autoscaler for :func:`kvgym.simulate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvgym.envs.playing import Player, Predictor, content_of
from kvgym.envs.scaling.config import ScalingConfig
from kvgym.envs.scaling.environment import ScalingEnv
from kvgym.envs.scaling.observer import ScalingObserver
from kvgym.envs.scaling.players import autoscaler_player
from kvgym.errors import ConfigError, shown
from kvgym.policies.runner import SimulationResult
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.fleet import Fleet
from kvgym.utils.arguments import explained


@explained
def play_autoscaler(
    env: ScalingEnv, autoscaler: str | Autoscaler, *, workload_seed: int = 0
) -> tuple[SimulationResult, float]:
    """Run an autoscaler in an environment for one episode, see :func:`~kvgym.envs.scaling.players.autoscaler_player`.

    With ``action="target"``, and an autoscaler that is asked at the interval of the environment and begins with the
    size of the fleet, the records equal those of ``simulate(env.system, table, policy, router=router,
    autoscaler=autoscaler, seed=workload_seed)`` with the requests of the episode.

    Args:
        env: the environment, unwrapped.
        autoscaler: an autoscaler or its name.
        workload_seed: seed of the requests, the schedulers and the autoscaler.

    Returns:
        The records of the episode, and the undiscounted return.
    """
    act = autoscaler_player(env, autoscaler, seed=workload_seed)
    observation, _ = env.reset(seed=workload_seed, options={"workload_seed": workload_seed})
    total, ended = 0.0, False
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(act(observation, env.action_masks()))
        total += reward
        ended = terminated or truncated
    return env.result(), total


class AgentAutoscaler(Autoscaler):
    """An agent trained in ``kvgym/Scale-v0``, as an autoscaler for ``simulate``.

    Args:
        model: object with ``predict(observation, deterministic=True)``; gets ``action_masks=`` and ``state=`` if it
            accepts them.
        name: label in results.
        **arguments: the environment arguments with which the agent was trained.
    """

    info = AutoscalerInfo(name="agent", summary="a learned autoscaler")

    @explained
    def __init__(self, model: Predictor, *, name: str = "agent", **arguments: Any) -> None:
        self.model, self.config = model, ScalingConfig.of(**arguments)
        self.info = AutoscalerInfo(name=name, summary=f"{type(model).__name__} as an autoscaler")  # type: ignore[misc]
        scenario = self.config.make_scenario()
        self._trained = scenario.make_system().fleet
        assert self._trained is not None
        # The agent keeps the scales and the interval of its training in any fleet.
        self._workload, self.interval = scenario.make_workload(), float(self._trained.control or 0.0)

    def hyperparameters(self) -> dict[str, Any]:
        """Return nothing: the name identifies the agent."""
        return {}

    def content(self) -> dict[str, Any]:
        """Return the identity of the agent: its environment and a hash of its model."""
        return {"environment": str(self.config), "model": content_of(self.model)}

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Prepare for a new run.

        Raises:
            ConfigError: the pools differ from those in training.
        """
        super().reset(fleet, seed)
        assert self._trained is not None
        sizes, trained = ([pool.most for pool in f.pools] for f in (fleet, self._trained))
        if sizes != trained:
            raise ConfigError(
                f"autoscaler {shown(self.info.name)} was trained with pools of at most {trained} workers; this fleet "
                f"has {sizes}"
            )
        self._observer, self._act = ScalingObserver(self.config, fleet, self._workload), Player(self.model)
        self._observer.interval = self._every

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the targets of the agent's action; masked ones are replaced as in the environment."""
        observer = self._observer
        observer.observe(view)
        observer.mark(view)
        action = np.asarray(self._act(observer.present(), observer.mask), np.float64).reshape(-1)
        return observer.targets(action)[0]
