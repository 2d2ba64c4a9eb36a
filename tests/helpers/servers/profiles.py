"""Small synthetic profiles with known truth, and recipes for them."""

import csv

from kvgym.batch_time.hardware.presets import GPUS
from kvgym.batch_time.hardware.shapes import ModelShape
from kvgym.servers.calibration.profile_csv import BLOCK_OPERATORS
from kvgym.servers.calibration.recipes import Recipe

SHAPE = ModelShape(name="small", num_layers=4, hidden=1024, num_heads=8, num_kv_heads=4, ffn=2816, vocab=1000)
TOKENS = (1, 8, *range(16, 513, 16))
DECODES, CONTEXTS = (1, 2, 4, 8, 16), (32, 128, 512, 1024)
CHUNKS, CACHED = (64, 128, 256, 512), (0, 128, 512)
SIZES = [2048 * 2**i for i in range(16)]


def operator_ms(tokens):
    return 0.008 * (1 + tokens / 512)


def decode_ms(n, k):
    return 0.01 + 1e-6 * n * k


def prefill_ms(c, k):
    return 0.02 + 4e-8 * c * c + 8e-8 * c * k


def all_reduce_ms(size):
    return 0.01 + size * 5e-9


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def linear_rows(degrees=(1, 2)):
    return [
        {
            **{f"time_stats.{name}.median": operator_ms(t) for name in BLOCK_OPERATORS},
            "time_stats.add.median": 0.002,
            "time_stats.emb.median": 0.003,
            "n_head": SHAPE.num_heads,
            "n_embd": SHAPE.hidden,
            "n_expanded_embd": SHAPE.ffn,
            "num_tokens": t,
            "num_tensor_parallel_workers": degree,
        }
        for t in TOKENS
        for degree in degrees
    ]


def attention_row(batch, chunk, context, ms, *, sampled=False, degree=1):
    name = "{}_median_ms" if sampled else "time_stats.{}.median"
    return {
        name.format("attn_prefill"): ms if chunk else "",
        name.format("attn_decode"): "" if chunk else ms,
        name.format("attn_output_reshape"): 0.001,
        "n_q_head": SHAPE.num_heads,
        "tp" if sampled else "num_tensor_parallel_workers": degree,
        "batch_size": batch,
        "prefill_chunk_size": chunk,
        "kv_cache_size": context,
        "is_prefill": chunk > 0,
    }


def attention_rows(**options):
    rows = [attention_row(n, 0, k, decode_ms(n, k), **options) for n in DECODES for k in CONTEXTS]
    return rows + [attention_row(1, c, k, prefill_ms(c, k), **options) for c in CHUNKS for k in CACHED]


def all_reduce_rows(nodes=2):
    """Every other small one waits."""
    return [
        {
            "time_stats.all_reduce.min": all_reduce_ms(size),
            "time_stats.all_reduce.median": all_reduce_ms(size) + (0.05 if i % 2 and size < 7e6 else 0.0),
            "size": size,
            "num_workers": 2,
            "devices_per_node": nodes,
        }
        for i, size in enumerate(SIZES)
    ]


def write_profiles(folder, *, degree=1, sampled=False):
    write(folder / "linear.csv", linear_rows())
    write(folder / "attention.csv", attention_rows(sampled=sampled, degree=degree))
    if degree > 1:
        write(folder / "all_reduce.csv", all_reduce_rows())


def recipe(*, degree=1, profiles=None, **changes):
    files = {"linear": "linear.csv", "attention": "attention.csv"}
    if degree > 1:
        files["all_reduce"] = "all_reduce.csv"
    fields = {
        "name": "made", "description": "made up", "source": "made up", "profiles": {**files, **(profiles or {})},
        "model": SHAPE, "gpu": GPUS["a100-80gb"], "tensor_parallel": degree,
    }  # fmt: skip
    return Recipe.model_validate({**fields, **changes})
