"""Compiled: the bound from prices of memory, and the ascent that finds good prices."""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit, kernel

FAR = 0  # level of a large request with more room next to it than any large prompt; others have a room of their own


@jit
def price_of(begin: Any, i: Any, arrival: Any, prompt: Any, output: Any, sums: Any) -> Any:
    """Return latency and priced memory of request i that starts at ``begin``.

    Σ_j (s + j) p(k + j) = (s - k) Σ p(u) + Σ u p(u) over its slots u; ``sums`` has both summed up to each slot.
    """
    done = begin + output[i]
    plain = sums[0, done] - sums[0, begin]
    return done - arrival[i] + (prompt[i] - begin) * plain + sums[1, done] - sums[1, begin]


@jit
def take(i: Any, done: Any, prompt: Any, output: Any, used: Any) -> None:
    """Count the memory of request i that completes at ``done``."""
    for j in range(1, output[i] + 1):
        used[done - output[i] + j] += prompt[i] + j


@jit
def before(i: Any, done: Any, prompt: Any, output: Any, rooms: Any, offset: Any, chains: Any) -> Any:
    """Return the level at which a chain that request i continues at ``done`` costs least: see :func:`ascend`."""
    peak = prompt[i] + output[i]
    best, value = FAR, chains[FAR, done - peak + offset]
    for level in range(1, len(rooms)):
        at = done - peak + max(prompt[i], rooms[level]) + offset
        if chains[level, at] < value:
            best, value = level, chains[level, at]
    return best


@jit
def place_before(i: Any, done: Any, level: Any, prompt: Any, output: Any, rooms: Any, offset: Any) -> Any:
    """Return the column at which to look up, at ``level``, the chain that request i continues."""
    at = done - prompt[i] - output[i] + offset
    return at if level == FAR else at + max(prompt[i], rooms[level])


