"""Estimates of the rate that a worker can serve, by equation (1) of the stability paper.

μ = M / (b̄ E[g]), see :mod:`kvgym.theory.stability`. b̄ is estimated from a run of the trace as it is or from a saturated
run, in which all requests arrive at the start; as a median, a mean or a trimmed mean. Over a saturated run the batches'
KV tokens sum to n E[g], so with the mean n / makespan = μ × (mean KV use of a batch): the error of this estimate is
exactly the memory that batches leave unused. Below saturation batches are small and short, and a median ignores the few
long ones: both overestimate μ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, shown
from kvgym.experiments.comparison import label_of
from kvgym.experiments.load.loads import Load
from kvgym.experiments.runs import PlannedRun, Played
from kvgym.policies.policy import Policy
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.system import System
from kvgym.theory.stability import (
    ESTIMATORS,
    batch_durations,
    memory_slack,
    provision,
    service_rate,
    typical_batch_time,
)
from kvgym.utils.hyperparameters import all_hyperparameters
from kvgym.workloads.table import RequestTable

SOUND = ("saturated", "mean")
"""The run and the estimator of the reliable estimate."""

OBVIOUS = ("as it is", "median")
"""The naive estimate: the median of a run of the trace as it is."""

MOST_ERROR = 0.1
"""Largest error of equation (1) without a remark."""

_CHUNKS = ("chunk", "token_budget", "max_num_batched_tokens")
"""Hyperparameters that bound the prompt tokens of an iteration."""


def batch_figures(result: SimulationResult) -> dict[str, float]:
    """Return estimates of b̄ from a run with a log, for :attr:`kvgym.experiments.runs.PlannedRun.measure`.

    Returns:
        Seconds by estimator; ``"kv_use"``, the mean over batches of the KV tokens in use / M; ``"batches"``, their
        number.
    """
    durations = batch_durations(result)
    log = result.log
    assert log is not None
    rows = log[log["num_prefills"] + log["num_decodes"] > 0]
    use = float(rows["kv_tokens"].mean()) / result.system.kv_capacity
    figures = {name: typical_batch_time(durations, name) for name in ESTIMATORS}
    return {**figures, "kv_use": use, "batches": float(len(durations))}


def held_memory(table: RequestTable, chunk: int, system: System) -> NDArray[np.int64]:
    """Return g of each request as the engine counts it: KV tokens held, in whole blocks, summed over its iterations.

    With one-token blocks, and a first token that prefill does not count, this is the paper's g
    (:func:`kvgym.theory.stability.cumulative_memory`). If the last prefill iteration counts the first token, the
    iteration that would hold s tokens holds s + 1, and one decode fewer follows.

    Args:
        table: n requests.
        chunk: prompt tokens per prefill iteration, >= 1.
        system: provides the block size and the rule for first tokens.

    Returns:
        int64 (n,).
    """
    prompt, output, block = table.prompt_len, table.output_len, system.block_size

    def up_to(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sum ⌈k / block⌉ × block over k = 1, …, tokens."""
        full, rest = np.divmod(tokens, block)
        return np.asarray(block * (block * (full * (full + 1) // 2) + rest * (full + 1)))

    counted = system.first_token == "counted"
    held = up_to(prompt + output) - up_to(prompt)
    for k in range(1, -(-int(prompt.max()) // chunk) + 1):
        inside = k * chunk < prompt
        held = held + np.where(inside, -(-k * chunk // block) * block, 0)
    return np.asarray(held if counted else held + -(-prompt // block) * block, dtype=np.int64)


@dataclass(frozen=True)
class Estimated:
    """A service rate from one estimate of b̄.

    Attributes:
        run: ``"as it is"`` or ``"saturated"``.
        estimator: one of :data:`kvgym.theory.stability.ESTIMATORS`.
        batch_time: b̄, seconds.
        service: μ, requests per second.
        error: μ / measured - 1.
        workers: ⌈λ/μ⌉.
    """

    run: str
    estimator: str
    batch_time: float
    service: float
    error: float
    workers: int


@dataclass(frozen=True)
class WorkerEstimates:
    """The rate that one worker can serve, by theory and as measured.

    Attributes:
        hardware: name of the hardware, "" if the scenario has its own batch-time model.
        policy: label of the policy.
        kv_capacity: M, tokens.
        chunk: prompt tokens per iteration, used for E[g].
        mean_memory: E[g], KV tokens times batches, see :func:`held_memory`.
        slack: δ, see :func:`kvgym.theory.stability.memory_slack`.
        measured: requests per second of the whole saturated run.
        kv_use: mean KV use of the batches of that run.
        estimates: one per estimate of b̄.
        workers_with_slack: smallest n with λ < nμ(1 - δ), with μ of :data:`SOUND`.
        backlog_rate: the highest rate at which the backlog does not grow, without the trace's own variation over
            time, see :meth:`kvgym.experiments.load.loads.Load.steady`.
        target_rate: the highest rate at which the targets are met, with the load compressed or stretched.
        error: error of a failed run, or ""; there are then no estimates.
        wall_time: seconds that the two runs took.
    """

    hardware: str
    policy: str
    kv_capacity: int
    chunk: int
    mean_memory: float
    slack: float
    measured: float
    kv_use: float
    estimates: tuple[Estimated, ...]
    workers_with_slack: int
    backlog_rate: float
    target_rate: float
    error: str
    wall_time: float

    def find(self, run: str, estimator: str) -> Estimated | None:
        """Return an estimate, None if there is none."""
        return next((e for e in self.estimates if (e.run, e.estimator) == (run, estimator)), None)

    @property
    def remark(self) -> str:
        """A sentence if equation (1) is off by more than 10 %, else ""."""
        sound = self.find(*SOUND)
        if sound is None or abs(sound.error) <= MOST_ERROR:
            return ""
        why = (
            f"batches use {self.kv_use:.0%} of the memory, so something else limits them"
            if self.kv_use < 1 - MOST_ERROR
            else "requests outside the batch hold memory (the policy pauses them), or work is lost"
        )
        return f"equation (1) is off by {sound.error:+.0%}: {why}. Use the measured rate."

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per estimate."""
        common = {
            "hardware": self.hardware, "policy": self.policy, "kv_capacity": self.kv_capacity, "chunk": self.chunk,
            "mean_memory": self.mean_memory, "measured": self.measured, "kv_use": self.kv_use,
            "backlog_rate": self.backlog_rate, "target_rate": self.target_rate,
        }  # fmt: skip
        return [common | vars(e) for e in self.estimates]


def prefill_chunk(policy: Policy, table: RequestTable) -> int:
    """Return the maximum number of prompt tokens of a request per iteration, by the policy's hyperparameters."""
    longest = int(table.prompt_len.max())
    if not policy.info.chunks_prefill:
        return longest
    given = all_hyperparameters(policy)
    limits = [int(given[name]) for name in _CHUNKS if isinstance(given.get(name), int) and given[name] >= 1]
    return min([longest, *limits])


def estimate_runs(load: Load, policy: Policy, seed: int) -> tuple[PlannedRun, PlannedRun]:
    """Return the runs needed for estimates, on one worker: the load as it is, and saturated."""
    label = label_of(policy)
    return (
        PlannedRun(load.at(load.rate, workers=1), policy, None, seed, label, log=True, measure=batch_figures),
        PlannedRun(load.at_once(), policy, None, seed, label, log=True, measure=batch_figures),
    )


def worker_estimates(
    load: Load,
    policy: Policy,
    table: RequestTable,
    as_it_is: Played,
    saturated: Played,
    rates: tuple[float, float],
) -> WorkerEstimates:
    """Return the rate that one worker can serve, by theory and as measured.

    Args:
        load: the load.
        policy: the policy.
        table: the requests.
        as_it_is: result of the first run of :func:`estimate_runs`.
        saturated: result of the second run.
        rates: ``backlog_rate`` and ``target_rate``.
    """
    system = load.at(load.rate, workers=1).make_system()
    chunk = prefill_chunk(policy, table)
    memory = float(held_memory(table, chunk, system).mean())
    slack = memory_slack(system.kv_capacity, float((table.prompt_len + table.output_len).max()))
    measured = saturated.record.metrics["request_throughput"]
    found = []
    error = as_it_is.record.error or saturated.record.error
    if not error:
        for run, played in ("as it is", as_it_is), ("saturated", saturated):
            for estimator in ESTIMATORS:
                seconds = played.measured[estimator]
                service = service_rate(system.kv_capacity, seconds, memory)
                workers = provision(load.rate, service)
                found.append(Estimated(run, estimator, seconds, service, service / measured - 1, workers))
    sound = next((e.service for e in found if (e.run, e.estimator) == SOUND), None)
    return WorkerEstimates(
        hardware=load.scenario.hardware or "",
        policy=label_of(policy),
        kv_capacity=system.kv_capacity,
        chunk=chunk,
        mean_memory=memory,
        slack=slack,
        measured=measured,
        kv_use=saturated.measured.get("kv_use", float("nan")),
        estimates=tuple(found),
        workers_with_slack=provision(load.rate, sound, slack=slack) if sound and slack < 1 else 0,
        backlog_rate=rates[0],
        target_rate=rates[1],
        error=error,
        wall_time=as_it_is.record.wall_time + saturated.record.wall_time,
    )


def check_equal_workers(load: Load) -> None:
    """Check that a load can run on equal workers, and that equation (1) holds for them.

    Raises:
        ConfigError: the scenario has groups of workers, a prefix cache, or closed sessions.
    """
    system = load.scenario.make_system()
    if system.prefix_unit and system.sessions == "open":
        raise ConfigError(
            "provisioning assumes that every request computes its whole prompt, and does not hold with prefix_cache = "
            f"{system.prefix_cache}; set it to off, or find the rate of workers by kvgym capacity --workers 1,2,4"
        )
    system.check_independent("the number of workers by theory")
    if not isinstance(load.scenario.workers, int):
        raise ConfigError(
            f"scenario {shown(load.scenario.name)} has groups of workers; provisioning needs equal workers: use a "
            "scenario with one worker"
        )
