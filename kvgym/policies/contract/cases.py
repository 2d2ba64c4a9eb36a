"""Test cases of the contract: workloads, systems with every combination of engine settings, and shrinking."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvgym.batch_time import AffineBatchTime, BatchTimeModel, UnitBatchTime
from kvgym.errors import ContractError, LivelockError
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router, RouterInfo
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.system import FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE, System
from kvgym.simulator.tables import BUSY
from kvgym.simulator.view import ClusterView, simulation_of
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.forecasts import Forecasts
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

Make = Callable[[], Policy]
"""Returns a new policy at every call."""

TIMES: dict[str, BatchTimeModel] = {
    "unit": UnitBatchTime(),
    "affine": AffineBatchTime(0.31, 0.017, 0.023, 0.0011),
}
SETTINGS: list[dict[str, Any]] = [
    dict(zip(("first_token", "progress_on_evict", "requeue"), settings, strict=True))
    for settings in itertools.product(FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE)
]
"""All combinations of the engine's settings."""

SHRINK_BUDGET = 60
"""Runs spent on shrinking a failing case."""


@dataclass(frozen=True)
class Case:
    """A run on which a policy is checked.

    Attributes:
        table: the requests.
        system: worker or cluster.
        seed: seed of the policy's randomness.
    """

    table: RequestTable
    system: System
    seed: int = 0

    def text(self) -> str:
        """Return the system in one line and each request in another."""
        system = self.system
        settings = f"{system.first_token}, {system.progress_on_evict}, {system.requeue}, block_size={system.block_size}"
        settings += f", prefix cache of {system.prefix_unit}" if system.prefix_unit else ""
        columns = {"arrival_time": "at", "prompt_len": "prompt", "output_len": "output"}
        columns |= {"predicted_output_len": "predicted"}
        times = ", ".join(sorted({type(worker.batch_time).__name__ for worker in system.all_workers}))
        memory = "/".join(f"{worker.kv_capacity}" for worker in system.all_workers)
        lines = [f"kv_capacity={memory}, {times}, {settings}, seed={self.seed}; {len(self.table)} requests:"]
        for i in range(len(self.table)):
            values = ((text, getattr(self.table, name)) for name, text in columns.items())
            lines.append("  " + ", ".join(f"{text} {v[i]:g}" for text, v in values if v is not None))
        return "\n".join(lines)


