"""Routers of a cluster: which worker serves a request, and which requests move."""

from kvgym.baselines.routing import prefix_caches, rebalancing, routers, sessions, weighted

__all__ = ["prefix_caches", "rebalancing", "routers", "sessions", "weighted"]
