"""Routers of a cluster: which worker serves a request, and which requests move."""

from kvgym.baselines.routing import (
    conditional,
    prefix_caches,
    rebalancing,
    routers,
    sessions,
    shedding,
    weighted,
)

__all__ = ["conditional", "prefix_caches", "rebalancing", "routers", "sessions", "shedding", "weighted"]
