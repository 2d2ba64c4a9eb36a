"""Time the operators of one transformer layer on this machine and write profiles for ``kvgym server calibrate``.

    python scripts/profile_gpu.py --model llama3-8b --out my-gpu
    torchrun --nproc-per-node 2 scripts/profile_gpu.py --model llama3-8b --tensor-parallel 2 --out my-gpu-tp2
    kvgym server calibrate --recipe my-gpu/recipe.yaml

Writes linear.csv, attention.csv, with several GPUs all_reduce.csv, and recipe.yaml. Weights are random. Kernels are
PyTorch's; attention uses FlashAttention if the package flash_attn is installed. On a GPU, times come from CUDA events,
with the L2 cache overwritten before each run; on a CPU, from the clock.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from kvgym.batch_time.hardware.kv_capacity import check_tensor_parallel
from kvgym.batch_time.hardware.presets import GPUS, MODELS
from kvgym.batch_time.hardware.shapes import GPU, ModelShape, require_plain
from kvgym.errors import ConfigError, KVGymError

TOKENS = (
    1,
    2,
    4,
    *range(8, 1025, 8),
    *range(1040, 2049, 16),
    *range(2080, 4097, 32),
    *range(4352, 8193, 256),
)
DECODES = (*range(1, 17), *range(20, 65, 4), *range(72, 129, 8), 160, 192, 224, 256)
CONTEXTS = (32, 64, 96, 127, 128, 129, 255, 256, 257, 384, 511, 512, 513, 768, 1023, 1024, 1025, 1536, 2048, 3072, 4096,
            6144, 8192, 12288, 16384)  # fmt: skip
CHUNKS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
CACHED = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SIZES = tuple(2048 * step for step in (*range(1, 64), *range(64, 1024, 16), *range(1024, 16384, 512)))
LISTS = {
    "tokens": TOKENS,
    "decodes": DECODES,
    "contexts": CONTEXTS,
    "chunks": CHUNKS,
    "cached": CACHED,
    "sizes": SIZES,
}

FLUSH_BYTES = 256 * 2**20
"""More than the L2 cache of any GPU; writing it also lets the queue of kernels fill up behind it."""

Row = dict[str, Any]


class Machine:
    """Timer of calls on a device.

    Args:
        device: ``"cuda"`` or ``"cpu"``.
        repeats: timed runs of each call.
        warmup: untimed runs before those.
    """

    def __init__(self, device: str, repeats: int, warmup: int) -> None:
        import torch

        self.torch, self.repeats, self.warmup = torch, repeats, warmup
        self.cuda = device == "cuda"
        self.device = torch.device(device, int(os.environ.get("LOCAL_RANK", "0")) if self.cuda else None)
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        if self.cuda:
            torch.cuda.set_device(self.device)
            self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)

    def random(self, *shape: int) -> Any:
        """Return a tensor of small random numbers."""
        return self.torch.randn(*shape, device=self.device, dtype=self.dtype) * 0.02

    def times(self, call: Callable[[], Any]) -> list[float]:
        """Return the milliseconds of each run of a call."""
        for _ in range(self.warmup):
            call()
        if not self.cuda:
            result = []
            for _ in range(self.repeats):
                start = time.perf_counter()
                call()
                result.append(1e3 * (time.perf_counter() - start))
            return result
        pairs = []
        for _ in range(self.repeats):
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flush.zero_()
            start.record()
            call()
            end.record()
            pairs.append((start, end))
        self.torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    def free_bytes(self) -> float:
        """Return the bytes of memory that measurements may use."""
        if self.cuda:
            return 0.4 * float(self.torch.cuda.mem_get_info()[0])
        return 0.2 * float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def columns(operator: str, times: Sequence[float]) -> Row:
    """Return the columns of one operator."""
    return {
        f"time_stats.{operator}.median": round(float(np.median(times)), 6),
        f"time_stats.{operator}.min": round(float(min(times)), 6),
    }


def shape_columns(model: ModelShape, parts: int) -> Row:
    """Return the columns that describe the measured shape."""
    return {
        "n_q_head": model.num_heads,
        "n_kv_head": model.num_kv_heads,
        "n_embd": model.hidden,
        "n_expanded_embd": model.ffn,
        "num_tensor_parallel_workers": parts,
    }


def linear_rows(machine: Machine, model: ModelShape, parts: int, tokens: Iterable[int]) -> list[Row]:
    """Time the token operators of one layer on one of ``parts`` GPUs."""
    torch, functional = machine.torch, machine.torch.nn.functional
    heads, kv_heads = model.num_heads // parts, max(1, model.num_kv_heads // parts)
    width, d, ffn = (heads + 2 * kv_heads) * model.head_dim, model.head_dim, model.ffn // parts
    pre, post = machine.random(width, model.hidden), machine.random(model.hidden, heads * d)
    up, down = machine.random(2 * ffn, model.hidden), machine.random(model.hidden, ffn)
    table, norm = machine.random(max(1, model.vocab // parts), model.hidden), machine.random(model.hidden)

    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        left, right = x.chunk(2, dim=-1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)

    rows = []
    for count in tokens:
        x, y = machine.random(count, model.hidden), machine.random(count, model.hidden)
        rotated = machine.random(count, heads + kv_heads, d)
        cos, sin = machine.random(count, 1, d // 2), machine.random(count, 1, d // 2)
        wide, narrow = machine.random(count, 2 * ffn), machine.random(count, ffn)
        attended = machine.random(count, heads * d)
        ids = torch.randint(len(table), (count,), device=machine.device)
        gate, value = wide.chunk(2, dim=-1)
        calls: dict[str, Callable[[], Any]] = {
            "emb": lambda ids=ids: functional.embedding(ids, table),
            "input_layernorm": lambda x=x: functional.rms_norm(x, (model.hidden,), norm),
            "attn_pre_proj": lambda x=x: functional.linear(x, pre),
            "attn_rope": lambda r=rotated, c=cos, s=sin: rotate(r, c, s),
            "attn_post_proj": lambda a=attended: functional.linear(a, post),
            "post_attention_layernorm": lambda y=y: functional.rms_norm(y, (model.hidden,), norm),
            "mlp_up_proj": lambda x=x: functional.linear(x, up),
            "mlp_act": lambda g=gate, v=value: functional.silu(g) * v,
            "mlp_down_proj": lambda n=narrow: functional.linear(n, down),
            "add": lambda x=x, y=y: x + y,
        }
        row: Row = {"num_tokens": count, **shape_columns(model, parts)}
        for name, call in calls.items():
            row |= columns(name, machine.times(call))
        rows.append(row)
    return rows


def attention_kernels() -> tuple[str, Callable[..., Any], Callable[..., Any]]:
    """Return the name of the attention kernels, prefill and decode.

    Both take queries of shape (requests, new tokens, heads, width), and keys and values of (requests, keys, KV heads,
    width); queries belong to the last keys.
    """
    try:
        from flash_attn import flash_attn_func, flash_attn_with_kvcache
    except ImportError:
        from torch.nn.attention.bias import causal_lower_right
        from torch.nn.functional import scaled_dot_product_attention

        def attend(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

        def prefill(q: Any, k: Any, v: Any) -> Any:
            return attend(q, k, v, causal_lower_right(q.shape[1], k.shape[1]))

        return "SDPA", prefill, attend
    return "FLASH_ATTENTION", lambda q, k, v: flash_attn_func(q, k, v, causal=True), flash_attn_with_kvcache


def attention_rows(
    machine: Machine,
    model: ModelShape,
    parts: int,
    *,
    decodes: Iterable[int],
    contexts: Iterable[int],
    chunks: Iterable[int],
    cached: Iterable[int],
) -> list[Row]:
    """Time decode and prefill attention of one layer on one of ``parts`` GPUs; skip sizes that do not fit."""
    heads, kv_heads = model.num_heads // parts, max(1, model.num_kv_heads // parts)
    name, prefill, decode = attention_kernels() if machine.cuda else _without_flash()
    entry = 2 * kv_heads * model.head_dim * machine.dtype.itemsize
    most = machine.free_bytes() / entry
    rows = []

    def measure(requests: int, new: int, past: int) -> None:
        keys = past + new
        if requests * keys > most:
            return
        q = machine.random(requests, new, heads, model.head_dim)
        k, v = (machine.random(requests, keys, kv_heads, model.head_dim) for _ in range(2))
        is_prefill = new > 1
        call = prefill if is_prefill else decode
        times = machine.times(lambda: call(q, k, v))
        empty = dict.fromkeys(columns("attn_decode", [0.0]) | columns("attn_prefill", [0.0]), "")
        rows.append(
            {
                **shape_columns(model, parts),
                "batch_size": requests,
                "prefill_chunk_size": new if is_prefill else 0,
                "kv_cache_size": past,
                "is_prefill": is_prefill,
                "attention_backend": name,
                **empty,
                **columns("attn_prefill" if is_prefill else "attn_decode", times),
            }
        )

    past_lengths, before = list(contexts), list(cached)
    for number in decodes:
        for past in past_lengths:
            measure(number, 1, past)
    for chunk in chunks:
        for past in before:
            measure(1, max(chunk, 2), past)
    return rows


def _without_flash() -> tuple[str, Callable[..., Any], Callable[..., Any]]:
    """Return PyTorch's own kernels even if flash_attn is installed, as it needs a GPU."""
    import sys
    from unittest.mock import patch

    with patch.dict(sys.modules, {"flash_attn": None}):
        return attention_kernels()


