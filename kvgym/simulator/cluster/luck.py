"""What is drawn in a fleet: start-up times, lives of workers, patience of users.

Each draw has a seed of its own, so equal starts, lives and requests meet the same luck under every autoscaler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvgym.simulator.fleet import Fleet


class StartUps:
    """Start-up times: a call with a place and the number of its start returns its seconds, see :class:`Pool`.

    Args:
        fleet: the fleet.
        seed: of the draws.
    """

    def __init__(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        self._pools = [fleet.pools[g] for g in fleet.pool_of]
        self._seed = seed

    def __call__(self, place: int, start: int) -> float:
        """Return the start-up time of a place."""
        pool = self._pools[place]
        if pool.sigma == 0:
            return pool.startup
        spread = own_draw(self._seed, place, start).standard_normal()
        return float(pool.startup * np.exp(pool.sigma * spread))


class Lives:
    """Lives of workers: a call with a place and the number of its life returns the seconds until it fails.

    Args:
        fleet: the fleet.
        seed: of the draws.
    """

    def __init__(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        self._mtbf, self._seed = fleet.failures.mtbf, seed

    def __call__(self, place: int, life: int) -> float:
        """Return the life of a worker."""
        return (
            math.inf
            if self._mtbf == math.inf
            else self._mtbf * own_draw(self._seed, place, life).exponential()
        )


class Crowd:
    """The users of a run.

    Args:
        fleet: the fleet.
        patience: seed of their patience.
        again: seed of whether they try again.
    """

    def __init__(self, fleet: Fleet, patience: np.random.SeedSequence, again: np.random.SeedSequence) -> None:
        self._users, self._patience, self._again = fleet.users, patience, again

    def patience(self, n: int) -> NDArray[np.float64]:
        """Return the patience of the users of requests 0 … n - 1, seconds."""
        users = self._users
        if users.sigma == 0 or users.patience == math.inf:
            return np.full(n, users.patience)
        spread = np.random.default_rng(self._patience).standard_normal(n)
        return np.asarray(users.patience * np.exp(users.sigma * spread))

    def tries_again(self, request: int, tries: int) -> bool:
        """Return whether the user of a request tries again, after a number of further tries."""
        p = self._users.again
        if tries >= self._users.most or p == 0:
            return False
        return bool(p == 1 or own_draw(self._again, request, tries).random() < p)


DRAWN = ("startup", "failures", "patience", "again")
"""Names of the random streams of a fleet."""


class Luck:
    """All that is drawn in a run of a fleet.

    Args:
        fleet: the fleet.
        seeds: of the streams :data:`DRAWN`.

    Attributes:
        startup: start-up times.
        life: lives of workers.
        crowd: the users.
    """

    def __init__(self, fleet: Fleet, seeds: Mapping[str, np.random.SeedSequence]) -> None:
        self.startup = StartUps(fleet, seeds["startup"])
        self.life = Lives(fleet, seeds["failures"])
        self.crowd = Crowd(fleet, seeds["patience"], seeds["again"])


def own_draw(seed: np.random.SeedSequence, *key: int) -> np.random.Generator:
    """Return a generator for a single draw."""
    own = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, *key))
    return np.random.default_rng(own)
