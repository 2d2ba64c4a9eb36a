"""Example of a router that moves waiting requests, see docs/routing.md.

Importing the module registers ``stealing``.
"""

from __future__ import annotations

from typing import Any

from kvgym.policies.routing import Router, RouterInfo, register_router


@register_router
class Stealing(Router):
    """Assign workers in turn; an idle worker takes the last request of the longest queue."""

    info = RouterInfo(name="stealing", summary="workers in turn; idle ones steal")
    reassigns = True

    def reset(self, num_workers: int, seed: int) -> None:
        """Start a run."""
        self.turn = -1

    def route(self, view: Any) -> int:
        """Return the next worker in turn."""
        self.turn += 1
        return view.candidates[self.turn % len(view.candidates)]

    def reassign(self, view: Any) -> tuple[int, int] | None:
        """Return a request and its new worker, or None."""
        waiting, active = view.column("num_waiting"), view.column("num_active")
        longest = int(waiting.argmax())
        if waiting[view.boundary] + active[view.boundary] > 0 or waiting[longest] == 0:
            return None  # nothing (more) to move
        return int(view.waiting(longest).request_id[-1]), view.boundary