def all_reduce_rows(machine: Machine, sizes: Iterable[int]) -> list[Row]:
    """Time all-reduces over all processes; every process must call this."""
    from torch import distributed

    rows = []
    workers = distributed.get_world_size()
    node = int(os.environ.get("LOCAL_WORLD_SIZE", workers))
    for size in sizes:
        data = machine.torch.zeros(size // machine.dtype.itemsize, device=machine.device, dtype=machine.dtype)
        times = machine.times(lambda data=data: distributed.all_reduce(data))
        rows.append(
            {
                "size": size,
                "num_workers": workers,
                "devices_per_node": node,
                "collective": "all_reduce",
                **columns("all_reduce", times),
            }
        )
    return rows


def measured_gpu(machine: Machine, all_reduce: Sequence[Row]) -> GPU:
    """Return measured figures of this machine, from a large matrix product, a large copy and the largest all-reduce."""
    torch = machine.torch
    n = 8192 if machine.cuda else 512
    a, b = machine.random(n, n), machine.random(n, n)
    flops = 2 * n**3 / (1e-3 * min(machine.times(lambda: a @ b)))
    source, target = (
        machine.random(2**27 if machine.cuda else 2**22),
        machine.random(2**27 if machine.cuda else 2**22),
    )
    moved = 2 * source.numel() * machine.dtype.itemsize
    bandwidth = moved / (1e-3 * min(machine.times(lambda: target.copy_(source))))
    figures: dict[str, Any] = {}
    if all_reduce:
        last = all_reduce[-1]
        workers = last["num_workers"]
        sent = 2 * (workers - 1) / workers * last["size"]
        figures["link_bandwidth"] = float(f"{sent / (1e-3 * last['time_stats.all_reduce.min']):.3g}")
    if machine.cuda:
        card = torch.cuda.get_device_properties(machine.device)
        name, memory, count = card.name, float(card.total_memory), card.multi_processor_count
    else:
        name, count = "CPU", os.cpu_count() or 1
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    flops, bandwidth = float(f"{flops:.3g}"), float(f"{bandwidth:.3g}")
    return GPU(
        name=name, peak_flops=flops, memory_bandwidth=bandwidth, memory=memory, num_sms=count, **figures
    )


def write_csv(path: Path, rows: list[Row]) -> None:
    """Write rows with equal columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_recipe(
    folder: Path, model: str | ModelShape, gpu: str | GPU, parts: int, card: str, dtype_bytes: int
) -> None:
    """Write a recipe for the files in a folder."""
    shape = MODELS.find(model).model_copy(update={"dtype_bytes": float(dtype_bytes)})
    figures = "the data sheet" if isinstance(gpu, str) else "measured by a matrix product and a copy"
    name = f"{shape.name} {card} tp{parts}".lower().replace(" ", "-")
    content: dict[str, Any] = {
        "name": name,
        "description": f"{shape.name} on {parts} x {card}"[:100],
        "source": f"measured by scripts/profile_gpu.py; figures of the GPU: {figures}",
        "profiles": {"linear": "linear.csv", "attention": "attention.csv"},
        "model": model if isinstance(model, str) and shape == MODELS.find(model) else shape.model_dump(),
        "gpu": gpu if isinstance(gpu, str) else gpu.model_dump(),
        "tensor_parallel": parts,
    }
    if parts > 1:
        content["profiles"]["all_reduce"] = "all_reduce.csv"
    text = "# kvgym server calibrate --recipe recipe.yaml; see docs/calibration.md.\n"
    (folder / "recipe.yaml").write_text(text + yaml.safe_dump(content, sort_keys=False, width=110), "utf-8")


def _model(text: str) -> str | ModelShape:
    """Return the name of a preset, or the shape in a YAML file."""
    return MODELS.find(text) if text.endswith((".yaml", ".yml")) else MODELS.name(text)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--model", required=True, help=f"YAML file with a shape, or one of {', '.join(MODELS)}"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--gpu", help="preset with data-sheet figures (default: measure them)")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="number of GPUs (tensor parallel)")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: a GPU if there is one")
    parser.add_argument("--repeats", type=int, default=20, help="timed runs of each call")
    parser.add_argument("--warmup", type=int, default=3, help="untimed runs before those")
    parser.add_argument("--threads", type=int, help="number of CPU threads, on a CPU")
    parser.add_argument("--quick", action="store_true", help="only every third value of each list")
    for name, values in LISTS.items():
        parser.add_argument(
            f"--{name}",
            type=lambda text: tuple(int(part) for part in text.split(",")),
            default=values,
            help=f"values to measure, separated by commas (default: {len(values)} from {values[0]} to {values[-1]})",
        )
    return parser.parse_args(argv)


def profile(options: argparse.Namespace) -> None:
    """Measure and write the profiles.

    Raises:
        ConfigError: the model cannot be split into that many parts, or the number of processes differs.
    """
    import torch

    model, parts = _model(options.model), options.tensor_parallel
    shape = MODELS.find(model)
    require_plain(shape, "profiling")
    check_tensor_parallel(shape, parts)
    if options.gpu is not None:
        GPUS.find(options.gpu)
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    if workers != parts:
        raise ConfigError(
            f"tensor_parallel is {parts} but the number of processes is {workers}; start "
            f"torchrun --nproc-per-node {parts} scripts/profile_gpu.py ..."
        )
    values = {name: tuple(sorted(getattr(options, name))) for name in LISTS}
    if options.quick:
        values = {name: (*chosen[::3], chosen[-1]) for name, chosen in values.items()}
    machine = Machine(
        options.device or ("cuda" if torch.cuda.is_available() else "cpu"), options.repeats, options.warmup
    )
    torch.manual_seed(0)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    reduced: list[Row] = []
    if parts > 1:
        torch.distributed.init_process_group("nccl" if machine.cuda else "gloo")
        reduced = all_reduce_rows(machine, dict.fromkeys(values["sizes"]))
        rank = torch.distributed.get_rank()
        torch.distributed.destroy_process_group()
        if rank > 0:
            return
    with torch.inference_mode():
        linear = linear_rows(machine, shape, parts, dict.fromkeys(values["tokens"]))
        grid = {name: dict.fromkeys(values[name]) for name in ("decodes", "contexts", "chunks", "cached")}
        attention = attention_rows(machine, shape, parts, **grid)
        gpu = options.gpu or measured_gpu(machine, reduced)
    options.out.mkdir(parents=True, exist_ok=True)
    write_csv(options.out / "linear.csv", linear)
    write_csv(options.out / "attention.csv", attention)
    if reduced:
        write_csv(options.out / "all_reduce.csv", reduced)
    card = GPUS.find(gpu).name
    write_recipe(options.out, model, gpu, parts, card, machine.dtype.itemsize)
    rows = (
        f"{len(linear)} rows of token operators, {len(attention)} of attention, {len(reduced)} of all-reduce"
    )
    print(f"{options.out}: {rows}")
    print(f"next: kvgym server calibrate --recipe {options.out / 'recipe.yaml'}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    try:
        profile(_options(argv))
    except KVGymError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
