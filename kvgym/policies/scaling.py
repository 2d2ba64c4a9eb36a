"""The interface of autoscalers, which choose how many workers each pool of a fleet has.

An autoscaler is asked at times that it names, and answers a target for each pool. The fleet then starts and drains
workers until it agrees with the targets, see :mod:`kvgym.simulator.cluster.members`. It is plain Python: it is asked
every few seconds of simulated time, so compiled code would gain nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from kvgym.errors import ConfigError, shown
from kvgym.policies.hyperparameters import Declaring, dataclass_transform
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.cluster.fleet_view import PoolView as PoolView
from kvgym.simulator.fleet import Fleet
from kvgym.utils.arguments import explained
from kvgym.utils.factory import EntryInfo, Factory
from kvgym.utils.registry import import_package

AUTOSCALER_NEEDS = {
    "tokens": "prompt tokens that are queued, and output tokens of finished requests",
    "arrivals_ahead": "the rates of all arrivals, those to come included",
}
"""What an autoscaler may need beyond counters of the workers."""


@dataclass(frozen=True)
class AutoscalerInfo(EntryInfo):
    """Description of an autoscaler.

    Attributes:
        needs: what it observes beyond counters of the workers, of :data:`AUTOSCALER_NEEDS`.
        weight: its one hyperparameter to be tuned: a number > 0, of which a larger one wants fewer workers; "" = none.
    """

    what = "autoscaler"

    needs: frozenset[str] = frozenset()
    weight: str = ""

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ConfigError: one has another type, or there is no such need.
        """
        super().__post_init__()
        if unknown := sorted(self.needs - AUTOSCALER_NEEDS.keys()):
            raise ConfigError(
                f"autoscaler {shown(self.name)}: needs = {shown(unknown[0])}; valid: {', '.join(AUTOSCALER_NEEDS)}"
            )

    @property
    def clairvoyant(self) -> bool:
        """Whether it observes what no autoscaler of a real fleet can: a reference."""
        return "arrivals_ahead" in self.needs


@dataclass_transform(kw_only_default=True)
class Autoscaler(Declaring, ABC):
    """Chooses the targets of a fleet's pools. Hyperparameters are declared as those of policies.

    Attributes:
        info: its description.
        interval: seconds between questions, unless the fleet says otherwise.
        label: its name in results; "" = its name and the hyperparameters that were given.
    """

    info: ClassVar[AutoscalerInfo]
    interval: float = 15.0
    label: str = ""
    _kind = "autoscaler"

    @property
    def needs(self) -> frozenset[str]:
        """What it observes beyond counters of the workers; settings may add to :attr:`AutoscalerInfo.needs`."""
        return self.info.needs

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Reset all state and prepare for a run. Randomness may come from ``seed`` only."""
        self._every = self.interval if fleet.control is None else fleet.control

    def initial(self, fleet: Fleet) -> Sequence[int]:
        """Return the workers of each pool that are ready at the start; by default as the pools say."""
        return [pool.count for pool in fleet.pools]

    def next_time(self, time: float) -> float:
        """Return when it is asked next, seconds; by default at the multiples of its interval, the first at 0.

        Args:
            time: the present question; -inf before the first.
        """
        return 0.0 if time < 0 else time + self._every

    @abstractmethod
    def scale(self, view: FleetView) -> Sequence[int]:
        """Return a target for each pool; the fleet limits them to least and most workers, and starts to its budget."""


_FACTORY: Factory[Autoscaler] = Factory(
    Autoscaler,
    AutoscalerInfo,
    "a name, with hyperparameters as in 'hpa:target=8', or an Autoscaler",
    partial(import_package, "kvgym.baselines"),
)

AUTOSCALERS = _FACTORY.registry
"""All autoscalers by name."""

A = TypeVar("A", bound=type[Autoscaler])


@explained
def register_autoscaler(cls: A) -> A:
    """Class decorator: register an autoscaler under ``cls.info.name``."""
    return _FACTORY.register(cls)


AutoscalerSource = Callable[[str], Autoscaler | None]
"""Makes the autoscaler that a text names; returns None for a text of another form."""


@explained
def register_autoscaler_source(
    source: AutoscalerSource, names: Callable[[], Iterable[str]] | None = None
) -> AutoscalerSource:
    """Register a source of autoscalers for :func:`make_autoscaler` in addition to registered names.

    Args:
        source: makes the autoscaler that a text names, or returns None.
        names: returns the names it knows, which messages list with the registered ones; None = none.
    """
    return _FACTORY.sources.add(source, names)


@explained
def make_autoscaler(spec: str | Autoscaler, **hyperparameters: Any) -> Autoscaler:
    """Return an autoscaler by name.

    Args:
        spec: a registered name, optionally with hyperparameters as in ``"name:key=value"``; or a learned autoscaler,
            see :func:`kvgym.agents.load_autoscaler`, unless a registered one has its name; an instance is returned as
            it is.
        **hyperparameters: override those in ``spec``.

    Raises:
        UnknownNameError: no autoscaler of that name.
        ConfigError: an unknown hyperparameter or a value out of range.
    """
    return _FACTORY.make(spec, hyperparameters)


def foresees(autoscaler: str | None) -> bool:
    """Return whether a spec is that of an autoscaler that knows the arrivals to come."""
    return autoscaler is not None and make_autoscaler(autoscaler).info.clairvoyant
