"""Slotted optima of requests of few kinds: a linear program by kind and slot, and a schedule from it.

Requests of equal lengths differ only in their arrival. In any schedule they may swap starts so that they start in
order of arrival, which permutes their completion times: the sum of latencies stays, and the largest does not grow. So
a schedule is determined by how many of each kind start in each slot, x[k, t], and the integer program of the single
requests shrinks to one that does not grow with their number::

    Σ_{u ≤ t} x[k, u] ≤ arrivals of k until t,      Σ_{k, j < o_k} (s_k + j + 1) x[k, t − j] ≤ M.

Its linear relaxation bounds every metric. A schedule comes from the relaxation with Σ (s_k + o_k) tokens less: rounding
the number of starts until each slot down changes it by less than one per kind, and so the memory in use by less than
that. The remaining requests are placed where they fit. With hundreds of requests in memory the two ends are close
together.

Requests arrive and start at whole slots and run through. A schedule that pauses them, or evicts them with loss of
progress, is no better: the last o slots in which such a request ran can be moved together before its completion, where
they hold no more memory. Evictions that keep progress (swapping) are not covered.
"""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse

from kvgym.errors import ConfigError, shown
from kvgym.theory.hindsight.interval import Interval
from kvgym.workloads.table import RequestTable

ROUNDING = 1e-6  # how far a program's values may be from the whole numbers they represent
METRICS = ("e2e_latency_mean", "e2e_latency_p95", "request_throughput", "token_throughput", "makespan")


@dataclass(frozen=True)
class Kinds:
    """Requests by kind and slot.

    Attributes:
        prompt: int64 (K,), prompt tokens of each kind.
        output: int64 (K,), output tokens.
        arrivals: int64 (K, T), arrivals of each kind in each slot.
        kind: int64 (n,), kind of each request.
        slot: int64 (n,), first slot in which each may start.
        arrival: float64 (n,), arrival times.
    """

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    arrivals: NDArray[np.int64]
    kind: NDArray[np.int64]
    slot: NDArray[np.int64]
    arrival: NDArray[np.float64]

    @classmethod
    def of(cls, table: RequestTable) -> Kinds:
        """Return the requests of a table.

        Raises:
            ConfigError: there are none, or some arrive between slots: an idle worker would not wait for the next one.
        """
        if len(table) == 0:
            raise ConfigError("there are no requests")
        between = table.arrival_time != np.floor(table.arrival_time)
        if between.any():
            raise ConfigError(
                f"request {int(np.argmax(between))} arrives at {table.arrival_time[between][0]:g}, between slots; "
                "expected whole arrival times"
            )
        pairs = np.stack([table.prompt_len, table.output_len], axis=1).astype(np.int64)
        kinds, kind = np.unique(pairs, axis=0, return_inverse=True)
        slot = table.arrival_time.astype(np.int64)
        arrivals = np.zeros((len(kinds), int(slot.max()) + 1), np.int64)
        np.add.at(arrivals, (kind.ravel(), slot), 1)
        return cls(kinds[:, 0], kinds[:, 1], arrivals, kind.ravel(), slot, table.arrival_time)


