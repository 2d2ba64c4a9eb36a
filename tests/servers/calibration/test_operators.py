"""Operator tables fitted to folders of measurements, worked by hand, and what is wrong with them."""

import numpy as np
import pytest

from kvgym.batch_time import GPUS, KernelBatchTime
from kvgym.batch_time.hardware.shapes import ModelShape
from kvgym.batch_time.operators.assembly import Assembly
from kvgym.batch_time.operators.files import pack
from kvgym.errors import ConfigError
from kvgym.servers.calibration.bundles import fit_bundle
from kvgym.servers.calibration.operators import Errors, fit_grid, fit_operators


def array(*values):
    return np.array(values, np.float64)


MODEL = ModelShape(name="Small", num_layers=3, hidden=1024, num_heads=8, num_kv_heads=2, ffn=512, vocab=5000)


def rows_of(function, *axes):
    mesh = [axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")]
    return mesh, function(*mesh)


def test_held_out_rows_are_predicted_from_their_neighbours():
    """A product of powers is linear in logarithms, so every inner row is predicted exactly."""
    mesh, ms = rows_of(lambda x, y: (1 + x) ** 0.5 * (1 + y), 2.0 ** np.arange(8), 3.0 ** np.arange(6))
    seen = []
    grid = fit_grid(
        mesh, ms, np.random.default_rng(1), between=(0, 1), report=lambda *pair: seen.append(pair)
    )
    predicted, measured = seen[0]
    inner = ~np.isnan(predicted)
    assert 2 <= inner.sum() <= 12
    np.testing.assert_allclose(predicted[inner], measured[inner], rtol=1e-9)
    assert not np.isnan(grid.ms).any()


def test_shapes_that_did_not_fit_into_memory_are_continued():
    mesh, ms = rows_of(lambda x, y: x * y, 2.0 ** np.arange(6), 2.0 ** np.arange(6))
    small = mesh[0] * mesh[1] <= 128
    rows = [axis[small] for axis in mesh]
    grid = fit_grid(rows, ms[small], np.random.default_rng(5), between=(0, 1), report=lambda *_: None)
    assert grid.ms[-1, -1] == pytest.approx(1024, rel=0.25)
    assert np.all(np.diff(grid.ms, axis=0) > 0)


def test_errors_are_summed_up_by_group():
    errors = Errors()
    errors.add("a", array(1.1, np.nan, 2), array(1, 1, 2))
    errors.add("b", array(np.nan), array(1))
    assert errors.summary() == {"a": {"median": 0.05, "p95": 0.095, "rows": 2}}


def write_operators(folder, **changes):
    """Write small Parquet files of a GPU with simple times."""
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    widths = [256, 1024, 4096]
    n, k, m = (axis.ravel() for axis in np.meshgrid(widths, widths, [1, 8, 64, 512], indexing="ij"))
    files = {
        "gemm": {
            "gemm_dtype": ["bfloat16"] * len(m), "m": m, "n": n, "k": k, "latency": (n * k * 1e-8 + m * 1e-4)
        }
    }  # fmt: skip
    for name, length in (("context_attention", "isl"), ("generation_attention", "step")):
        heads, kv, batch, size = (
            axis.ravel() for axis in np.meshgrid([8, 16], [2], [1, 2, 4], [1, 64, 512], indexing="ij")
        )
        files[name] = {
            "kv_cache_dtype": ["bfloat16"] * len(heads), "head_dim": [128] * len(heads), "num_heads": heads,
            "num_key_value_heads": kv, "batch_size": batch, length: size, "latency": 0.01 + batch * size * 1e-5,
        }  # fmt: skip
    for name, columns in {**files, **changes}.items():
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")
    return files


def test_a_folder_of_measurements_becomes_tables(tmp_path):
    write_operators(tmp_path)
    found = fit_operators([tmp_path], "x", measured="e", source="s", date="2026-01-01")
    assert set(found.matmul) == {"bf16"}
    assert set(found.decode) == {("bf16", 128, 8, 2), ("bf16", 128, 16, 2)}
    assert found.all_reduce == found.experts == {}
    _, ms = found.matmul_ms(None, 1024, 1024)
    np.testing.assert_allclose(ms, 1024 * 1024 * 1e-8 + array(1, 8, 64, 512) * 1e-4, rtol=0.5)
    assert pack(found) == pack(fit_operators([tmp_path], "x", measured="e", source="s", date="2026-01-01"))


def test_a_later_folder_completes_the_tables_and_replaces_experts(tmp_path):
    shape = {
        "hidden_size": [8] * 4, "inter_size": [8] * 4, "topk": [2] * 4, "num_experts": [4] * 4,
        "moe_tp_size": [1] * 4, "moe_ep_size": [1] * 4, "distribution": ["balanced"] * 4,
        "num_tokens": [1, 2, 4, 8],
    }  # fmt: skip
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    both = {name: 2 * column for name, column in shape.items()}
    moe = {**both, "moe_dtype": ["fp8"] * 4 + ["bfloat16"] * 4, "latency": [1.0] * 8}
    write_operators(first, moe=moe)
    pyarrow = pytest.importorskip("pyarrow")
    other = {**shape, "inter_size": [16] * 4, "moe_dtype": ["fp8"] * 4, "latency": [2.0] * 4}
    n, k, m = (axis.ravel() for axis in np.meshgrid([256, 512], [256, 512], [1, 8], indexing="ij"))
    gemm = {"gemm_dtype": ["nvfp4"] * len(m), "m": m, "n": n, "k": k, "latency": 1.0 + 0 * m}
    scales = {
        "engine": ["vLLM 1"] * 8 + ["TensorRT-LLM 1"], "op_name": ["compute_scale", "scale_matrix"] * 4 + ["x"],
        "quant_dtype": ["fp8"] * 9, "m": [1, 1, 8, 8] * 2 + [1], "k": [256] * 4 + [512] * 4 + [256],
        "latency": [0.0, 0.25, 0.5, 0.5, 0.0, 1.0, 1.0, 1.0, 9.0],
    }  # fmt: skip
    for name, columns in {"moe": other, "gemm": gemm, "quantize": scales}.items():
        pyarrow.parquet.write_table(pyarrow.table(columns), second / f"{name}.parquet")
    about = {"measured": "e", "source": "s", "date": "2026-01-01"}
    one, two = fit_operators([first], "x", **about), fit_operators([first, second], "x", **about)
    assert set(two.matmul) == {"bf16", "nvfp4"}
    np.testing.assert_array_equal(two.matmul["bf16"].ms, one.matmul["bf16"].ms)
    assert {key[0]: key[3] for key in two.experts} == {"bf16": 8, "fp8": 16}
    np.testing.assert_allclose(two.quantise["fp8"].ms, [[0.25, 1.0], [1.0, 2.0]])


def test_modules_of_latent_attention_become_tables(tmp_path):
    """The fastest kernel of each shape; prompts one at a time."""
    write_operators(tmp_path)
    pyarrow = pytest.importorskip("pyarrow")
    decode = {
        "engine": ["vLLM 1"] * 9, "gemm_type": ["bfloat16"] * 9, "kv_cache_dtype": ["fp8"] * 9,
        "num_heads": [16] * 9, "batch_size": [1, 1, 2, 2, 4, 4, 8, 8, 1], "step": [2, 9] * 4 + [2],
        "latency": [1.0, 2.0] * 4 + [0.5],
    }  # fmt: skip
    prefill = {
        **decode,
        "isl": [1, 8, 64, 512] * 2 + [1],
        "batch_size": [1] * 4 + [2] * 5,
        "latency": [3.0] * 9,
    }
    alone = {name: column for name, column in decode.items() if name != "gemm_type"}
    files = {"mla_generation_module": decode, "mla_context_module": prefill, "mla_generation": alone}
    for name, columns in files.items():
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
    found = fit_operators([tmp_path], "x", measured="e", source="s", date="2026-01-01")
    assert set(found.latent_decode) == {("vllm", "bf16", "fp8", 16), ("vllm", "", "fp8", 16)}
    assert set(found.latent_prefill) == {("vllm", "bf16", "fp8", 16)}
    assert found.latent_prefill["vllm", "bf16", "fp8", 16].axes[0].tolist() == [1, 8, 64, 512]
    grid = found.latent_decode["vllm", "bf16", "fp8", 16]
    assert grid.ms.min() == pytest.approx(0.5)


def test_wrong_measurements_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no measurements in gemm\.parquet"):
        fit_operators([tmp_path], "x", measured="", source="", date="")
    files = write_operators(tmp_path)
    bad = {**files["gemm"], "latency": [0.0, *files["gemm"]["latency"][1:]]}
    write_operators(tmp_path, gemm=bad)
    with pytest.raises(ConfigError, match=r"gemm\.parquet: row 0: latency = 0\.0"):
        fit_operators([tmp_path], "x", measured="", source="", date="")
    del bad["k"]
    write_operators(tmp_path, gemm=bad)
    with pytest.raises(ConfigError, match=r"lacks column k; expected gemm_dtype, m, n, k, latency"):
        fit_operators([tmp_path], "x", measured="", source="", date="")


DENSE = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "act_fn", "layernorm", "rotary_emb", "embedding",
         "final_layernorm")  # fmt: skip


