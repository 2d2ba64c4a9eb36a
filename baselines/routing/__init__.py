"""Routers of a cluster: which worker serves a request, and which requests move."""

from kvgym.baselines.routing import rebalancing, routers, weighted

__all__ = ["rebalancing", "routers", "weighted"]
