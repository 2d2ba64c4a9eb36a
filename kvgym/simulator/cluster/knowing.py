"""What routers and autoscalers know, in plain Python: the tables of a run, and views of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.checked_build import guarded
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import ConfigError
from kvgym.simulator.batch_time import RoughFigures
from kvgym.simulator.cluster.knowledge import arrive, clear, owner, router_view
from kvgym.simulator.cluster.router_view import RouterView
from kvgym.simulator.cluster.tables import KNOWER, KNOWLEDGE, SENDING, open_cluster
from kvgym.simulator.knowledge import BOTH, EXACT, INFLIGHT
from kvgym.simulator.system import System
from kvgym.simulator.tables import UNKNOWN, WORKER
from kvgym.simulator.view import ClusterView

MOST_ROWS = 4_000_000
"""Most rows of ``seen``, about 2 GB."""

TABLES = ("knowledge", "seen", "seen_backlog", "taken_at", "knowers", "sent")


def knowledge_tables(system: System, workers: NDArray[Any], num_requests: int) -> dict[str, NDArray[Any]]:
    """Return the tables of :data:`TABLES`; empty where routers and autoscalers know the present.

    Raises:
        ConfigError: they are too large.
    """
    settings, r = system.knowledge, len(workers)
    mode, routers, slots = (
        (EXACT, 1, 0) if settings is None else (settings.code, settings.routers, settings.slots)
    )
    knowing = routers if mode in (INFLIGHT, BOTH) else 0
    rows = (knowing + slots + (routers * slots if mode == BOTH else 0)) * r
    if rows > MOST_ROWS:
        raise ConfigError(
            f"{routers} routers of {r} workers with {slots} scrapes on their way need {rows:,} rows of workers; "
            f"expected at most {MOST_ROWS:,}: take fewer routers, or scrapes that are less late"
        )
    used = mode != EXACT or routers > 1 or slots > 0
    knowledge, seen = np.zeros(int(used), KNOWLEDGE), np.zeros(rows, WORKER)
    if used and settings is not None:
        k = knowledge[0]
        k["mode"], k["routers"], k["slots"], k["first_scrape"] = mode, routers, slots, knowing
        k["interval"], k["delay"], k["offset"] = settings.interval or 0.0, settings.delay, settings.offset
        k["next"] = settings.offset if slots else np.inf
    seen["queue_head"] = seen["queue_tail"] = UNKNOWN
    for name in ("index", "role"):
        seen[name] = np.tile(workers[name], rows // r)
    sent = np.zeros(num_requests if mode != EXACT else 0, SENDING)
    sent["worker"] = UNKNOWN
    found = {
        "knowledge": knowledge, "seen": seen, "seen_backlog": np.zeros(rows, np.int64),
        "taken_at": np.full(slots, -np.inf), "knowers": np.zeros(routers if used else 0, KNOWER), "sent": sent,
    }  # fmt: skip
    return {name: guarded(table) for name, table in found.items()}


def write_figures(system: System, problem: NDArray[Any]) -> None:
    """Write the approximate durations of batches, which routers know of every worker, into the settings of a run."""
    for name, column in zip(RoughFigures._fields, system.rough_figures.T, strict=True):
        problem[f"batch_{name}"] = column


def with_states_of(memory: tuple[Any, Any], others: Sequence[Any], num_workers: int) -> tuple[Any, Any]:
    """Return parameters and state of compiled routers: those of the first, with the states of the others behind it."""
    rules = [router.compiled_rule(num_workers) for router in others]
    states = [rule[2][1] for rule in rules if rule is not None]
    return (memory[0], guarded(np.concatenate([memory[1], *states]))) if states else memory


def router_of_request(addresses: tuple[Any, ...], i: int) -> int:
    """Return the router that request ``i`` belongs to; addresses of the tables as of ``ClusterSimulation``."""
    return int(uncompiled(owner)(uncompiled(open_cluster)(*addresses), i))


def python_router_view(addresses: tuple[Any, ...], view: ClusterView) -> RouterView:
    """Return the view of a router for uncompiled code; addresses of the tables as of ``ClusterSimulation``."""
    boundary = UNKNOWN if view.boundary is None else view.boundary
    cluster = uncompiled(open_cluster)(*addresses)
    found: RouterView = uncompiled(router_view)(cluster, view.request_id, *view.span, boundary)
    return found


class Seen(NamedTuple):
    """What is known of the workers: the last scrape that has arrived.

    Attributes:
        time: when it was taken, seconds; inf: it is the present.
        workers: WORKER (r,).
        backlog: int64 (r,), prompt tokens that they have to compute; None for the present.
    """

    time: float
    workers: NDArray[Any]
    backlog: NDArray[np.int64] | None


def last_scrape(simulation: Any) -> Seen:
    """Return the last scrape of a :class:`~kvgym.simulator.cluster.simulation.ClusterSimulation` that has arrived."""
    if not len(simulation.taken_at):
        return Seen(np.inf, simulation.workers, None)
    cluster, s = uncompiled(open_cluster)(*simulation.addresses()), simulation.knowledge[0]
    uncompiled(arrive)(cluster, float(simulation.tracker[0]["clock"]))
    slot, r = int(s["arrived"] % s["slots"]), len(simulation.workers)
    rows = slice((int(s["first_scrape"]) + slot) * r, (int(s["first_scrape"]) + slot + 1) * r)
    return Seen(float(simulation.taken_at[slot]), simulation.seen[rows], simulation.seen_backlog[rows])


def forget_worker(simulation: Any, k: int) -> None:
    """Forget what is known of a place, as a worker has started there: it has no sample yet."""
    rows = range(k, len(simulation.seen), len(simulation.workers))
    if rows:
        cluster = uncompiled(open_cluster)(*simulation.addresses())
        for at in rows:
            uncompiled(clear)(cluster, at)
        simulation.seen["role"][rows] = simulation.workers["role"][k]  # it may have another role now
