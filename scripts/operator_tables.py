"""Fit the operator tables that come with kvgym, ``configs/operators/*.npz``.

    python scripts/operator_tables.py FOLDER [FOLDER …]

Each FOLDER has a folder per GPU with Parquet files in the form of AIConfigurator's databases (docs/calibration.md). A
later FOLDER completes the ones before it. Measurements that are implausible, or that another engine would not run, are
left out here, with the reason. The tables of the RTX 4090 come from a bundle and stay as they are.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvgym.batch_time.hardware.presets import GPUS
from kvgym.batch_time.operators.files import load_operators, pack
from kvgym.servers.calibration.operators import fit_operators

OPERATORS = Path(__file__).resolve().parent.parent / "configs" / "operators"
FOLDERS = {
    "a100-80gb": "a100_sxm",
    "b200": "b200_sxm",
    "h100-80gb": "h100_sxm",
    "h200": "h200_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
MANY_TOKENS = 1024

Table = Any  # a table of pyarrow, which has no types


def _without(**values: str) -> Callable[[Table], Table]:
    """Return a filter of the rows that have all these values; a value may be the beginning of the column's."""

    def kept(table: Table) -> Table:
        if not set(values) <= set(table.column_names):
            return table
        match = None
        for column, value in values.items():
            own = pc.starts_with(table[column], value)
            match = own if match is None else pc.and_(match, own)
        return table.filter(pc.invert(match))

    return kept


LEFT_OUT: dict[tuple[str, str], list[Callable[[Table], Table]]] = {
    # On H200 a fifth of the rows of prompts is slower than on H100.
    ("h200", "mla_context_module"): [_without(engine="TensorRT-LLM")],
    # 1.13 to 1.19 of the 16-bit products.
    ("b200", "mla_context_module"): [_without(engine="TensorRT-LLM", gemm_type="nvfp4")],
    ("b200", "mla_generation_module"): [_without(engine="TensorRT-LLM", gemm_type="nvfp4")],
    # With an 8-bit cache vLLM's are incomplete; 8-bit blocks are slower than 16 bits.
    ("rtx-pro-6000", "mla_context_module"): [
        _without(engine="vLLM", kv_cache_dtype="fp8"), _without(gemm_type="fp8_block")
    ],
    ("rtx-pro-6000", "mla_generation_module"): [
        _without(engine="vLLM", kv_cache_dtype="fp8"), _without(gemm_type="fp8_block")
    ],
    # Measured on another host with a faster PCIe; see all_reduce_scale in docs/hardware.md.
    ("rtx-pro-6000", "all_reduce"): [_without(engine="vLLM")],
}  # fmt: skip


def _prepare(gpu: str, folder: Path, earlier: list[Path], place: Path) -> None:
    """Copy the files of a folder without what is left out."""
    for file in sorted(folder.glob("*.parquet")):
        table = pq.read_table(file)
        if file.stem == "moe" and "moe_dtype" in table.column_names:
            table = _without(moe_dtype="w4a8")(
                table
            )  # engines run these experts with 16-bit inputs by default
        if gpu == "b200" and file.stem == "moe" and earlier:
            table = _plausible_blocks(table, pq.read_table(earlier[0] / "moe.parquet"))
        for kept in LEFT_OUT.get((gpu, file.stem), ()):
            table = kept(table)
        stem = file.stem
        if stem.endswith("_window"):  # wide heads; a window itself is within 5 % of a context cut to it
            table = table.filter(pc.and_(pc.equal(table["window_size"], 0), pc.equal(table["head_dim"], 256)))
            stem = stem.removesuffix("_window")
        if table.num_rows:
            pq.write_table(table, place / f"{stem}.parquet")


def _plausible_blocks(table: Table, plain: Table) -> Table:
    """Return B200's experts with 8-bit blocks; with many tokens those with one scale, if they are faster.

    From 1,024 tokens on the kernel that was measured takes twice their time, at a fifth of the peak.
    """
    shape = [
        name for name in table.column_names if name not in ("engine", "kernel_source", "moe_dtype", "latency")
    ]
    rows = plain.filter(pc.equal(plain["moe_dtype"], "fp8")).to_pylist()
    faster = {tuple(row[name] for name in shape): row["latency"] for row in rows}
    latency = []
    for row in table.select([*shape, "moe_dtype", "latency"]).to_pylist():
        other = faster.get(tuple(row[name] for name in shape), row["latency"])
        doubtful = row["moe_dtype"] == "fp8_block" and row["num_tokens"] >= MANY_TOKENS
        latency.append(min(row["latency"], other) if doubtful else row["latency"])
    return table.set_column(table.column_names.index("latency"), "latency", [latency])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", help="folders with a folder per GPU")
    parser.add_argument("--date", required=True, help="date to write into the files, ISO 8601")
    parser.add_argument("--out", type=Path, default=OPERATORS, help="folder of the tables")
    args = parser.parse_args()
    for gpu, name in FOLDERS.items():
        about = load_operators(gpu)
        with tempfile.TemporaryDirectory() as place:
            prepared: list[Path] = []
            for number, folder in enumerate(args.folders):
                prepared.append(Path(place, str(number)))
                prepared[-1].mkdir()
                _prepare(gpu, folder / name, prepared[:-1], prepared[-1])
            tables = fit_operators(
                prepared, gpu, measured=about.measured, source=about.source, date=args.date
            )
        path = args.out / f"{gpu}.npz"
        path.write_bytes(pack(tables))
        shares = ", ".join(f"{k}: [{a:.2f}, {b:.2f}]" for k, (a, b) in tables.attained(GPUS[gpu]).items())
        print(f"{path}: {path.stat().st_size:,} bytes; attained {{{shares}}}")
        for group, error in tables.fit_error.items():
            print(f"  {group}: median {error['median']:.1%}, 95th percentile {error['p95']:.1%}")


if __name__ == "__main__":
    main()
