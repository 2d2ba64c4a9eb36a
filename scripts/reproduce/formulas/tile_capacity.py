"""Service rate of nodes with tiled batch times, and the length of RAD's cycles.

Source: Bari, Hegde and de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
Theorems 1 and 2. Batch times are those of :class:`~kvgym.batch_time.models.tile.TileBatchTime` without its overhead,
which the theorems leave out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.batch_time.models.tile import TiledNode
from kvgym.errors import ConfigError
from kvgym.theory.checks import check_number, check_numbers
from kvgym.utils.arguments import explained

__all__ = [
    "cycle_length",
    "load_slack",
    "max_rate",
    "mean_request_time",
    "request_time",
    "requests_per_cycle",
    "time_besides_prefill_attention",
    "worst_request_time",
]


@explained
def request_time(
    prompt_len: ArrayLike, output_len: ArrayLike, node: TiledNode, *, chunk: int | None = None
) -> NDArray[np.float64]:
    """Return the optimal effective completion time of requests, seconds, equation (13).

    Time that a request adds to its batches if all are perfectly tiled: its share of the weight tiles, its
    non-linear operators, the attention of its decodes at L^P + 1, …, L^P + L^D tokens, and the attention of its
    prefill.

    Args:
        prompt_len: L^P, tokens, any shape.
        output_len: L^D, decodes, a shape that broadcasts with it.
        node: the figures of the node, all tile rates at its optimal tiling.
        chunk: prompt tokens per chunk in the attention term L^P (L^P + chunk); None = t*_lcm as printed, the
            least common multiple of the three tile sizes. The proof calls these chunks optimal, but the sum
            it minimises (11), without ceilings, falls with the chunk; and even with ceilings chunks of t_col
            tokens take less than chunks of t_lcm where t_row > t_col (they skip more masked entries). With
            ``chunk=1`` the result is a lower bound whatever the chunks are.

    Returns:
        float64 array of the broadcast shape.

    Raises:
        ConfigError: the chunk is below 1.
    """
    prompt = check_numbers("prompt_len", prompt_len, least=0).astype(np.int64)
    size = math.lcm(node.t_row, node.t_col, node.t_red) if chunk is None else chunk
    check_number("chunk", size, least=1)
    volume = node.t_row * node.t_col * node.t_red
    per_pair = node.num_layers * node.width / (node.num_sms * node.gemm_rate * volume)
    attention = per_pair * (prompt * (prompt + size))
    return np.asarray(time_besides_prefill_attention(prompt, output_len, node) + attention, dtype=np.float64)


@explained
def time_besides_prefill_attention(
    prompt_len: ArrayLike, output_len: ArrayLike, node: TiledNode
) -> NDArray[np.float64]:
    """Return all terms of (13) but the last, seconds: weight tiles, non-linear operators, attention of decodes.

    Args:
        prompt_len: L^P, tokens, any shape.
        output_len: L^D, decodes, a shape that broadcasts with it.
        node: the figures of the node.

    Returns:
        float64 array of the broadcast shape.

    Raises:
        ConfigError: a length below 0.
    """
    prompt = check_numbers("prompt_len", prompt_len, least=0).astype(np.int64)
    tokens = prompt + check_numbers("output_len", output_len, least=0).astype(np.int64)
    weights = tokens / (node.linear_rate * node.t_col)
    decodes = node.num_layers * (_decode_attention(tokens, node) - _decode_attention(prompt, node))
    return np.asarray(weights + tokens / node.nonlinear_rate + decodes, dtype=np.float64)


@explained
def mean_request_time(
    prompt_len: ArrayLike, output_len: ArrayLike, node: TiledNode, *, chunk: int | None = None
) -> float:
    """Return T̄^R of Theorem 1, seconds: the mean of :func:`request_time` over observed lengths.

    Args:
        prompt_len: tokens of each request, shape (n,), e.g. a column of a request table.
        output_len: the same of the outputs.
        node: the figures of the node.
        chunk: see :func:`request_time`.

    Raises:
        ConfigError: no requests, or the chunk is below 1.
    """
    times = request_time(prompt_len, output_len, node, chunk=chunk)
    if not times.size:
        raise ConfigError("there must be at least one request")
    return float(np.mean(times))


def max_rate(mean_time: float, num_nodes: int = 1) -> float:
    """Return r / T̄^R, requests per second: above it no planner and scheduler are stable (Theorem 1).

    RAD is stable below it if prompts fill whole chunks of t*_lcm tokens (Assumption 3) and the KV cache holds
    t*_col of the longest requests (Assumption 4); see :func:`requests_per_cycle`.

    Args:
        mean_time: T̄^R, seconds. For a bound that holds for every way of chunking take it with ``chunk=1``.
        num_nodes: r.

    Raises:
        ConfigError: a figure is not positive.
    """
    check_number("mean_time", mean_time, above=0)
    check_number("num_nodes", num_nodes, least=1)
    return num_nodes / mean_time


def load_slack(rate: float, mean_time: float, num_nodes: int = 1) -> float:
    """Return the largest ε with λ T̄^R <= r(1 − ε), as Theorem 2 asks; 0 or less where there is none.

    Args:
        rate: λ, requests per second at all nodes together.
        mean_time: T̄^R, seconds.
        num_nodes: r.
    """
    return 1 - check_number("rate", rate, least=0) / max_rate(mean_time, num_nodes)


@explained
def worst_request_time(longest_prompt: int, longest_output: int, nodes: Sequence[TiledNode]) -> float:
    """Return T^max of Theorem 2, equation (14), seconds: a longest request alone, one token per batch.

    It charges prompt tokens the attention of a decode. That bounds what Theorem 2 needs, the decodes of any
    request; that it also bounds a prefill in chunks of one token, as the text says, follows from Assumption 2
    only, and does not hold for every node (a chunk of one token is padded to t_col columns).

    Args:
        longest_prompt: l^P,max, tokens.
        longest_output: l^D,max, tokens.
        nodes: the node under every tiling that it may use; the slowest counts.

    Raises:
        ConfigError: no nodes.
    """
    if not len(nodes):
        raise ConfigError("there must be at least one tiling")
    check_number("longest_prompt", longest_prompt, least=0)
    check_number("longest_output", longest_output, least=0)
    tokens = longest_prompt + longest_output
    return max(
        tokens / node.linear_rate
        + tokens / node.nonlinear_rate
        + node.num_layers * float(_decode_attention(np.asarray(tokens), node))
        for node in nodes
    )


def requests_per_cycle(slack: float, mean_time: float, worst_time: float, t_col: int) -> int:
    """Return the least parameter n of RAD that Theorem 2 covers: n > (t*_col − 1) T^max / (ε T̄^R).

    Args:
        slack: ε, in (0, 1], see :func:`load_slack`.
        mean_time: T̄^R, seconds.
        worst_time: T^max, seconds.
        t_col: t*_col, columns of the optimal tile.

    Raises:
        ConfigError: the slack is not in (0, 1]: the load is not below what the nodes can serve.
    """
    check_number("slack", slack, above=0, most=1)  # without slack no number of requests per cycle suffices
    check_number("mean_time", mean_time, above=0)
    check_number("worst_time", worst_time, least=0)
    check_number("t_col", t_col, least=1)
    share = slack * mean_time
    bound = (t_col - 1) * worst_time / share if share else math.inf
    if not bound < math.inf:
        raise ConfigError(f"slack = {slack:g}: no finite number of requests per cycle is enough")
    return math.floor(bound) + 1


def cycle_length(num_requests: int, mean_time: float, worst_time: float, t_col: int) -> float:
    """Return the bound (26) on the expected time of a cycle of RAD, n T̄^R + (t*_col − 1) T^max, seconds.

    Args:
        num_requests: n, requests started per cycle.
        mean_time: T̄^R, seconds.
        worst_time: T^max, seconds.
        t_col: t*_col, columns of the optimal tile.
    """
    check_number("num_requests", num_requests, least=0)
    check_number("mean_time", mean_time, least=0)
    check_number("worst_time", worst_time, least=0)
    check_number("t_col", t_col, least=1)
    return num_requests * mean_time + (t_col - 1) * worst_time


def _decode_attention(position: NDArray[np.int64], node: TiledNode) -> NDArray[np.float64]:
    """Return seconds of one layer's attention of decodes at 1, …, position tokens together, by (5)."""
    tiles = _rounded_up_sum(position, node.gemv_row) * -(-node.kv_width // node.gemv_col)
    tiles = tiles + _rounded_up_sum(position, node.gemv_col) * -(-node.kv_width // node.gemv_row)
    return np.asarray(tiles / (node.num_sms * node.gemv_rate), dtype=np.float64)


def _rounded_up_sum(last: NDArray[np.int64], tile: int) -> NDArray[np.int64]:
    """Return ⌈1/tile⌉ + … + ⌈last/tile⌉."""
    full, rest = np.divmod(last, tile)
    return np.asarray(tile * (full * (full + 1) // 2) + rest * (full + 1), dtype=np.int64)
