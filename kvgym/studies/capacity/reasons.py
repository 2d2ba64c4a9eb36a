"""Reasons for missed targets: what the slow batches of a failing run contain, and what to change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kvgym.policies.policy import Policy
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.studies.capacity.probing import Probe
from kvgym.studies.capacity.targets import SHARE, Target
from kvgym.studies.capacity.verdict import BACKLOG
from kvgym.utils.hyperparameters import all_hyperparameters

SLOW = 0.01
"""Share of the output tokens that come from slow batches."""

FULL = 0.85
"""Use of KV memory from which it is said to be full; some is always free, as requests need memory later."""

LEAST_BUDGET = 64
"""The smallest token budget to suggest."""


def slow_batches(result: SimulationResult) -> dict[str, float]:
    """Return what the slow batches of a run contain, for :attr:`kvgym.experiments.runs.PlannedRun.measure`, with a log.

    Slow batches are the longest ones, which together emit :data:`SLOW` of the output tokens.

    Returns:
        Their means: ``seconds``, ``prefill_tokens``, ``decodes``, ``context`` (KV tokens); and, of the requests,
        ``within_ttft`` and ``within_tbt``, the shares that met their SLO (1 without one), and ``tbt_slo``, the
        tightest.
    """
    log, table, records = result.log, result.table, result.requests
    assert log is not None
    rows = log[log["num_output_tokens"] > 0]
    seconds = rows["end_time"] - rows["start_time"]
    order = np.argsort(-seconds, kind="stable")
    emitted = np.cumsum(rows["num_output_tokens"][order])
    slow = rows[order[: 1 + int(np.searchsorted(emitted, SLOW * emitted[-1]))]] if len(rows) else rows
    waited = records["first_token_time"] - table.arrival_time
    ttft = 1.0 if table.ttft_slo is None else float((waited <= table.ttft_slo).mean())
    tbt = 1.0 if table.tbt_slo is None else float((records["max_token_gap"] <= table.tbt_slo).mean())
    return {
        "seconds": float((slow["end_time"] - slow["start_time"]).mean()) if len(slow) else 0.0,
        "prefill_tokens": float(slow["prefill_tokens"].mean()) if len(slow) else 0.0,
        "decodes": float(slow["num_decodes"].mean()) if len(slow) else 0.0,
        "context": float(slow["kv_tokens"].mean()) if len(slow) else 0.0,
        "within_ttft": ttft,
        "within_tbt": tbt,
        "tbt_slo": math.inf if table.tbt_slo is None else float(table.tbt_slo.min()),
    }


def explain(
    probe: Probe, targets: Sequence[Target], figures: Mapping[str, float], batch_time: BatchTimeModel
) -> tuple[str, ...]:
    """Return why a run missed its targets, one sentence each.

    Args:
        probe: the run that failed; its policy has the values of the system.
        targets: all targets.
        figures: :func:`slow_batches` of the run.
        batch_time: the batch-time model of a worker.
    """
    return tuple(_sentences(probe, targets, figures, batch_time))


def _sentences(
    probe: Probe, targets: Sequence[Target], figures: Mapping[str, float], batch_time: BatchTimeModel
) -> Iterator[str]:
    metrics = probe.played.record.metrics
    for target in targets:
        if str(target) not in probe.verdict.reasons:
            continue
        metric, value = target.metric, metrics[target.metric]
        gaps = metric.startswith(("tbt", "tpot"))
        bound, cause = target.bound, ""
        if metric == SHARE:
            gaps, bound = figures["within_tbt"] < figures["within_ttft"], figures["tbt_slo"]
            which, part = ("time between tokens", "within_tbt") if gaps else ("first token", "within_ttft")
            cause = f"{figures[part]:.0%} of the requests are within their SLO for the {which}; "
        cause += (
            _of_batches(probe.entry.policy, figures, batch_time, bound, metrics)
            if gaps
            else _of_waiting(metrics)
        )
        yield f"{target} fails at {probe.rate:.3g}/s ({value:.3g}): {cause}."
    if BACKLOG in probe.verdict.reasons:
        yield f"the backlog grows at {probe.rate:.3g}/s, {_limit(metrics)}."


def _of_waiting(metrics: Mapping[str, float]) -> str:
    """Return how much of the time to first token is waiting, and for what."""
    waiting, whole = metrics["queueing_delay_p99"], metrics["ttft_p99"]
    if not waiting > whole / 2:
        return f"the prompt takes most of the time, {whole - waiting:.2g} s of {whole:.2g} s (99 % quantiles)"
    return f"requests wait {waiting:.2g} s (99 % quantile) before their first batch, {_limit(metrics)}"


def _limit(metrics: Mapping[str, float]) -> str:
    used = metrics["kv_utilisation"]
    what = "memory is full" if used >= FULL else "batches are the limit, not memory"
    return f"with {used:.0%} of the KV memory in use: {what}"


def _of_batches(
    policy: Policy,
    figures: Mapping[str, float],
    batch_time: BatchTimeModel,
    bound: float,
    metrics: Mapping[str, float],
) -> str:
    """Return what makes batches slow, and a token budget that avoids it."""
    seconds, prompt = figures["seconds"], round(figures["prefill_tokens"])
    decodes, context = round(figures["decodes"]), round(figures["context"])
    load = {"num_decodes": decodes, "decode_context": max(context, decodes) if decodes else 0}
    alone = float(batch_time(**load))
    if seconds <= bound:
        return f"tokens wait through several batches: {metrics['evictions']:,.0f} evictions, or pauses"
    if not prompt or alone > bound:
        return (
            f"a batch of {decodes:,} decodes takes {alone:.2g} s; use more workers, or fewer requests at once"
        )
    found = f"a batch with {prompt:,} prompt tokens takes {seconds:.2g} s, without them {alone:.2g} s"
    budget = all_hyperparameters(policy).get(policy.info.budget)
    if not policy.info.chunks_prefill:
        return f"{found}; {policy.info.name} does not split prompts"
    if not isinstance(budget, int):
        return found
    smaller = 1 << (min(budget, prompt + decodes) - 1).bit_length() - 1
    while smaller > LEAST_BUDGET:
        chunk = max(1, smaller - decodes)
        if batch_time(num_prefills=1, prefill_tokens=chunk, prefill_squares=chunk**2, **load) <= bound:
            break
        smaller //= 2
    return f"{found}; try {policy.info.name}:{policy.info.budget}={smaller}"
