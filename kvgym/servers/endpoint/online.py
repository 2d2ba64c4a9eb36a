"""A run with requests that arrive while it goes on: the engine never passes a moment that the caller has not reached.

The tables of a run have a row per request. Here the rows are written when a request arrives; until then the arrival is
at infinity. The horizon is the present: the engine makes no decision from there on, and goes on when it has moved. So
every decision is the one of a run that knows all requests beforehand. With a prefix cache, a request also brings its
tokens as texts: blocks of equal tokens after equal tokens get equal numbers, and the tables of them grow.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.checked_build import guarded
from kvgym.errors import ConfigError
from kvgym.experiments.resolving import resolve_policy
from kvgym.policies.policy import Policy
from kvgym.policies.runner import check_needs, prepare_run, steps_of
from kvgym.simulator.system import System
from kvgym.simulator.tables import CONTENT, UNKNOWN, WAIT
from kvgym.workloads.table import RequestTable

MOST = 100_000
"""Requests of one run: its tables and the policy's memory are allocated once."""


class Tokens(NamedTuple):
    """The tokens of one batch.

    Attributes:
        time: when they are delivered, seconds.
        request_id: int64, requests that get a token, at most one each.
        finished: int64, those of them that get their last one.
    """

    time: float
    request_id: NDArray[np.int64]
    finished: NDArray[np.int64]


