"""Rough estimate of the request rate that a service can sustain; loads are multiples of it."""

from __future__ import annotations

import numpy as np

from kvgym.errors import ConfigError
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.simulator.system import System, whole_blocks
from kvgym.workloads.table import RequestTable


def sustained_rate(system: System, table: RequestTable) -> float:
    """Return the estimated sustained rate of a system, requests per second; of a cluster the sum over its workers.

    Args:
        system: one worker, or a cluster of workers that serve whole requests.
        table: at least one request; only lengths are used.

    Raises:
        ConfigError: the system has prefill and decode workers, or there are no requests.
    """
    if system.num_prefill_workers:
        raise ConfigError(
            "load is not defined for separate prefill and decode workers; give the family a rate"
        )
    if not len(table):
        raise ConfigError("there are no requests to estimate a sustained rate from")
    return sum(
        worker_rate(whole_blocks(worker.kv_capacity, system.block_size), worker.batch_time, table)
        for worker in system.all_workers
    )


def worker_rate(kv_capacity: int, batch_time: BatchTimeModel, table: RequestTable) -> float:
    """Return the estimated sustained rate of one worker, requests per second.

    With full memory M a worker completes x = M / E[o (s + o/2)] requests per iteration, with prompt length s and
    output length o; the expectation is the memory of a request summed over its o iterations. An iteration decodes
    x E[o] requests with M tokens of context and takes τ. A prefill adds π, the extra time of that batch with a prompt
    of mean length. So a request costs τ / x + π seconds.

    The estimate assumes perfect packing, and no saving for prompts that share a batch.

    Args:
        kv_capacity: M, tokens of whole blocks.
        batch_time: of the worker.
        table: at least one request.
    """
    s, o = table.prompt_len.astype(np.float64), table.output_len.astype(np.float64)
    completed = kv_capacity / float(np.mean(o * (s + o / 2)))
    decodes = {"num_decodes": max(1, round(completed * o.mean())), "decode_context": kv_capacity}
    prompt = {
        "num_prefills": 1,
        "prefill_tokens": round(s.mean()),
        "prefill_squares": round(float(np.mean(s * s))),
    }
    iteration = batch_time(**decodes)
    return 1.0 / float(iteration / completed + batch_time(**decodes, **prompt) - iteration)