def bound_classes(
    table: RequestTable, kv_capacity: int, metric: str = "e2e_latency_mean", *, seconds: float = 60.0
) -> Interval:
    """Return an interval around the optimum of a metric when all requests are served, one token a slot each.

    Args:
        table: the requests, of few different lengths; a slot is a second, as in the unit batch time.
        kv_capacity: M, tokens; memory counts single tokens (blocks of one).
        metric: one of :data:`METRICS`. Throughputs and makespan, over the time from the first arrival to the last
            completion, have one optimum. Of the 95th percentile the requests beyond it are served last.
        seconds: time limit of each linear program; after it the bound without a program holds (:func:`volume_bound`).

    Raises:
        ConfigError: no requests, arrivals between slots, an unknown metric, a request that does not fit, or more than
            50 kinds.
    """
    if metric not in METRICS:
        raise ConfigError(f"metric = {shown(metric)}; expected one of {', '.join(METRICS)}")
    kinds = Kinds.of(table)
    if len(kinds.prompt) > 50:
        raise ConfigError(f"{len(kinds.prompt)} different lengths; a program by kind is for at most 50")
    if int((kinds.prompt + kinds.output).max()) > kv_capacity:
        raise ConfigError(
            f"kv_capacity = {kv_capacity} holds no request of {int((kinds.prompt + kinds.output).max())}"
        )
    find = _tail if metric == "e2e_latency_p95" else _mean
    bound, wishes = find(kinds, kv_capacity, seconds)
    large = metric.endswith("throughput")
    found = [place(kinds, kv_capacity, wish) for wish in wishes]
    values = [schedule_metrics(kinds, starts)[metric] for starts in found]
    best = int(np.argmax(values) if large else np.argmin(values))
    starts, reached = found[best], values[best]
    method = "linear program by kind and slot, and its starts rounded"
    if metric in METRICS[2:]:
        bound = _span(kinds, kv_capacity)
        method = "memory × time of what arrives from each slot on, and starts for the least mean latency"
    if large:
        amount = float(len(table) if metric == "request_throughput" else table.output_len.sum())
        return Interval(metric, reached, amount / bound, starts, method)
    return Interval(metric, min(bound, reached), reached, starts, method)


def schedule_metrics(kinds: Kinds, starts: NDArray[np.int64]) -> dict[str, float]:
    """Return the metrics of a schedule.

    Args:
        kinds: the requests.
        starts: int64 (n,), the slot in which each starts.
    """
    finish = starts + kinds.output[kinds.kind]
    latency = finish - kinds.arrival
    span = float(finish.max() - kinds.arrival.min())
    return {
        "e2e_latency_mean": float(latency.mean()),
        "e2e_latency_p95": float(np.percentile(latency, 95)),
        "request_throughput": len(starts) / span,
        "token_throughput": float(kinds.output[kinds.kind].sum()) / span,
        "makespan": span,
    }


