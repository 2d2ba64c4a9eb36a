"""Profiling this machine, calibrating and loading, end to end, with a tiny model on the CPU."""

import csv
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.amount import some
from helpers.selection import others_long
from kvgym.batch_time.deployments.load import load_hardware
from kvgym.cli.app import app

pytest.importorskip("torch")
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "profile_gpu.py"
SHAPE = "{name: Tiny, num_layers: 2, hidden: 64, num_heads: 4, num_kv_heads: 2, ffn: 128, vocab: 100}"
OPTIONS = (
    "--device=cpu", "--threads=1", "--repeats=5", "--warmup=1", "--tokens=1,8,16,32,64,128", "--decodes=1,2,4",
    "--contexts=16,64", "--chunks=16,32,64", "--cached=0,64", "--sizes=1048576,2097152,3145728,4194304",
)  # fmt: skip


def _run(folder, *arguments, processes=1):
    (folder / "tiny.yaml").write_text(SHAPE)
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *launch, str(SCRIPT), "--model", str(folder / "tiny.yaml"), *OPTIONS]
    return subprocess.run(
        [*command, "--out", str(folder / "made"), *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.parametrize("processes", others_long([1, 2], {1}))
def test_from_the_machine_to_a_batch_time(tmp_path, processes):
    from typer.testing import CliRunner

    done = _run(tmp_path, f"--tensor-parallel={processes}", processes=processes)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "made"
    with (made / "attention.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 2 + 3 * 2
    assert {row["num_tensor_parallel_workers"] for row in rows} == {str(processes)}
    assert (made / "all_reduce.csv").exists() == (processes > 1)

    # How far off so few and so short measurements are, and from the CPU's peak, is not the point.
    arguments = [
        "server",
        "calibrate",
        "--recipe",
        made / "recipe.yaml",
        "--out",
        tmp_path / "tiny.yaml",
        "--max-error",
        "100",
        "--implausible",
    ]
    result = CliRunner().invoke(app, [str(part) for part in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    hardware = load_hardware(tmp_path / "tiny.yaml")
    assert hardware.model.name == "Tiny"
    assert hardware.tensor_parallel == processes
    assert hardware.gpu.num_sms == os.cpu_count()
    assert hardware.measured_errors() == hardware.fit_error
    time = hardware.batch_time()(num_decodes=2, decode_context=100, num_prefills=1, prefill_tokens=32)
    assert 0 < time < math.inf


def test_what_cannot_be_measured(tmp_path):
    cases = [
        (["--tensor-parallel=2"], "processes is 1; start torchrun --nproc-per-node 2"),
        (["--tensor-parallel=3"], "divide the 4 heads"),
        (["--gpu=h300"], "unknown GPU 'h300'"),
    ]
    for arguments, message in some(cases, 3):
        done = _run(tmp_path, *arguments)
        assert done.returncode == 1
        assert message in done.stderr
        assert "Traceback" not in done.stderr