class OnlineRun:
    """A run of one worker with requests that :meth:`add` enters.

    Args:
        system: the worker.
        policy: the policy. If it needs predicted lengths, it gets the true ones.
        seed: seed of the policy's own randomness.
        most: most requests.

    Attributes:
        system: the worker.
        policy: the policy, with the defaults of the system.
        num_requests: requests so far.

    Raises:
        ConfigError: the system has several workers or closed sessions, or the policy needs classes.
    """

    def __init__(self, system: System, policy: Policy, *, seed: int = 0, most: int = MOST) -> None:
        if system.workers:
            raise ConfigError(
                f"{len(system.all_workers)} workers: a run with requests that are not known beforehand has one worker"
            )
        if system.sessions != "open":
            raise ConfigError(
                f"sessions = {system.sessions}: the caller of this run decides when the next turn arrives; set "
                "sessions to open"
            )
        longest = max(1, system.usable_capacity - 1)
        known = {"predicted_length", "length_interval"} & policy.info.needs
        names = ("predicted_output_len", "predicted_low", "predicted_high") if known else ()
        lengths: dict[str, Any] = dict.fromkeys(("output_len", *names), np.full(most, longest))
        table = RequestTable.from_columns(arrival_time=np.zeros(most), prompt_len=np.ones(most), **lengths)
        check_needs(policy, table)
        self.policy = resolve_policy(policy, system, table)
        self._simulation, self._copies = prepare_run(system, table, self.policy, seed=seed)
        self._simulation.workload["arrival_time"] = math.inf
        self._lengths = (
            "output_len",
            *(["predicted_len", "predicted_low", "predicted_high"] if known else []),
        )
        self.system, self._iteration, self.num_requests = system, 0, 0
        self._contents: dict[bytes, int] = {}
        self._num_units = 0  # of all chains

    @property
    def worker(self) -> Any:
        """The record of the worker, dtype WORKER."""
        return self._simulation.worker

    def warm_up(self) -> None:
        """Compile and load what the run needs, so that its first decisions take no longer than others."""
        other = OnlineRun(self.system, copy.deepcopy(self.policy), most=1)
        other.add(0.0, 1, 1)
        other.advance(1.0)

    def add(self, time: float, prompt_len: int, output_len: int, tokens: Sequence[str] = ()) -> int:
        """Enter a request and return its number.

        Args:
            time: its arrival, seconds; not before an earlier one, nor before the end of the last :meth:`advance`.
            prompt_len: tokens.
            output_len: tokens.
            tokens: of the prompt and then of the output, for the prefix cache; those that are not known are missing.

        Raises:
            WorkloadError: it can never be served.
            ConfigError: the run has as many requests as it can have.
        """
        i, workload = self.num_requests, self._simulation.workload
        if i == len(workload):
            raise ConfigError(f"{i:,} requests have been served, the most of one run; start another")
        self.system.check_fits(
            RequestTable.from_columns(arrival_time=[time], prompt_len=[prompt_len], output_len=[output_len])
        )
        workload["prompt_len"][i] = prompt_len
        for name in self._lengths:
            workload[name][i] = output_len
        workload["arrival_time"][i] = time
        if self.system.prefix_unit:
            self._enter_chain(i, tokens)
        self.num_requests += 1
        return i

    def _enter_chain(self, i: int, tokens: Sequence[str]) -> None:
        """Write the chain of a request into the tables of the prefix cache."""
        simulation: Any = self._simulation
        unit, name, chain = self.system.prefix_unit, b"", []
        for k in range(len(tokens) // unit):
            text = "\n".join(tokens[k * unit : (k + 1) * unit])
            name = hashlib.blake2b(name + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            chain.append(self._contents.setdefault(name, len(self._contents)))
        first, self._num_units = self._num_units, self._num_units + len(chain)
        blank = np.zeros((), CONTENT)
        blank["unit"] = blank["waiting"] = UNKNOWN
        self._grow("contents", len(self._contents), blank)
        for table in ("chain", "held"):
            self._grow(table, self._num_units, 0)
        simulation.chain[first : self._num_units] = chain
        prefix = simulation.prefix[i : i + 1]
        prefix["chain"], prefix["held"], prefix["length"] = first, first, len(chain)

    def _grow(self, name: str, length: int, blank: Any) -> None:
        """Give a table at least a number of rows."""
        simulation = self._simulation
        table = getattr(simulation, name)
        if table.shape[-1] < length:
            larger = np.full((*table.shape[:-1], max(2 * length, 1024)), blank, table.dtype)
            larger[..., : table.shape[-1]] = table
            setattr(simulation, name, guarded(larger))
            simulation._addresses = None

    def cached(self, i: int) -> int:
        """Return the prompt tokens that a request which has started found in the prefix cache; 0 without one."""
        if not self.system.prefix_unit:
            return 0
        simulation: Any = self._simulation
        left = int(simulation.prefix["to_prefill"][i])
        return max(int(simulation.workload["prompt_len"][i]) - left, 0)

    def advance(self, until: float) -> list[Tokens]:
        """Make all decisions before a moment, and return the tokens of their batches, which may end later.

        Args:
            until: seconds; all requests that arrive before have been entered.

        Raises:
            RunError: the policy makes no progress, or its decision is not possible.
        """
        self._simulation.problem["horizon"] = until
        found: list[Tokens] = []
        for _ in steps_of(self._simulation, self.policy, self._copies):
            found += self._delivered()
        return found + self._delivered()

    @property
    def due(self) -> float:
        """When the next decision is due, seconds; inf = not before another request is entered."""
        simulation = self._simulation
        w, decision, problem = self.worker, simulation.decision[0], simulation.problem[0]
        i, reached = int(simulation.tracker[0]["next_arrival"]), math.inf
        if i < self.num_requests:  # the engine's API still has it
            reached = float(simulation.workload["arrival_time"][i] + problem["api_time"])
        if w["num_active"] == w["num_waiting"] == 0:
            return reached
        waits = decision["act"] == WAIT and w["clock"] == problem["horizon"]
        return min(float(decision["wait_until"]), reached) if waits else float(w["clock"])

    def _delivered(self) -> list[Tokens]:
        """Return the tokens of the last batch, unless they have been returned."""
        w = self.worker
        if w["iteration"] == self._iteration:
            return []
        self._iteration = int(w["iteration"])
        end = float(w["last_batch_end"])
        slots = self._simulation.active[0, : w["num_active"]]
        finished = self._simulation.finished[0, : w["num_finished"]].astype(np.int64)
        ongoing = slots["request_id"][slots["last_token_time"] == end]
        return [Tokens(end, np.concatenate([ongoing, finished]), finished)]
