"""A policy or router that decides in a process of its own: the caller simulates and asks it for every decision.

The process gets what the candidate may observe and answers with decisions, so nothing that it prints, patches or
imports becomes a score; the caller's engine refuses impossible decisions. See :mod:`kvgym.studies.benchmark.candidate`.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np

from kvgym.errors import ConfigError, RunError
from kvgym.policies.policy import Decision, Policy, PolicyInfo, SystemInfo
from kvgym.policies.routing import Router, RouterInfo
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.view import ClusterView, SystemView, simulation_of
from kvgym.studies.benchmark.candidate import POINT
from kvgym.studies.benchmark.observed import Shown
from kvgym.studies.benchmark.process import LostError, Process, in_a_line


class Asking:
    """Questions about the runs of a candidate.

    Args:
        process: its process.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._shown: Shown | None = None

    def reset(self, kind: bytes, *arguments: Any) -> None:
        """Reset a policy or the router for a new run."""
        self._shown = None
        self._process.ask(kind, pickle.dumps(arguments))

    def ask(self, simulation: Simulation, kind: bytes, content: bytes = b"") -> dict[str, Any]:
        """Return the answer to a question about the present state of a simulation.

        Raises:
            RunError: the candidate failed in this run.
            LostError: the process is lost.
        """
        if self._shown is None:
            self._shown = Shown(simulation)
            self._process.ask(b"S", pickle.dumps(self._shown.outline()))
        return self._process.ask(kind, content + self._shown.changes())


def _unnamed(seed: np.random.SeedSequence) -> np.random.SeedSequence:
    """Return a seed that does not name the run's own, as a candidate could sample its requests."""
    return np.random.SeedSequence(seed.generate_state(4).tolist())


class RemotePolicy(Policy):
    """The policy of a candidate.

    Args:
        asking: asks its process.
        info: what it has said of itself.
        worker: number of the worker that it decides for.
    """

    def __init__(self, asking: Asking, info: PolicyInfo, worker: int = 0) -> None:
        self.info = info  # type: ignore[misc]
        self._asking, self._worker, self._copies = asking, worker, 0

    def hyperparameters(self) -> dict[str, Any]:
        """Return nothing: they stay in its process."""
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> RemotePolicy:
        """Return the policy of the next worker."""
        self._copies += 1
        return RemotePolicy(self._asking, self.info, self._copies)

    def reset(self, system: SystemInfo) -> None:
        """Reset the policy."""
        self._copies = 0
        self._asking.reset(b"P", self._worker, replace(system, seed=_unnamed(system.seed)))

    def schedule(self, view: SystemView) -> Decision:
        """Return the policy's decision."""
        answer = self._asking.ask(simulation_of(view), b"D")
        try:
            return Decision(
                admit=answer["admit"],
                evict=answer["evict"],
                tokens=dict(answer["tokens"]),
                wait_until=answer["wait_until"],
                put_back=answer["put_back"],
            )
        except (KeyError, TypeError, ValueError):
            raise LostError("its process wrote what is no decision") from None


class RemoteRouter(Router):
    """The router of a candidate.

    Args:
        asking: asks its process.
        info: what it has said of itself.
        reassigns: whether it moves requests.
    """

    def __init__(self, asking: Asking, info: RouterInfo, reassigns: bool) -> None:
        self.info = info  # type: ignore[misc]
        self.reassigns = reassigns
        self._asking = asking

    def hyperparameters(self) -> dict[str, Any]:
        """Return nothing: they stay in its process."""
        return {}

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        """Reset the router."""
        self._asking.reset(b"T", num_workers, _unnamed(seed))

    def route(self, view: ClusterView) -> int:
        """Return the router's worker."""
        return self._answer(view)

    def reassign(self, view: ClusterView) -> tuple[int, int] | None:
        """Return the router's move."""
        move, count = self._answer(view), len(simulation_of(view).workers)
        return None if move < 0 else divmod(move, count)

    def _answer(self, view: ClusterView) -> int:
        boundary = -1 if view.boundary is None else view.boundary
        point = POINT.pack(view.request_id, *view.span, boundary)
        answer = self._asking.ask(simulation_of(view), b"R", point).get("answer")
        if not isinstance(answer, int):
            raise LostError("its process wrote what is no decision")
        return answer


def remote(process: Process) -> RemotePolicy | RemoteRouter:
    """Return the policy or router of a process.

    Raises:
        LostError: it could not be loaded.
    """
    asking = Asking(process)
    try:
        said = process.ask(b"I")
        if said["role"] == "router":
            return RemoteRouter(
                asking, RouterInfo(name=said["name"], summary="a candidate"), said["reassigns"] is True
            )
        needs, uses = frozenset(said["needs"]), frozenset(said["uses"])
        advice = in_a_line(said["livelock_advice"])
        info = PolicyInfo(
            said["name"], "a candidate", needs=needs, uses=uses, evicts=True, pauses=True, chunks_prefill=True,
            livelock_advice=advice,
        )  # fmt: skip
    except RunError as error:
        raise LostError(f"it could not describe itself: {error}") from None
    except (KeyError, TypeError, ConfigError) as error:
        raise LostError(f"its process wrote what is no description: {in_a_line(error)}") from None
    return RemotePolicy(asking, info)