def memory_of(kinds: Kinds, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the memory in use in each slot, tokens, int64 (slots,)."""
    used = np.zeros(int((starts + kinds.output[kinds.kind]).max()), np.int64)
    for k, (prompt, output) in enumerate(zip(kinds.prompt, kinds.output, strict=True)):
        begun = np.bincount(starts[kinds.kind == k], minlength=len(used))
        used += np.convolve(begun, prompt + np.arange(1, output + 1))[: len(used)]
    return used


def place(kinds: Kinds, kv_capacity: int, wish: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return starts that fit: in order of preferred start, each request at the first slot from there on with room.

    Args:
        kinds: the requests.
        kv_capacity: M, tokens.
        wish: float64 (n,), preferred starts, not before arrival.

    Returns:
        int64 (n,), the slot in which each starts.
    """
    end = int(kinds.slot.max() + wish.max()) + int(kinds.output[kinds.kind].sum()) + 1  # one after the other
    free = np.full(end, kv_capacity, np.int64)
    ramps = [
        prompt + np.arange(1, output + 1) for prompt, output in zip(kinds.prompt, kinds.output, strict=True)
    ]
    blocked = np.zeros(
        (len(ramps), 2), np.int64
    )  # of each kind nothing fits from the one slot to before the other
    starts = np.zeros(len(wish), np.int64)
    for i in np.lexsort((kinds.arrival, wish)):
        k = int(kinds.kind[i])
        ramp, t = ramps[k], max(int(kinds.slot[i]), math.floor(wish[i]))
        first = t
        if blocked[k, 0] <= t <= blocked[k, 1]:
            first, t = int(blocked[k, 0]), int(blocked[k, 1])
        while (free[t : t + len(ramp)] < ramp).any():
            t += 1
        blocked[k] = first, t
        starts[i] = t
        free[t : t + len(ramp)] -= ramp
    return starts


def volume_bound(table: RequestTable, kv_capacity: int, metric: str = "e2e_latency_mean") -> float:
    """Return a bound that no schedule beats, from memory × time alone; needs no program.

    A request takes w = s·o + o(o + 1)/2 of the M that each slot offers. So no schedule is better than the one of one
    machine of speed M, on which preemptive shortest remaining work first has the least sum of completions; nor than
    every request alone, arrival + o. For the 95th percentile: all but the largest 5 % must be done by the last arrival
    plus the percentile. For the makespan: requests that arrive from a slot on are done after it.

    Args:
        table: the requests.
        kv_capacity: M, tokens.
        metric: one of :data:`METRICS`.

    Raises:
        ConfigError: no requests, arrivals between slots, or an unknown metric.
    """
    if metric not in METRICS:
        raise ConfigError(f"metric = {shown(metric)}; expected one of {', '.join(METRICS)}")
    kinds = Kinds.of(table)
    output = table.output_len.astype(np.float64)
    if metric == "e2e_latency_mean":
        shared = _one_machine(kinds, kv_capacity).mean() - kinds.arrival.mean()
        return float(max(shared, (kinds.slot - kinds.arrival + output).mean()))
    if metric == "e2e_latency_p95":
        return float(_tail_volume(kinds, kv_capacity))
    span = _span(kinds, kv_capacity)
    amounts = {"makespan": span, "request_throughput": len(table) / span}
    return float(amounts.get(metric, output.sum() / span))


def _work(kinds: Kinds) -> NDArray[np.int64]:
    """Return the memory × time of each kind, int64 (K,)."""
    return kinds.prompt * kinds.output + kinds.output * (kinds.output + 1) // 2


def _one_machine(kinds: Kinds, kv_capacity: int) -> NDArray[np.float64]:
    """Return completions on one machine of speed M, shortest remaining work first, with interruptions; (n,)."""
    left = (_work(kinds)[kinds.kind] / kv_capacity).tolist()
    slots, order = kinds.slot.tolist(), np.argsort(kinds.slot, kind="stable").tolist()
    done, heap, now, following = np.zeros(len(left)), list[tuple[float, int]](), 0.0, 0
    while heap or following < len(order):
        if not heap:
            now = max(now, slots[order[following]])
        while following < len(order) and slots[order[following]] <= now:
            i = order[following]
            heapq.heappush(heap, (left[i], i))
            following += 1
        need, i = heapq.heappop(heap)
        until = slots[order[following]] if following < len(order) else math.inf
        if now + need <= until:
            now += need
            done[i] = now
        else:
            heapq.heappush(heap, (need - (until - now), i))
            now = until
    return done


def _on_time(n: int) -> int:
    """Return the least number of n values that are no larger than their 95th percentile."""
    return math.floor(0.95 * (n - 1)) + 1


def _tail_volume(kinds: Kinds, kv_capacity: int) -> int:
    """Return a lower bound on the 95th percentile of latency, whole slots."""
    work, count = np.sort(_work(kinds)[kinds.kind]), _on_time(len(kinds.kind))
    done = math.ceil(float(work[:count].sum()) / kv_capacity - 1e-9) + int(kinds.slot.min())
    alone = int(np.sort(kinds.output[kinds.kind])[count - 1])
    return max(alone, done - int(kinds.slot.max()))


def _span(kinds: Kinds, kv_capacity: int) -> float:
    """Return a lower bound on the time from the first arrival to the last completion."""
    arriving = _work(kinds) @ kinds.arrivals
    later = np.cumsum(arriving[::-1])[::-1]  # work that arrives from each slot on
    slots = np.arange(len(later))
    end = max(
        int((slots + np.ceil(later / kv_capacity))[later > 0].max()),
        int((kinds.slot + kinds.output[kinds.kind]).max()),
    )
    return end - float(kinds.arrival.min())


def _program(kinds: Kinds, kv_capacity: int, slots: int) -> tuple[Any, NDArray[np.float64]]:
    """Return the rows A, b of A S ≤ b: numbers of starts are not negative, and memory suffices.

    The variables S[k, t] count the starts of a kind until slot t; they are ordered by kind, then by slot.
    """
    blocks, memory = [], []
    for prompt, output in zip(kinds.prompt.tolist(), kinds.output.tolist(), strict=True):
        blocks.append(sparse.diags_array([-1.0, 1.0], offsets=[0, -1], shape=(slots, slots)))
        offsets = [-j for j in range(output + 1) if j < slots]
        weights = [prompt + 1.0, *([1.0] * (output - 1)), -(prompt + output)][: len(offsets)]
        memory.append(sparse.diags_array(weights, offsets=offsets, shape=(slots, slots)))
    rows = sparse.vstack([sparse.block_diag(blocks), sparse.hstack(memory)], format="csr")
    return rows, np.concatenate([np.zeros(slots * len(blocks)), np.full(slots, float(kv_capacity))])


def _arrived(kinds: Kinds, slots: int) -> NDArray[np.int64]:
    """Return the arrivals until each slot, int64 (K, slots)."""
    until = np.cumsum(kinds.arrivals, axis=1)
    return np.concatenate([until, np.repeat(until[:, -1:], max(0, slots - until.shape[1]), axis=1)], axis=1)[
        :, :slots
    ]


def _wishes(
    kinds: Kinds, started: NDArray[np.float64], kept: NDArray[np.bool_], late: int
) -> NDArray[np.float64]:
    """Return preferred starts: the j-th kept request of a kind starts when the program has started j of them."""
    wish = np.full(len(kinds.kind), float(late))
    order = np.argsort(kinds.arrival, kind="stable")
    for k in range(len(kinds.prompt)):
        mine = order[(kinds.kind[order] == k) & kept[order]]
        wish[mine] = np.searchsorted(started[k], np.arange(1, len(mine) + 1) - ROUNDING)
    return wish


def _less(kinds: Kinds, kv_capacity: int) -> int:
    """Return the reduced memory of the program, so that its solution can be rounded."""
    return max(
        kv_capacity - int((kinds.prompt + kinds.output).sum()), int((kinds.prompt + kinds.output).max())
    )


def _mean(kinds: Kinds, kv_capacity: int, seconds: float) -> tuple[float, list[NDArray[np.float64]]]:
    """Return a lower bound on the mean latency, and several choices of preferred starts.

    The sum of starts is the sum over slots of the requests not yet started. A request not started by the last slot of
    the program counts as started after it, without memory: a relaxation for any number of slots.
    """
    slots = int(_span(kinds, kv_capacity) * 1.02 + kinds.arrival.min()) + 2 * int(kinds.output.max())
    n, arrived = len(kinds.kind), _arrived(kinds, slots)
    fixed = kinds.output[kinds.kind].sum() - kinds.arrival.sum()
    least = max(_one_machine(kinds, kv_capacity).sum() - kinds.arrival.sum(), kinds.slot.sum() + fixed) / n
    wishes = [kinds.slot.astype(np.float64)]
    for memory in (kv_capacity, _less(kinds, kv_capacity)):
        rows, limits = _program(kinds, memory, slots)
        bounds = np.stack([np.zeros(arrived.size), arrived.ravel().astype(np.float64)], axis=1)
        solved = _solve(-np.ones(arrived.size), rows, limits, bounds, seconds)
        if solved is None:
            break
        if memory == kv_capacity:
            total = arrived[:, -1].sum() * slots + solved[0] + fixed
            least = max(least, float(total) / n * (1 - 1e-7))
        wishes.append(_wishes(kinds, solved[1].reshape(arrived.shape), np.ones(n, bool), slots))
    return least, wishes


def _solve(
    cost: NDArray[np.float64],
    rows: Any,
    limits: NDArray[np.float64],
    bounds: NDArray[np.float64],
    seconds: float,
) -> tuple[float, NDArray[np.float64]] | None:
    """Return the least cost and its point; None if time runs out."""
    if seconds <= 0:
        return None
    options = {"time_limit": seconds}
    solved = optimize.linprog(cost, rows, limits, bounds=bounds, method="highs-ipm", options=options)
    return (float(solved.fun), solved.x) if solved.status == 0 else None


def _tail(kinds: Kinds, kv_capacity: int, seconds: float) -> tuple[float, list[NDArray[np.float64]]]:
    """Return a lower bound on the 95th percentile of latency, and several choices of preferred starts.

    The bound is the least whole L for which a program can finish 95 % of the requests within L, by bisection.
    """
    low, need = _tail_volume(kinds, kv_capacity), _on_time(len(kinds.kind))
    deadline = time.monotonic() + seconds
    paced = [_paced(kinds, share * kv_capacity) for share in (1.0, 0.98, 0.96, 0.94, 0.9)]
    reached = [schedule_metrics(kinds, place(kinds, kv_capacity, wish))["e2e_latency_p95"] for wish in paced]
    high = math.ceil(min(reached))
    while low < high:
        middle = (low + high) // 2
        found = _within(kinds, kv_capacity, middle, deadline - time.monotonic())
        if found is None:
            break
        if found[0] >= need - ROUNDING:
            high = middle
        else:
            low = middle + 1
    latency = low
    while (
        found := _within(kinds, _less(kinds, kv_capacity), latency, deadline - time.monotonic())
    ) is not None:
        if found[0] >= min(need + len(kinds.prompt), len(kinds.kind)) - ROUNDING:
            return float(low), [*paced, found[1]]
        latency += 1 + latency // 25
    return float(low), paced


def _paced(kinds: Kinds, speed: float) -> NDArray[np.float64]:
    """Return preferred starts if memory × time were spent at a given speed, the longest 5 % at the end.

    First come, first served on one machine of that speed; the postponed requests are spread evenly over the arrivals.
    """
    n, work = len(kinds.kind), _work(kinds)[kinds.kind]
    late = np.zeros(n, bool)
    spare = n - _on_time(n)
    for k in np.argsort(-_work(kinds), kind="stable"):
        mine = np.flatnonzero(kinds.kind == k)
        late[mine[np.linspace(0, len(mine) - 1, min(spare, len(mine))).astype(int)]] = True
        spare -= min(spare, len(mine))
    order = np.lexsort((kinds.arrival, late))
    before = np.concatenate([[0.0], np.cumsum(work[order] / speed)[:-1]])
    wish = np.zeros(n)
    wish[order] = before + np.maximum.accumulate(kinds.slot[order] - before)
    return wish


def _within(
    kinds: Kinds, kv_capacity: int, latency: int, seconds: float
) -> tuple[float, NDArray[np.float64]] | None:
    """Return the most requests that can be done within a latency, and preferred starts; None if time runs out.

    Besides S there are C[k, t], the number on time among the arrivals until slot t: S_t ≤ C_t ≤ S_{t + latency - o}.
    """
    slots = kinds.arrivals.shape[1] + latency
    count, arrived = len(kinds.prompt), _arrived(kinds, slots)
    rows, limits = _program(kinds, kv_capacity, slots)
    size = count * slots
    one, step = (
        sparse.eye_array(size),
        sparse.block_diag([sparse.diags_array([1.0, -1.0], offsets=[0, -1], shape=(slots, slots))] * count),
    )
    wait = [latency - int(output) for output in kinds.output]
    last = sparse.block_diag(
        [sparse.diags_array([1.0], offsets=[-max(w, 0)], shape=(slots, slots)) for w in wait]
    )
    zero = sparse.csr_array(rows.shape)
    none = sparse.csr_array((size, size))
    matrix = sparse.vstack(
        [
            sparse.hstack([rows, zero]),
            sparse.hstack([one, -one]),
            sparse.hstack([-one, last]),
            sparse.hstack([none, step]),
            sparse.hstack([none, -step]),
        ],
        format="csr",
    )
    come = np.diff(arrived, axis=1, prepend=0).ravel().astype(np.float64)
    limit = np.concatenate([limits, np.zeros(2 * size), come, np.zeros(size)])
    most = np.concatenate([arrived.ravel(), np.where(np.array(wait)[:, None] < 0, 0, arrived).ravel()])
    reward = np.zeros(2 * size)
    reward[size + slots - 1 :: slots] = -1.0
    solved = _solve(reward, matrix, limit, np.stack([np.zeros(2 * size), most], axis=1), seconds)
    if solved is None:
        return None
    started, chosen = (part.reshape(count, slots) for part in (solved[1][:size], solved[1][size:]))
    kept = np.zeros(len(kinds.kind), bool)
    order = np.argsort(kinds.arrival, kind="stable")
    for k in range(count):
        numbers = np.diff(np.floor(chosen[k] + ROUNDING), prepend=0)
        mine = order[kinds.kind[order] == k]
        place_in_slot = np.arange(len(mine)) - np.searchsorted(kinds.slot[mine], kinds.slot[mine])
        kept[mine] = place_in_slot < numbers[kinds.slot[mine]]
    return -solved[0], _wishes(kinds, started, kept, slots)
