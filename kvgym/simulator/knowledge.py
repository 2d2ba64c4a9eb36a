"""Settings of what the routers and the autoscaler of a cluster know of its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvgym.errors import ConfigError, shown
from kvgym.utils.arguments import explained_class
from kvgym.utils.checks import real_number, whole_number

VIEWS = ("exact", "scraped", "inflight", "both")
EXACT, SCRAPED, INFLIGHT, BOTH = range(4)

MOST_LATE = 100
"""Most intervals by which a scrape may be late."""


@explained_class
@dataclass(frozen=True)
class Knowledge:
    """What routers and an autoscaler know of the workers.

    A scrape is a snapshot of all workers: queue, active requests, memory, unfinished requests and their tokens, prompt
    tokens to be computed. There is one at ``offset + m · interval`` for all m ≥ 0, after the arrivals of that time,
    and it is known ``delay`` later. Before the first one, all figures are 0.

    Attributes:
        view: what routers know of the workers. ``"exact"``: their state at that moment. ``"scraped"``: the last scrape
            that has arrived. ``"inflight"``: only what the router itself has sent and what has not ended since, as
            waiting requests with their prompts in memory. ``"both"``: the last scrape, and what the router has sent
            since then. Prefix caches are known as of the scrape in ``"scraped"`` and ``"both"``, unless
            ``System.cache_staleness`` says how late they are; of several changes the earlier ones are overlooked.
        routers: number of equal routers. Request i belongs to router i mod this number, with sessions all requests of
            session s to router s mod this number. Each has its own state and its own counts.
        interval: seconds between scrapes, which autoscalers see as well; 0 = the present, None = no scrapes.
        delay: seconds until a scrape is known.
        offset: time of the first scrape, seconds.
    """

    view: str = "exact"
    routers: int = 1
    interval: float | None = None
    delay: float = 0.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value out of range, with the valid ones.
        """
        if self.view not in VIEWS:
            raise ConfigError(f"router_view = {shown(self.view)}; valid: {', '.join(VIEWS)}")
        whole_number(self.routers, "routers", "1 … 1,000", most=1_000)
        for name in ("delay", "offset"):
            real_number(getattr(self, name), name, "seconds, 0 … 1e6", lambda x: 0 <= x <= 1e6)
        if self.interval is not None:
            expected = "seconds, 0.001 … 1e6, or 0 for the present"
            real_number(self.interval, "interval", expected, lambda x: x == 0 or 1e-3 <= x <= 1e6)
        if self.view in ("scraped", "both") and self.interval is None:
            raise ConfigError(
                f"router_view = {self.view} needs an interval of scrapes; set one, as in scrape = 5s"
            )
        if self.delay > MOST_LATE * (self.interval or 0.0):
            raise ConfigError(
                f"delay = {shown(self.delay)} s of scrapes every {shown(self.interval)} s; expected at most "
                f"{MOST_LATE} intervals"
            )

    @property
    def code(self) -> int:
        """The view as routers have it: EXACT, SCRAPED, INFLIGHT or BOTH; scrapes without interval are exact."""
        code = VIEWS.index(self.view)
        return EXACT if code in (SCRAPED, BOTH) and not self.interval else code

    @property
    def slots(self) -> int:
        """Scrapes that are kept: the last that has arrived, those on their way, and one that is taken."""
        return int(self.delay // self.interval) + 3 if self.interval else 0

    def check_router(self, router: Any) -> None:
        """Check that a router can work with it.

        Raises:
            ConfigError: it moves requests, or reads what only an exact view has.
        """
        if (self.code != EXACT or self.routers > 1) and (router.reassigns or router.exact):
            why = "moves requests by what workers have at that moment" if router.reassigns else "is an agent"
            raise ConfigError(
                f"router {shown(router.info.name)} {why}; it needs router_view = exact and routers = 1"
            )

    @property
    def text(self) -> str:
        """A few words: ``4 routers know scrapes every 5 s and their own counts``."""
        late = f", {self.delay:g} s late" if self.delay else ""
        scrapes = f"scrapes every {self.interval or 0:g} s{late}"
        known = {
            "exact": "the present", "scraped": scrapes, "inflight": "their own counts",
            "both": f"{scrapes} and their own counts",
        }  # fmt: skip
        if self.routers == 1:
            return f"a router that knows {known[self.view].replace('their', 'its')}"
        return f"{self.routers} routers that know {known[self.view]}"