def requests(
    seed: int = 0, n: int = 16, longest: int = 9, exact: bool = False, largest: int = 0
) -> RequestTable:
    """Return requests with every column.

    Args:
        seed: seed of lengths, arrivals, predictions and targets.
        n: number of requests.
        longest: longest output, tokens.
        exact: whether predictions are exact; otherwise they are off by at most 1.
        largest: prompt of the request in the middle, tokens; 0 = like the others, 1 to 8.
    """
    rng = np.random.default_rng(seed)
    output = rng.integers(1, longest + 1, n)
    guess = output if exact else np.maximum(1, output + rng.integers(-1, 2, n))
    arrival, prompt = np.floor(np.cumsum(rng.exponential(1.4, n))), rng.integers(1, 9, n)
    if largest:
        prompt[n // 2] = largest
    return RequestTable.from_columns(
        arrival_time=arrival,
        prompt_len=prompt,
        output_len=output,
        predicted_output_len=guess,
        predicted_low=np.maximum(1, guess - 2),
        predicted_high=guess + 3,
        class_id=rng.integers(0, 2, n),
        priority=rng.integers(0, 3, n),
        ttft_slo=rng.uniform(1, 20, n),
        tbt_slo=rng.uniform(0.5, 4, n),
        e2e_slo=rng.uniform(2, 40, n),
        client_id=rng.integers(0, 3, n),
        feature_0=np.arange(n) % 3 - 1.0,
        forecasts=Forecasts.from_rows(
            np.sort(rng.integers(1, longest + 3, (n, 10)), axis=1),
            [np.maximum(1, length + rng.integers(-1, 2, (length - 1) // 2)) for length in output.tolist()],
            every=2,
        ),
        classes=(ClassStatistics("short", 0.35, 4.5, 4.0), ClassStatistics("long", 0.35, 4.5, 6.0)),
    )


def with_common_prefixes(table: RequestTable, unit: int, seed: int = 0) -> RequestTable:
    """Return the requests with block hashes: each begins with a part of one of three texts.

    Args:
        table: the requests.
        unit: tokens of a block.
        seed: seed of the texts and of the common parts.
    """
    rng, rows = np.random.default_rng(seed), []
    tokens = table.prompt_len + table.output_len
    for i, count in enumerate((-(-tokens // unit)).tolist()):
        text, common = int(rng.integers(3)), int(rng.integers(0, count + 1))
        rows.append([("text", text) if j < common else ("request", i) for j in range(count)])
    return table.replace(hashes=BlockHashes.from_rows(rows, tokens, unit))


def shrink(case: Case, fails: Callable[[Case], bool], budget: int = SHRINK_BUDGET) -> Case:
    """Search for a case with fewer requests that still fails.

    Args:
        case: a failing case.
        fails: whether another case fails.
        budget: most cases to try.
    """
    step = max(1, len(case.table) // 2)
    while len(case.table) > 1:
        found = False
        for start in range(0, len(case.table), step):
            keep = np.ones(len(case.table), bool)
            keep[start : start + step] = False
            if budget == 0 or not keep.any():
                break
            budget -= 1
            fewer = replace(case, table=case.table.select(keep))
            if fails(fewer):
                case, found = fewer, True
                break
        if not found and (step == 1 or budget == 0):
            break
        step = min(step, max(1, len(case.table) // 2)) if found else step // 2
    return case


def outcome(case: Case, policy: Policy, **options: Any) -> SimulationResult | str:
    """Return the result of a run, or the message if it livelocks."""
    try:
        return simulate(case.system, case.table, policy, seed=case.seed, log=True, **options)
    except LivelockError as error:
        return str(error)


def require_equal(one: SimulationResult | str, other: SimulationResult | str, what: str) -> None:
    """Check that two outcomes are equal bit for bit.

    Raises:
        ContractError: they differ; the message says where, and ``what`` the two are.
    """
    if isinstance(one, str) or isinstance(other, str):
        if one != other:
            texts = [text if isinstance(text, str) else "it ends" for text in (one, other)]
            raise ContractError(f"{what}: {texts[0]} | {texts[1]}")
        return
    for table in ("requests", "worker", "log", "gap_counts", "gap_sums", "moves"):
        a, b = getattr(one, table), getattr(other, table)
        if a is None and b is None:
            continue
        reported_first = ("start_time", "finish_time")
        for field in sorted(a.dtype.names or ("",), key=lambda name: name not in reported_first):
            x, y = (a[field], b[field]) if field else (a, b)
            if (
                x.shape != y.shape
                or x.dtype != y.dtype
                or not np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
            ):
                row = (
                    int(np.flatnonzero(~((x == y) | ((x != x) & (y != y))))[0]) if x.shape == y.shape else -1
                )
                values = f"{x[row]} and {y[row]} in row {row}" if row >= 0 else f"{len(x)} and {len(y)} rows"
                raise ContractError(f"{what}: {table}{f'.{field}' if field else ''} has {values}")
    if one.completed != other.completed:
        raise ContractError(f"{what}: only one of them is completed")


def early_part(case: Case, policy: Policy, until: float) -> tuple[Any, Any]:
    """Return the log of iterations that begin before a time, and the start times of requests, inf if later."""
    result = simulate(case.system, case.table, policy, seed=case.seed, log=True)
    assert result.log is not None
    start = result.requests["start_time"]
    return result.log[result.log["start_time"] < until], np.where(start < until, start, np.inf)


class Shuffling(Router):
    """Moves random requests to random workers."""

    info = RouterInfo(name="shuffling", summary="moves at random")
    reassigns = True

    def __init__(self, rate: float = 0.6) -> None:
        """Set the probability of a move at a boundary, if there is a request to move."""
        self.rate = rate

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        """Reset the random numbers."""
        self.rng = np.random.default_rng(seed)
        self.made = 0

    def route(self, view: ClusterView) -> int:
        """Return a random worker that may serve the request."""
        return int(self.rng.choice(view.candidates))

    def reassign(self, view: ClusterView) -> tuple[int, int] | None:
        """Return a random request that can be moved, and its new worker."""
        if self.rng.random() > self.rate:
            return None
        workers = simulation_of(view).workers
        sources = [k for k in range(len(workers)) if workers["role"][k] == workers["role"][view.boundary]]
        source = int(self.rng.choice(sources))
        ids = view.waiting(source).request_id
        if workers["phase"][source] != BUSY:
            ids = np.concatenate([ids, view.active(source).request_id])
        if len(ids) == 0 or len(sources) < 2:
            return None
        self.made += 1
        return int(self.rng.choice(ids)), int(self.rng.choice([k for k in sources if k != source]))


def setting_cases(
    every: int, times: tuple[str, ...], capacity: int, seeds: int = 1, **requests_of: Any
) -> Iterator[Case]:
    """Yield cases for combinations of the engine's settings, each with its own workloads.

    Args:
        every: use only every n-th combination.
        times: batch times, see :data:`TIMES`.
        capacity: KV memory, tokens.
        seeds: workloads of each combination; every third one has memory in blocks.
        **requests_of: arguments of :func:`requests`.
    """
    for time, (k, settings) in itertools.product(times, list(enumerate(SETTINGS))[::every]):
        for j in range(seeds):
            system = System(
                kv_capacity=capacity,
                batch_time=TIMES[time],
                stall_limit=100,
                block_size=(1, 1, 4)[(j if seeds > 1 else k) % 3],
                **settings,
            )
            yield Case(requests(j if seeds > 1 else k, **requests_of), system, k)
