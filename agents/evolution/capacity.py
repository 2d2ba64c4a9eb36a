"""A rough estimate of the load that a service can sustain, which random arrival rates are multiples of."""

from __future__ import annotations

import numpy as np

from kvgym.errors import ConfigError
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.simulator.system import System, whole_blocks
from kvgym.workloads.table import RequestTable


def sustained_rate(system: System, table: RequestTable) -> float:
    """Return about how many requests per second the workers of a system can serve for ever.

    Of a cluster it is the sum over its workers.

    Args:
        system: one worker, or a cluster of workers that serve whole requests.
        table: requests, at least one; only their lengths count.

    Raises:
        ConfigError: the system has prefill and decode workers, or there are no requests.
    """
    if system.num_prefill_workers:
        raise ConfigError("load is not defined for prefill and decode workers apart; give the family a rate")
    if not len(table):
        raise ConfigError("there are no requests to estimate a sustained rate from")
    return sum(
        worker_rate(whole_blocks(worker.kv_capacity, system.block_size), worker.batch_time, table)
        for worker in system.all_workers
    )


def worker_rate(kv_capacity: int, batch_time: BatchTimeModel, table: RequestTable) -> float:
    """Return about how many requests per second one worker can serve for ever.

    With its memory M full all the time a worker completes x = M / E[o (s + o/2)] requests per iteration, s and o
    being prompt and output lengths: the expectation is the memory of a request, summed over its o iterations. An
    iteration decodes x E[o] requests, with M tokens of context, and takes τ; each prefill adds π, the time by which
    that batch gets longer with a prompt of mean length in it. So a request costs τ / x + π seconds.

    It is an estimate: perfect packing is assumed, and prompts that share a batch are not counted as cheaper.

    Args:
        kv_capacity: M, tokens of whole blocks.
        batch_time: of the worker.
        table: requests, at least one.
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
