"""Least cost of a request for a worker: seconds alone, and its share of batches with other requests.

**Work.** Let a batch last D seconds, and let its floor (:class:`BatchFloor`) be F + G [prefills] + H [decodes] + Σ m_i
over its requests i. At its end these hold k_i tokens in whole blocks. Everything that a batch writes must fit before it
begins, so Σ k_i ≤ M, the memory. Therefore D ≥ Σ_i ((F + G or H) k_i / M + m_i). The summand of a request is the *work*
that the batch does for it. For any content of a batch, its total work is at most its duration.

**Least work.** A request with prompt s and output o needs a prefill of s tokens, in any chunks, and then a decode for
each of its o tokens, or o - 1 if the prefill makes the first. A decode that finds k tokens cached costs the work above.
A prefill of L tokens costs its tokens, its attention, and the constants' share in the batch that ends it. An evicted
request that loses its progress starts again, and its last attempt costs all of that; one that keeps its progress costs
no less. A request that recomputes may produce its next token by a prefill of all its tokens instead of a decode, if
prefills emit tokens. So a token costs the lesser of the two.

**Least time.** Batch times do not decrease with the load, so a batch takes at least as long as with one of its
requests alone. A prefill of L tokens takes at least as long as one batch with all of it, or as two floors of batches
and its work without the constants' shares. If batch times may decrease (``alone_is_least``), floors are used
throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time import BatchTimeModel
from kvgym.theory.hindsight.calibrated.floors import alone_is_least, batch_floor
from kvgym.theory.hindsight.calibrated.lines import Composition, Floats
from kvgym.workloads.table import RequestTable

GRID = 256
"""The model is evaluated at every length up to this one, and at about as many longer ones."""


@dataclass(frozen=True)
class Rules:
    """Rules of a system that affect the cost of a request.

    Attributes:
        emits: whether the last batch of a prefill makes an output token.
        writes: whether it also writes the KV of that token.
        remakes: whether an evicted request may make its next token by a prefill.
        block_size: tokens of a block of memory.
    """

    emits: bool
    writes: bool
    remakes: bool
    block_size: int


@dataclass(frozen=True)
class Costs:
    """Least seconds by length, 0 … n - 1: a prefill of that many tokens, or a decode with that many cached.

    Attributes:
        prefill_time: from the beginning of its first batch to the end of its last.
        prefill_end: from the middle of any of its batches to the end of its last.
        prefill_work: share of the batches, summed.
        decode_time: of a batch with such a decode.
        decode_end: from the mean time of the work to the end.
        decode_work: share of that batch.
        constant: F, of every batch.
        prefill_own: of the batches of a prefill without any share of constants.
        decode_own: of a batch with such a decode, alike.
        decode_held: tokens that the request holds at its end; 0 where the token may come from several batches.
    """

    prefill_time: Floats
    prefill_end: float
    prefill_work: Floats
    decode_time: Floats
    decode_end: Floats
    decode_work: Floats
    constant: float
    prefill_own: Floats
    decode_own: Floats
    decode_held: Floats


def mean_composition(
    prompt: NDArray[np.int64],
    first: NDArray[np.int64],
    decodes: NDArray[np.int64],
    capacity: int,
    filling: float,
) -> Composition:
    """Return the mean content of batches that are always full to a share of the memory.

    Args:
        prompt: prefills of the requests, tokens, int64 (n,).
        first: tokens that the first decode of each finds, (n,).
        decodes: of each, (n,).
        capacity: memory of a worker, tokens.
        filling: share of it that is in use.
    """
    context = decodes * first + decodes * (decodes - 1) / 2
    batches = max(float((prompt + context + decodes).sum()) / (capacity * filling), 1e-9)
    return Composition(
        tokens=float((prompt + decodes).sum()) / batches,
        requests=float((decodes + 1).sum()) / batches,
        decodes=float(decodes.sum()) / batches,
        context=float(context.sum()) / batches,
        pairs=float((prompt * (prompt + 1) / 2).sum()) / batches,
        prefill_tokens=float(prompt.sum()) / batches,
    )


@dataclass(frozen=True)
class AloneTimes:
    """Least seconds of batches by length, from the model where that is a valid bound, else 0.

    Attributes:
        prefill: of a prefill of that many tokens in one batch, float64 (n,).
        several: of a prefill of that many tokens in two batches or more.
        decode: of a decode with that many tokens cached.
        chunk: of any batch with a prefill.
    """

    prefill: Floats
    several: Floats
    decode: Floats
    chunk: float


def alone_times(model: BatchTimeModel, capacity: int, lengths: int) -> AloneTimes:
    """Return the least times of batches with one request.

    Args:
        model: of the worker.
        capacity: its memory in whole blocks, tokens.
        lengths: n: all lengths are below.
    """
    if not alone_is_least(model):
        zeros = np.zeros(lengths)
        return AloneTimes(zeros, zeros, zeros, 0.0)
    number = np.arange(lengths, dtype=np.float64)
    prefill = _at_lengths(model, number, prefill=True)
    several = _two_chunks(model, capacity, lengths)
    return AloneTimes(
        prefill, several, _at_lengths(model, number, prefill=False), float(prefill[min(1, lengths - 1)])
    )


def least_costs(
    model: BatchTimeModel, alone: AloneTimes, capacity: int, lengths: int, rules: Rules, at: Composition
) -> Costs:
    """Return the least costs of prefills and decodes for a worker.

    Args:
        model: of the worker.
        alone: least times of batches with one request.
        capacity: its memory in whole blocks, tokens.
        lengths: n: all lengths are below.
        rules: of the system.
        at: where the floor should be high.
    """
    floor = batch_floor(model, capacity, lengths, at)
    number = np.arange(lengths, dtype=np.float64)
    held = np.ceil((number + 1) / rules.block_size) * rules.block_size
    ended = held if rules.writes else np.ceil(number / rules.block_size) * rules.block_size
    share = (floor.batch + floor.decode_batch) / capacity
    decode_own = floor.request + floor.decode + floor.context * number
    decode_work, decode_time = share * held + decode_own, floor.batch + floor.decode_batch + decode_own
    prefill_own = floor.request + floor.prefill_token * number + floor.attention(number)
    constant = floor.batch + floor.prefill_batch
    prefill_work, prefill_time = constant / capacity * ended + prefill_own, constant + prefill_own
    prefill_end = (constant + floor.request + floor.prefill_token) / 2
    # One batch with all of it, or two with a floor's constants each.
    several = np.maximum(prefill_time + constant + floor.request, alone.several)
    prefill_time = np.minimum(np.maximum(prefill_time, alone.prefill), several)
    prefill_end = max(prefill_end, alone.chunk / 2)
    decode_time = np.maximum(decode_time, alone.decode)
    decode_end = decode_time / 2
    if rules.emits and rules.remakes:
        decode_time, decode_work = (
            np.minimum(decode_time, prefill_time),
            np.minimum(decode_work, prefill_work),
        )
        decode_end = np.minimum(decode_end, prefill_end)
        decode_own, held = np.minimum(decode_own, prefill_own), np.zeros(lengths)
    return Costs(
        prefill_time, prefill_end, prefill_work, decode_time, decode_end, decode_work,
        floor.batch, prefill_own, decode_own, held,
    )  # fmt: skip


def _two_chunks(model: BatchTimeModel, capacity: int, lengths: int) -> Floats:
    """Return least seconds of prefills in two batches or more, from floors that are high for halves of them."""
    number = np.arange(lengths, dtype=np.float64)
    best = np.zeros(lengths)
    for half in np.unique(np.geomspace(1, max(lengths, 2), 6).astype(int)).tolist():
        at = Composition(half, 1.0, 0.0, 0.0, pairs=half * (half + 1) / 2, prefill_tokens=half)
        floor = batch_floor(model, capacity, lengths, at)
        own = floor.prefill_token * number + floor.attention(number)
        best = np.maximum(best, 2 * (floor.batch + floor.prefill_batch + floor.request) + own)
    return best


def _at_lengths(model: BatchTimeModel, number: Floats, *, prefill: bool) -> Floats:
    """Return the times of a request alone, by length: of prefills, or of decodes with that many tokens cached.

    Beyond :data:`GRID` the model is evaluated at some lengths only; the others take the time of a shorter one.
    """
    last = len(number) - 1
    asked = np.arange(min(GRID, last) + 1)
    if last > GRID:
        asked = np.union1d(asked, np.geomspace(GRID, last, GRID).astype(np.int64))
    if prefill:
        asked = np.maximum(asked, 1)
        times = model(num_prefills=1, prefill_tokens=asked, prefill_squares=asked * asked)
    else:
        times = model(num_decodes=1, decode_context=asked)
    return np.asarray(times)[np.maximum(np.searchsorted(asked, number, side="right") - 1, 0)]


def least_of(costs: Sequence[Costs], scales: Sequence[float]) -> Costs:
    """Return the least costs of several workers, with the work of each times its scale."""
    first = costs[0]
    if len(costs) == 1 and scales[0] == 1.0:
        return first

    def least(name: str, factors: Sequence[float]) -> Floats:
        columns = [getattr(c, name) * f for c, f in zip(costs, factors, strict=True)]
        return np.asarray(np.min(columns, axis=0))

    ones = [1.0] * len(costs)
    return Costs(
        least("prefill_time", ones),
        float(least("prefill_end", ones)),
        least("prefill_work", scales),
        least("decode_time", ones),
        least("decode_end", ones),
        least("decode_work", scales),
        float(least("constant", ones)),
        least("prefill_own", ones),
        least("decode_own", ones),
        least("decode_held", ones),
    )


def prefix(values: Floats) -> Floats:
    """Return sums of the first 0, 1, … values."""
    return np.concatenate([[0.0], np.cumsum(values)])


@dataclass(frozen=True)
class Demand:
    """The work of n requests on a machine, up to their last tokens or their first.

    Attributes:
        release: arrivals, seconds, float64 (n,), ascending.
        least: seconds from arrival to the end, alone.
        work: seconds of the machine.
        lag: seconds from the mean time of the work to the end, at least.
        piece_release: when pieces of the work can begin at the earliest, seconds, float64 (p,).
        piece_work: seconds of the machine, (p,).
        piece_owner: their requests, int64 (p,).
    """

    release: Floats
    least: Floats
    work: Floats
    lag: Floats
    piece_release: Floats
    piece_work: Floats
    piece_owner: NDArray[np.int64]


def demand(
    table: RequestTable,
    decodes: NDArray[np.int64],
    first: NDArray[np.int64],
    handover: Floats,
    prefill: Costs,
    decode: Costs,
    groups: int,
    *,
    prefills: bool = True,
    generates: bool = True,
) -> Demand:
    """Return the work of requests on a machine that does their prefills, their decodes, or both.

    Args:
        table: the requests.
        decodes: of each, until its last token or its first, int64 (n,).
        first: tokens that the first one finds cached, int64 (n,).
        handover: seconds between prefill and decodes, (n,).
        prefill: costs of prefills.
        decode: costs of decodes.
        groups: pieces that decodes are put into, of each request.
        prefills: whether the machine does the prefills.
        generates: whether it does the decodes.
    """
    release, last = table.arrival_time.astype(np.float64), first + decodes
    prompt = table.prompt_len
    time, work = prefix(decode.decode_time), prefix(decode.decode_work)
    middle = prefix(decode.decode_work * (time[1:] - decode.decode_end))
    opening = prefill.prefill_time[prompt]
    generating = time[last] - time[first]
    least = opening + handover + generating
    count = len(release)
    own, lags = np.zeros(count), np.zeros(count)
    releases, works, owners = [], [], []
    if prefills:
        share = prefill.prefill_work[prompt]
        own += share
        lags += share * (prefill.prefill_end + handover + generating)
        releases.append(release)
        works.append(share)
        owners.append(np.arange(count))
    if generates:
        own += work[last] - work[first]
        lags += (work[last] - work[first]) * time[last] - (middle[last] - middle[first])
        for g in range(groups):
            begin, end = (first + decodes * part // groups for part in (g, g + 1))
            some = end > begin
            releases.append((release + opening + handover + time[begin] - time[first])[some])
            works.append((work[end] - work[begin])[some])
            owners.append(np.flatnonzero(some))
    with np.errstate(invalid="ignore", divide="ignore"):
        lag = np.where(own > 0, lags / own, 0.0)
    order = np.argsort(np.concatenate(releases), kind="stable")
    return Demand(
        release,
        least,
        own,
        lag,
        np.concatenate(releases)[order],
        np.concatenate(works)[order],
        np.concatenate(owners)[order],
    )