@jit
def best_chain(
    arrival: Any,
    prompt: Any,
    output: Any,
    memory: Any,
    levels: Any,
    rooms: Any,
    end: Any,
    sums: Any,
    worth: Any,
    chains: Any,
    last: Any,
    used: Any,
    count: Any,
) -> Any:
    """Return the cost of the cheapest chain of large requests, and count what it takes.

    ``chains[level, x]`` is the least cost of a chain with a last request of this level, completed by
    x - offset; at level FAR, by x - offset + its room. ``last`` is the request that set the value, -1 where it is that
    of x - 1.
    """
    n, offset = len(arrival), memory
    for level in range(len(rooms)):
        for x in range(chains.shape[1]):
            chains[level, x] = 0.0
            last[level, x] = -1
    for done in range(1, end + 1):
        for level in range(1, len(rooms)):
            chains[level, done + offset] = chains[level, done - 1 + offset]
        for i in range(n):
            level = levels[i]
            if level < 0 or done - output[i] < arrival[i]:
                continue
            from_level = before(i, done, prompt, output, rooms, offset, chains)
            at = place_before(i, done, from_level, prompt, output, rooms, offset)
            cost = chains[from_level, at] - worth[i]
            cost += price_of(done - output[i], i, arrival, prompt, output, sums)
            x = done + offset
            if level == FAR:
                x -= memory - prompt[i] - output[i]
            if cost < chains[level, x]:
                chains[level, x] = cost
                last[level, x] = i
        # Large requests with room r < M/2 that completed at ``done`` stand at done - r: nothing lies further back.
        x = done + offset - (memory - 1) // 2
        if chains[FAR, x - 1] < chains[FAR, x]:
            chains[FAR, x] = chains[FAR, x - 1]
            last[FAR, x] = -1
    for x in range(end + offset - (memory - 1) // 2 + 1, end + offset + 1):
        if chains[FAR, x - 1] < chains[FAR, x]:
            chains[FAR, x] = chains[FAR, x - 1]
            last[FAR, x] = -1
    best = FAR
    for level in range(1, len(rooms)):
        if chains[level, end + offset] < chains[best, end + offset]:
            best = level
    value, level, x = chains[best, end + offset], best, end + offset
    while x > 0:
        i = last[level, x]
        if i < 0:
            x -= 1
            continue
        done = x - offset
        if level == FAR:
            done += memory - prompt[i] - output[i]
        count[i] += 1
        take(i, done, prompt, output, used)
        level = before(i, done, prompt, output, rooms, offset, chains)
        x = place_before(i, done, level, prompt, output, rooms, offset)
    return value


@kernel(
    "float64(int64[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1], int64, float64, int64, float64, "
    "float64[::1], float64[::1], float64[::1], float64[::1], float64[:, ::1], float64[:, ::1], int64[:, ::1], "
    "int64[::1], int64[::1])",
    "bounds",
    nogil=True,
)
def ascend(
    arrival: Any,
    prompt: Any,
    output: Any,
    memory: Any,
    levels: Any,
    rooms: Any,
    end: Any,
    target: Any,
    steps: Any,
    scale: Any,
    prices: Any,
    worth: Any,
    best_prices: Any,
    best_worth: Any,
    sums: Any,
    chains: Any,
    last: Any,
    used: Any,
    count: Any,
) -> Any:
    """Raise the bound by subgradient steps of Polyak's length; return the best one.

    Args:
        arrival: int64 (n,).
        prompt: int64 (n,).
        output: int64 (n,).
        memory: M.
        levels: int64 (n,), -1 for requests that no chain holds, :data:`FAR`, or an index into ``rooms``.
        rooms: int64 (levels,), the room next to a large request of each level, tokens, rounded up; entry 0 unused.
        end: the last slot considered.
        target: a value that the bound cannot exceed, for the length of the steps.
        steps: number of steps.
        scale: of steps in ``worth`` relative to steps in ``prices``.
        prices: of a token of memory in each slot, float64 (end + 1,) ≥ 0; entry 0 unused.
        worth: of a request in a chain, float64 (n,).
        best_prices: filled with those of the best bound.
        best_worth: the same.
        sums: scratch (2, end + 1).
        chains: scratch (levels, end + M + 1).
        last: scratch of the same shape.
        used: scratch (end + 1,).
        count: scratch (n,).
    """
    n = len(arrival)
    best, pace, since = -1e300, 1.0, 0
    for _ in range(steps):
        value = 0.0
        sums[0, 0] = sums[1, 0] = 0.0
        for u in range(1, end + 1):
            sums[0, u] = sums[0, u - 1] + prices[u]
            sums[1, u] = sums[1, u - 1] + u * prices[u]
            used[u] = 0
        value -= memory * sums[0, end]
        large = 0
        for i in range(n):
            count[i] = 0
            beyond = float(end + 1 - arrival[i])  # it completes after the last slot considered
            if levels[i] >= 0:
                large += 1
                value += worth[i]
                if beyond < worth[i]:
                    value += beyond - worth[i]
                    count[i] += 1
                continue
            cheapest, begin = beyond, -1
            for k in range(arrival[i], end - output[i] + 1):
                cost = price_of(k, i, arrival, prompt, output, sums)
                if cost < cheapest:
                    cheapest, begin = cost, k
            value += cheapest
            if begin >= 0:
                take(i, begin + output[i], prompt, output, used)
        if large:
            value += best_chain(
                arrival, prompt, output, memory, levels, rooms, end, sums, worth, chains, last, used, count
            )
        if value > best + 1e-7 * abs(best):
            best, since = value, 0
            for u in range(end + 1):
                best_prices[u] = prices[u]
            for i in range(n):
                best_worth[i] = worth[i]
        else:
            since += 1
            if since == 30:
                pace, since = 0.7 * pace, 0
                for u in range(end + 1):
                    prices[u] = best_prices[u]
                for i in range(n):
                    worth[i] = best_worth[i]
                if pace < 1e-3:
                    break
                continue
        square = 0.0
        for u in range(1, end + 1):
            slope = used[u] - memory
            if slope > 0 or prices[u] > 0:
                square += float(slope) * slope
        for i in range(n):
            if levels[i] >= 0:
                square += (scale * (1 - count[i])) ** 2
        if square == 0 or target <= value:
            break
        step = pace * (target - value) / square
        for u in range(1, end + 1):
            prices[u] = max(0.0, prices[u] + step * (used[u] - memory))
        for i in range(n):
            if levels[i] >= 0:
                worth[i] += step * scale * scale * (1 - count[i])
    return best
