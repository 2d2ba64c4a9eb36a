"""Comparison of measured columns with what the hardware can do: times that are too slow or too fast as a whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvgym.batch_time.hardware.interpolation import Floats

LAUNCH_MS = 0.005
"""Minimum time of a kernel without its work, for bounds, milliseconds."""

_PRODUCT = (0.7, 3.0)
_NORM = (0.2, 6.0)  # element-wise kernels may read from the L2 cache, faster than from memory
PLAUSIBLE = {
    "attn_pre_proj": _PRODUCT,
    "attn_post_proj": _PRODUCT,
    "mlp_up_proj": _PRODUCT,
    "mlp_down_proj": _PRODUCT,
    "input_layernorm": _NORM,
    "post_attention_layernorm": _NORM,
    "attn_rope": (0.2, 6.0),
    "mlp_act": (0.2, 5.0),
    "add": (0.2, 3.0),
    "emb": (0.2, 15.0),
    "attn_decode": (0.7, 3.0),
    "attn_prefill": (0.7, 8.0),
    "all_reduce": (0.5, 5.0),
    "all_reduce.min": (0.5, 5.0),
}
"""Plausible measured / ideal times of a column's rows with the most work.

The ideal time is that at the hardware's peak. Public profiles of A100 and H100 have 1.3 to 1.6 for matrix products, 2
to 3.3 for norms, rotary embedding and activation, 1 to 1.2 for additions, 5 to 8 for embeddings, 1.1 to 1.5 for decode
attention, 2 to 6 for chunks of prefill attention, and 1.4 to 1.6 for all-reduces over NVLink.
"""

_REMEDY = "check the unit (ms per layer and GPU) and the recipe's model, weights, tensor_parallel and gpu"
_BATCH = "does kv_cache_size count the keys of the whole batch? Then set profiles.kv_cache_size: batch"
_CACHED = "does kv_cache_size count the tokens of each request? Then set profiles.kv_cache_size: cached"


def doubts(path: Path, column: str, ms: Floats, ideal_ms: Floats, *, whole_batch: bool = False) -> list[str]:
    """Return what is implausible about a column: a line, or nothing.

    Compared is the median of the quarter of its rows with the most work, where launches matter least.

    Args:
        path: its file.
        column: its name.
        ms: measured times, shape (rows,).
        ideal_ms: times at the hardware's peak, shape (rows,).
        whole_batch: whether cached tokens were read as those of the whole batch.
    """
    if column not in PLAUSIBLE:
        return []
    low, high = PLAUSIBLE[column]
    largest = ideal_ms >= np.quantile(ideal_ms, 0.75)
    slow = float(np.median(ms[largest] / (ideal_ms[largest] + LAUNCH_MS)))
    fast = float(np.median(ms[largest] / ideal_ms[largest]))
    if slow <= high and fast >= low:
        return []
    remedy = _REMEDY
    if column == "attn_decode" and whole_batch == (slow > high):
        remedy = _CACHED if whole_batch else _BATCH
    return [
        f"profile {path.name}: column {column}: its {largest.sum():,} largest rows take "
        f"{slow if slow > high else fast:.2g} x the ideal time (plausible: {low:g} to {high:g}); {remedy}"
    ]
