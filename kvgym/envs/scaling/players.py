"""Autoscalers as functions that act in the scaling environment."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.recordable import Act
from kvgym.envs.scaling.observer import ScalingObserver
from kvgym.policies.scaling import Autoscaler, make_autoscaler
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.fleet import Fleet
from kvgym.utils.seeding import stream_seed
from kvgym.utils.user_code import calling


class Scaled(Protocol):
    """The attributes of :class:`~kvgym.envs.scaling.environment.ScalingEnv` that an autoscaler needs."""

    fleet: Fleet
    observer: ScalingObserver

    @property
    def view(self) -> FleetView:
        """The fleet as an autoscaler observes it."""
        ...

    def reveal(self, needs: frozenset[str]) -> None:
        """Observe more from the next episode on."""
        ...


def autoscaler_player(env: Scaled, autoscaler: str | Autoscaler, *, seed: int = 0) -> Act:
    """Return an autoscaler as a function of observation and mask, which ignores both and reads the fleet.

    It is asked at every action, whatever interval it has of its own, from the size at the start of the fleet; ``fixed``
    moves to its size as fast as actions allow. Of its targets, the nearest that the action can express is taken.

    Args:
        env: the environment, unwrapped; from its next episode on the player observes what it needs.
        autoscaler: an autoscaler or its name; a copy is reset, and serves for one episode.
        seed: seed of its random numbers.
    """
    chosen = copy.copy(make_autoscaler(autoscaler))
    with calling(chosen, "autoscaler", "reset"):
        chosen.reset(env.fleet, stream_seed(seed, "autoscaler"))
    env.reveal(chosen.needs)
    with calling(chosen, "autoscaler", "initial"):
        initial = chosen.initial(env.fleet)
    waits = chosen.next_time(-np.inf) == np.inf  # never asked: a constant size

    def act(observation: Any, mask: Any) -> NDArray[np.int64]:
        if waits:
            return env.observer.action_of(initial)
        with calling(chosen, "autoscaler", "scale"):
            return env.observer.action_of(chosen.scale(env.view))

    return act
