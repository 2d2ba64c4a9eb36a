"""Routers in the routing environment, and agents as routers.

:func:`play_router` runs any router in the environment for an episode. :class:`AgentRouter` is the reverse: it wraps
any model with Stable-Baselines3's ``predict`` as a router for :func:`kvgym.simulate`, with observations from the same
compiled function.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.envs.playing import Player, Predictor, content_of
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.routing.observer import Observer, shortest_queue
from kvgym.envs.routing.players import router_player
from kvgym.errors import ConfigError, shown
from kvgym.policies.routing import Router, RouterInfo
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.view import ClusterView, simulation_of
from kvgym.utils.arguments import explained


@explained
def play_router(
    env: RoutingEnv, router: str | Router, *, workload_seed: int = 0
) -> tuple[SimulationResult, float]:
    """Run a router in an environment for one episode.

    The records equal those of ``simulate(env.system, table, policy, router=router, seed=workload_seed)`` with the
    requests of the seed, unless a livelock truncates the episode, for which ``simulate`` raises an error.

    Args:
        env: the environment, unwrapped.
        router: a router or its name.
        workload_seed: seed of the requests, the schedulers and the router.

    Returns:
        The records of the episode, and the undiscounted return.

    Raises:
        ConfigError: the router chose a worker that is not a candidate.
    """
    act = router_player(env, router, seed=workload_seed)
    observation, _ = env.reset(seed=workload_seed, options={"workload_seed": workload_seed})
    total, ended = 0.0, False
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(act(observation, env.action_masks()))
        total += reward
        ended = terminated or truncated
    return env.result(), total


class AgentRouter(Router):
    """An agent trained in ``kvgym/Route-v0``, as a router for ``simulate``.

    A choice outside the mask is replaced as in the environment: by the candidate with the fewest unfinished
    requests.

    Args:
        model: object with ``predict(observation, deterministic=True)``; gets ``action_masks=`` and ``state=`` if it
            accepts them.
        name: label in results.
        **arguments: the environment arguments with which the agent was trained.
    """

    info = RouterInfo(name="agent", summary="a learned router")
    exact = True

    @explained
    def __init__(self, model: Predictor, *, name: str = "agent", **arguments: Any) -> None:
        self.model = model
        self.config = RoutingConfig.of(**arguments)
        self.info = RouterInfo(name=name, summary=f"{type(model).__name__} as a router")  # type: ignore[misc]
        # The agent keeps the observation scales of its training on any cluster.
        scenario = self.config.make_scenario()
        workload, system = scenario.make_workload(), scenario.make_system()
        settings = self.config.make_settings(system, len(workload.sample(0)), workload.mean_rate)
        self._observer = Observer(self.config, settings, len(system.all_workers))
        self._simulation: ClusterSimulation | None = None

    def hyperparameters(self) -> dict[str, Any]:
        """Return nothing: the name identifies the agent."""
        return {}

    def content(self) -> dict[str, Any]:
        """Return the identity of the agent: its environment and a hash of its model."""
        return {"environment": str(self.config), "model": content_of(self.model)}

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        """Prepare for a new run.

        Raises:
            ConfigError: the number of workers differs from that in training.
        """
        if num_workers != self._observer.num_workers:
            raise ConfigError(
                f"router {shown(self.info.name)} was trained with {self._observer.num_workers} workers; this cluster "
                f"has {num_workers}"
            )
        self._simulation, self._act = None, Player(self.model)

    def route(self, view: ClusterView) -> int:
        """Return the agent's choice, or the shortest queue if that is not a candidate."""
        simulation = simulation_of(view)
        if simulation is not self._simulation:
            self.config.check_information(simulation.table)
            self._simulation = simulation
            self._observer.attach(simulation)
        observer = self._observer
        observer.update()
        worker = int(np.asarray(self._act(observer.present(), observer.mask)).reshape(()))
        return worker if worker in view.candidates else shortest_queue(view)
