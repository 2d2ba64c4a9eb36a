"""The best chunks of a prompt under tiled batch times, and the resulting bound on the rate.

Source: Bari, Hegde and de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
equations (6), (7), (11)-(13), Theorem 1.

Under (7) a chunk of c tokens that ends at token e of its prompt costs ⌈c/t_col⌉ g(e), plus seconds per token that do
not depend on the chunks. g(e) = 1/μ_Lin + N times the attention (6) of one column of tiles; it never falls with e.

So for any chunks: if those after a chunk have n columns of tiles together, the chunk ends at token L^P − n t_col or
later, and the earliest ends cost least. These ends leave one short chunk, the first, and the least number of columns,
⌈L^P/t_col⌉. Without an overhead per batch a
chunk of several columns costs no less than its columns one by one, all but the last of which end sooner: **the best
chunks have t_col tokens each, the first the rest**. With an overhead, a dynamic program over ⌈L^P/t_col⌉ places chooses
the number of columns of each chunk.

The paper uses chunks of t*_lcm, the least common multiple of all three tile sizes. If that is above t_col, as with its
tiles of an A100 (256 and 128), they are not optimal. Then its T̄^R is not a bound either: equation (11)
drops the ceilings, (12) returns chunks of t*_lcm as the optimum of (11), although its terms fall with the chunk.
:func:`least_request_time` is a bound that holds, and under Assumption 3 one that is attained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.batch_time.models.tile import TiledNode, tile_batch_time
from kvgym.errors import ConfigError
from kvgym.theory.checks import check_number, check_numbers
from kvgym.utils.arguments import explained

from .tile_capacity import time_besides_prefill_attention

__all__ = [
    "attained_request_time",
    "best_chunks",
    "capacity_gap",
    "least_request_time",
    "prefill_time",
]


@explained
def best_chunks(prompt_len: int, node: TiledNode, *, overhead: float = 0.0) -> NDArray[np.int64]:
    """Return the fastest chunks of a prompt, each of them a batch of its own, by (7).

    Args:
        prompt_len: L^P ≥ 1, tokens.
        node: the figures of the node.
        overhead: seconds of every batch besides (7); with 0 chunks of t_col tokens, the first the rest, are best.

    Returns:
        int64 array of tokens, in order; they add up to ``prompt_len``. Of equally good ones the fewest.

    Raises:
        ConfigError: no token, or an overhead below 0.
    """
    length = int(check_number("prompt_len", prompt_len, least=1))
    check_number("overhead", overhead, least=0)
    count = -(-length // node.t_col)
    ends = length - node.t_col * np.arange(count - 1, -1, -1)  # where each column of tiles may end at best
    column = 1 / node.linear_rate + _attention(ends, node)
    # least[k] = seconds of the first k columns; a chunk of n columns that ends with column k costs n column[k - 1].
    least, widths = np.zeros(count + 1), np.zeros(count + 1, np.int64)
    for k in range(1, count + 1):
        n = np.arange(1, k + 1)
        costs = least[k - n] + n * column[k - 1] + overhead
        best = int(np.flatnonzero(costs <= costs.min() * (1 + 1e-12))[-1])
        least[k], widths[k] = costs[best], n[best]
    borders, k = [count], count
    while k > 0:
        k -= int(widths[k])
        borders.append(k)
    tokens = np.concatenate(([0], ends))[borders[::-1]]
    return np.diff(tokens).astype(np.int64)


@explained
def prefill_time(
    chunks: Sequence[int] | NDArray[np.int64], node: TiledNode, *, overhead: float = 0.0
) -> float:
    """Return seconds of a prompt's prefill in given chunks, each of them a batch of its own, by (7).

    Args:
        chunks: tokens of each, in order, at least 1.
        node: the figures of the node.
        overhead: seconds of every batch besides (7).

    Raises:
        ConfigError: a chunk without tokens, or an overhead below 0.
    """
    check_number("overhead", overhead, least=0)
    total, start = 0.0, 1
    for chunk in check_numbers("chunks", chunks, least=1).astype(np.int64).tolist():
        total += overhead + tile_batch_time(node, prefills=[(start, chunk)])
        start += chunk
    return total


@explained
def least_request_time(prompt_len: ArrayLike, output_len: ArrayLike, node: TiledNode) -> NDArray[np.float64]:
    """Return the least seconds that a request adds to batches under any planner and scheduler.

    Its share of the weight tiles in full columns, its non-linear operators and the attention of its decodes, as in
    (13), and the attention of the best chunks with its ceilings. The sum over requests bounds the seconds of all
    batches together, whichever requests share them: columns are shared by rounding up tokens of a batch, not less
    than their sum; attention is not shared. So Proposition 1, Lemma 1 and Theorem 1 hold with it (of one tiling).

    It is attained where t_col divides the prompt and decodes come t_col at a time.

    Args:
        prompt_len: L^P ≥ 0, tokens, any shape.
        output_len: L^D ≥ 0, decodes, a shape that broadcasts with it.
        node: the figures of the node.

    Returns:
        float64 array of the broadcast shape.

    Raises:
        ConfigError: a length below 0.
    """
    besides = time_besides_prefill_attention(prompt_len, output_len, node)
    return np.asarray(besides + _best_attention(np.asarray(prompt_len, np.int64), node), dtype=np.float64)


@explained
def attained_request_time(
    prompt_len: ArrayLike, output_len: ArrayLike, node: TiledNode
) -> NDArray[np.float64]:
    """Return seconds of a request, with its prompt prefilled alone in the best chunks and its decodes t_col at a time.

    RAD attains it with ``chunk`` = t_col if that divides the prompt and t_col requests decode. It exceeds
    :func:`least_request_time` only by the empty part of the first chunk's column of tiles.

    Args:
        prompt_len: L^P ≥ 0, tokens, any shape.
        output_len: L^D ≥ 0, decodes, a shape that broadcasts with it.
        node: the figures of the node.

    Returns:
        float64 array of the broadcast shape.

    Raises:
        ConfigError: a length below 0.
    """
    prompt = check_numbers("prompt_len", prompt_len, least=0).astype(np.int64)
    missing = -prompt % node.t_col / (node.linear_rate * node.t_col)
    return np.asarray(least_request_time(prompt, output_len, node) + missing, dtype=np.float64)


@explained
def capacity_gap(prompt_len: ArrayLike, output_len: ArrayLike, node: TiledNode) -> float:
    """Return the relative gap in the known service rate: attained mean time / least mean time − 1.

    Rates up to r / mean of :func:`attained_request_time` can be served with cycles long enough and memory for t_col
    requests, none above r / mean of :func:`least_request_time`. 0 where t_col divides all prompts.

    Args:
        prompt_len: tokens of each request, shape (n,).
        output_len: the same of the outputs.
        node: the figures of the node.

    Raises:
        ConfigError: no requests, or a length below 0.
    """
    least = least_request_time(prompt_len, output_len, node)
    if not least.size:
        raise ConfigError("there must be at least one request")
    return float(np.mean(attained_request_time(prompt_len, output_len, node)) / np.mean(least) - 1)


def _attention(end: NDArray[np.int64], node: TiledNode) -> NDArray[np.float64]:
    """Return seconds of all layers' attention of one column of tiles that ends at a token, (6)."""
    pairs = -(-end // node.t_row) * -(-node.width // node.t_red)
    pairs = pairs + -(-node.width // node.t_row) * -(-end // node.t_red)
    return np.asarray(node.num_layers * pairs / (node.num_sms * node.gemm_rate), dtype=np.float64)


def _best_attention(prompt: NDArray[np.int64], node: TiledNode) -> NDArray[np.float64]:
    """Return seconds of attention of prompts in their best chunks: ends at L, L − t_col, … above 0."""
    longest = int(prompt.max(initial=0))
    total = np.concatenate(([0.0], _attention(np.arange(1, longest + 1), node)))
    for end in range(node.t_col + 1, longest + 1):
        total[end] += total[end - node.t_col]
    return np.asarray(total[prompt], dtype=np.float64)
