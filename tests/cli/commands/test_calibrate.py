"""kvgym server calibrate and kvgym list hardware."""

import numpy as np
import pytest
import yaml

from helpers.servers.profiles import SHAPE, read, write, write_profiles
from kvgym.batch_time.deployments.load import hardware_names, load_hardware
from kvgym.cli.lists import listing

RECIPE = {
    "description": "a small one",
    "source": "made up",
    "profiles": {"linear": "linear.csv", "attention": "attention.csv"},
    "model": SHAPE.model_dump(),
    "gpu": "a100-80gb",
}


def _recipe(folder):
    folder.mkdir()
    write_profiles(folder)
    (folder / "small.yaml").write_text(yaml.safe_dump(RECIPE))
    return folder / "small.yaml"


def test_it_writes_a_file_that_scenarios_can_use(kvgym, tmp_path):
    recipe = _recipe(tmp_path / "here")
    out = kvgym.output(f"server calibrate --recipe {recipe} --date 2026-01-02 --plot plot.png")
    hardware = load_hardware("small.yaml")
    assert hardware.date == "2026-01-02"
    for group, error in hardware.fit_error.items():
        assert group in out
        assert f"{error.median:.1%}" in out
    assert f"{hardware.kv_capacity:,} KV tokens" in out
    assert "warning" not in out
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    out = kvgym.output("compare -n 5 --seeds 1 -p fcfs --hardware small.yaml --no-report")
    assert "5 of 5 requests completed" in out


def test_profiles_elsewhere_give_the_same_file(kvgym, tmp_path):
    recipe = _recipe(tmp_path / "here")
    kvgym("server", "calibrate", "--recipe", recipe, "--date", "2026-01-02", "--out", "deep/a.yaml")
    (tmp_path / "there").mkdir()
    for name in ("linear.csv", "attention.csv"):
        (recipe.parent / name).rename(tmp_path / "there" / name)
    err = kvgym.error("server", "calibrate", "--recipe", recipe)
    assert "linear.csv: no such file" in err
    kvgym(f"server calibrate --recipe {recipe} --profiles there --date 2026-01-02 --out b.yaml")
    assert (tmp_path / "deep" / "a.yaml").read_bytes() == (tmp_path / "b.yaml").read_bytes()


def test_large_errors_are_shown_and_refused(kvgym, tmp_path):
    recipe = _recipe(tmp_path / "here")
    rows = read(tmp_path / "here" / "attention.csv")
    for i, row in enumerate(rows):
        for name in ("time_stats.attn_decode.median", "time_stats.attn_prefill.median"):
            if row[name]:
                row[name] = float(row[name]) * (1.3 if i % 2 else 0.8)
    write(tmp_path / "here" / "attention.csv", rows)
    err = kvgym.error("server", "calibrate", "--recipe", recipe, "--max-error", 0.05)
    assert "miss held-out rows of attention" in err
    assert not (tmp_path / "small.yaml").exists()
    out = kvgym.output("server", "calibrate", "--recipe", recipe, "--max-error", 1)
    assert "warning: attention" in out


def test_implausible_times_are_refused_unless_allowed(kvgym, tmp_path):
    recipe = _recipe(tmp_path / "here")
    rows = read(tmp_path / "here" / "linear.csv")
    for row in rows:
        row["time_stats.attn_post_proj.median"] = 3 * float(row["time_stats.attn_post_proj.median"])
    write(tmp_path / "here" / "linear.csv", rows)
    err = kvgym.error("server", "calibrate", "--recipe", recipe)
    assert "column attn_post_proj: its 9 largest rows take" in err
    assert not (tmp_path / "small.yaml").exists()
    out = kvgym.output("server", "calibrate", "--recipe", recipe, "--implausible")
    assert "warning: profile linear.csv: column attn_post_proj" in out