def write_bundle(folder, dense=DENSE):
    lines = ["layer,tokens,time_us", *(f"{layer},{t},{10 + t}" for layer in dense for t in (1, 8, 64, 512))]
    (folder / "m.dense.csv").write_text("\n".join(lines))
    lines = [
        "layer,sequences,time_us",
        *(f"{layer},{s},{20 + s}" for layer in ("lm_head", "sampler") for s in (1, 8)),
    ]
    (folder / "m.per_sequence.csv").write_text("\n".join(lines))
    lines = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    lines += [f"0,0,{n},{c},{5 + n * c / 100}" for n in (1, 2, 4) for c in (16, 64, 256)]
    lines += [f"{c},0,0,0,{5 + c * c / 1000}" for c in (16, 64, 256, 512)]
    (folder / "m.attention.csv").write_text("\n".join(lines))


def test_a_bundle_of_one_model_becomes_tables(tmp_path):
    write_bundle(tmp_path)
    found = fit_bundle(tmp_path, MODEL, "x", measured="e", source="s", date="2026-01-01")
    assert set(found.products) == {
        ("bf16", 12 * 128, 1024), ("bf16", 1024, 1024), ("bf16", 1024, 512), ("bf16", 5000, 1024)
    }  # fmt: skip
    _, head = found.matmul_ms(None, 5000, 1024)
    np.testing.assert_allclose(head, [0.042, 0.056])  # LM head and sampler of 1 and 8 requests
    # Per layer: activation, two norms, rotary embedding; embedding and last norm once over three layers.
    assert found.elementwise[1024].ms[0] == pytest.approx(4 * 0.011 + 2 * 0.011 / 3)
    model = KernelBatchTime(Assembly(found, GPUS["rtx-4090"], MODEL, 1).tables())
    assert model(num_decodes=2, decode_context=128) > model(num_decodes=1, decode_context=64) > 0


def test_wrong_bundles_are_named(tmp_path):
    about = {"measured": "", "source": "", "date": ""}
    with pytest.raises(ConfigError, match=r"0 files \*dense\.csv"):
        fit_bundle(tmp_path, MODEL, "x", **about)
    write_bundle(tmp_path, DENSE[1:])
    with pytest.raises(ConfigError, match="no measurements of layer qkv_proj"):
        fit_bundle(tmp_path, MODEL, "x", **about)
    (tmp_path / "m.dense.csv").write_text("layer,tokens,time_us\nqkv_proj,1,fast\n")
    with pytest.raises(ConfigError, match="line 2, column time_us: 'fast' is not a number > 0"):
        fit_bundle(tmp_path, MODEL, "x", **about)
    (tmp_path / "m.dense.csv").write_text("layer,time_us\nqkv_proj,1\n")
    with pytest.raises(ConfigError, match="missing columns tokens; has layer, time_us"):
        fit_bundle(tmp_path, MODEL, "x", **about)
