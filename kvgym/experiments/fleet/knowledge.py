"""What routers and autoscalers know of the workers, in scenarios and options."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from pydantic import ConfigDict

from kvgym.errors import ConfigError, shown
from kvgym.simulator.knowledge import Knowledge
from kvgym.utils.reading import Description
from kvgym.utils.specs import parse_seconds

Scrape = float | str | dict[str, float | str]
"""Scrapes: an interval in seconds or with a unit, ``"5s+1s"`` with a delay, or ``{interval, delay, offset}``."""


def scrape_of(given: Scrape) -> dict[str, float]:
    """Return interval, delay and offset of scrapes, seconds.

    Raises:
        ConfigError: the description is wrong.
    """
    if isinstance(given, dict):
        if not {"interval"} <= given.keys() <= {"interval", "delay", "offset"}:
            raise ConfigError(
                f"scrape = {shown(given)}; expected an interval, as in 5s, with a delay 5s+1s, or interval, delay and "
                "offset"
            )
        return {name: parse_seconds(value, f"scrape: {name}") for name, value in given.items()}
    interval, _, delay = str(given).partition("+")
    found = {"interval": parse_seconds(interval, "scrape")}
    return {**found, "delay": parse_seconds(delay, "scrape: delay")} if delay else found


class KnowledgeSettings(Description):
    """What routers and an autoscaler know of the workers, see :class:`~kvgym.simulator.knowledge.Knowledge`.

    Attributes:
        router_view: ``"exact"``, ``"scraped"``, ``"inflight"`` or ``"both"``.
        routers: number of routers.
        scrape: scrapes of the workers: ``"5s"``, with a delay ``"5s+1s"``, or
            ``{interval: 5s, delay: 1s, offset: 0s}``; None = there are none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    router_view: str = "exact"
    routers: int = 1
    scrape: Scrape | None = None

    def knowledge(self) -> Knowledge:
        """Return the settings of a system.

        Raises:
            ConfigError: a value out of range.
        """
        scrape = {} if self.scrape is None else scrape_of(self.scrape)
        return Knowledge(self.router_view, self.routers, **scrape)


class Knowing(Protocol):
    """What is needed of a :class:`~kvgym.experiments.scenario.Scenario`."""

    @property
    def knowledge(self) -> KnowledgeSettings | None:
        """What routers know."""
        ...

    def override(self: S, **changes: Any) -> S:
        """Return the scenario with some fields replaced."""
        ...


S = TypeVar("S", bound=Knowing)


def with_knowledge(scenario: S, router_view: str | None, routers: int | None, scrape: str | None) -> S:
    """Return a scenario with other knowledge; None = as it is."""
    given = {"router_view": router_view, "routers": routers, "scrape": scrape}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        return scenario
    own = {} if scenario.knowledge is None else scenario.knowledge.model_dump()
    return scenario.override(knowledge={**own, **changes})