def write_operators(folder, slow):
    """Write measurements of a GPU; decodes with 16 query heads take ``slow`` times as long as with others."""
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    folder.mkdir(exist_ok=True)
    n, k, m = (axis.ravel() for axis in np.meshgrid([256, 512], [256, 512], [1, 2, 4, 8], indexing="ij"))
    files = {
        "gemm": {"gemm_dtype": ["bfloat16"] * len(m), "m": m, "n": n, "k": k, "latency": n * k * 1e-6 + m}
    }
    for name, length, heads in (
        ("context_attention", "isl", [8, 16, 32]),
        ("generation_attention", "step", [8, 16, 32]),
    ):
        grid = np.meshgrid(heads, [1, 2, 4, 8], [1, 2, 4, 8, 16, 32], indexing="ij")
        count, batch, size = (axis.ravel() for axis in grid)
        ms = 0.01 + 1e-3 * count * batch * size
        files[name] = {
            "kv_cache_dtype": ["bfloat16"] * len(count), "head_dim": [128] * len(count), "num_heads": count,
            "num_key_value_heads": [8] * len(count), "batch_size": batch, length: size,
            "latency": np.where((count == 16) & (length == "step"), slow, 1.0) * ms,
        }  # fmt: skip
    for name, columns in files.items():
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")


def test_tables_of_a_gpu_that_contradict_themselves(kvgym, tmp_path):
    write_operators(tmp_path / "good", 1.0)
    fit = "server calibrate --gpu mine --operators"
    assert "warning" not in kvgym.output(f"{fit} good --out good.npz")
    write_operators(tmp_path / "bad", 15.0)
    err = kvgym.error(f"{fit} bad --out bad.npz")
    assert (
        "decode attention, bf16 cache, head_dim 128, 8 query heads, 8 KV heads: 24 of 24 times doubtful"
        in err
    )
    assert "x what 16 query heads allows (plausible: 0.25 to 4) (and 2 more)" in err
    assert "--implausible writes the file all the same" in err
    assert not (tmp_path / "bad.npz").exists()
    out = kvgym.output(f"{fit} bad --out bad.npz --implausible")
    assert "warning: decode attention, bf16 cache, head_dim 128, 16 query heads" in " ".join(out.split())
    assert (tmp_path / "bad.npz").exists()


def test_wrong_arguments(kvgym, tmp_path):
    recipe = _recipe(tmp_path / "here")
    elsewhere = recipe.with_name("elsewhere.yaml")
    elsewhere.write_text(recipe.read_text() + "\nname: ../../elsewhere\n")
    for arguments, message in (
        (("--recipe", "llama2-7b"), "unknown recipe 'llama2-7b'. Did you mean 'llama2-7b-a100-tp1'"),
        (("--recipe", "gone.yaml"), "recipe gone.yaml: cannot be read"),
        (("--recipe", recipe, "--plot", "a.bmp"), "a plot must end in .png, .svg, .pdf"),
        (("--recipe", recipe, "--out", recipe.parent), "cannot be written"),
        (("--recipe", elsewhere), "field name"),
    ):
        err = kvgym.error("server", "calibrate", *arguments)
        assert message in err
        assert "Traceback" not in err
    assert not list(
        tmp_path.glob("*.yaml")
    )  # a plot that cannot be drawn is detected before anything is written


def test_the_list_shows_the_errors_of_hardware(kvgym):
    out = kvgym.output("list", "hardware")
    headings, rows = listing("hardware")
    assert set(rows) == set(hardware_names())
    hardware = load_hardware("llama2-70b-a100-tp2")
    row = dict(zip(headings[1:], rows[hardware.name], strict=True))
    assert row["KV tokens"] == "16,492"
    assert row["engine"] == hardware.engine
    errors = row["errors: linear, decode (equal contexts), prefill"]
    for group in ("attention_decode", "attention_decode_homogeneous", "attention_prefill"):
        assert f"{hardware.fit_error[group].median:.1%}" in errors
    assert "4,096 tokens, 128 decodes" in row["measured up to"]
    assert all(name in out for name in rows)
