"""Options of rooflines, ``--model``, ``--gpu`` and others, and the lists of their values."""

import json

import pytest

NOTE = "Qwen3-30B-A3B on 1 x MI300X, 16-bit weights and KV cache: roofline, not validated."


def test_results_say_that_rooflines_are_not_validated(kvgym, tmp_path):
    out = tmp_path / "x"
    arguments = (
        "--model",
        "qwen3-30b-a3b",
        "--gpu",
        "mi300x",
        "--set",
        "hardware.memory_fraction=0.85",
        "-n",
        20,
    )
    shown = kvgym.output("run", "-p", "fcfs", *arguments, "--out", out)
    assert f"note: {NOTE}" in shown
    assert "(roofline, not validated)" in shown
    summary = json.loads((out / "summary.json").read_text())
    assert NOTE in summary["notes"]
    expected = "roofline:model=qwen3-30b-a3b,gpu=mi300x,memory_fraction=0.85"
    assert summary["config"]["scenario"]["hardware"] == expected
    out = tmp_path / "y"
    shown = kvgym.output("compare", *arguments, "-p", "fcfs", "--seeds", 1, "--out", out)
    assert f"note: {NOTE}" in shown
    page = (out / "report.html").read_text("utf-8")
    assert NOTE in page
    assert "<td>roofline, not validated; 60% of the peak FLOP/s" in " ".join(page.split())
    assert "config.json of Qwen/Qwen3-30B-A3B" in page


def test_options_change_a_roofline_of_the_scenario(kvgym, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "summary: mine\nhardware: {model: qwen3-8b, gpu: l4, weights: fp8}\n"
        "workload: {preset: lmsys, num_requests: 10, rate: 1}\n"
    )
    shown = kvgym.output("run", "-p", "fcfs", "-s", "mine.yaml", "--tp", 2, "--json", "--out", "x")
    expected = json.loads(shown)["config"]["scenario"]["hardware"]
    assert expected == "roofline:model=qwen3-8b,gpu=l4,tp=2,weights=fp8"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", "h200"], "model missing"),
        (["--gpu", "h200", "--hardware", "x.yaml"], "--hardware and --gpu exclude each other"),
        (["--model", "llama3-70b", "--gpu", "l4", "--tp", 2], "(--tp) = 8 is the smallest that fits"),
        (["--model", "llama4-70b", "--gpu", "l4"], "Did you mean 'llama"),
    ],
)
def test_errors(kvgym, arguments, words):
    code, _, error = kvgym("run", "-p", "fcfs", *arguments)
    assert code != 0
    assert words in error


def test_lists(kvgym):
    shown = kvgym.output("list", "models")
    [row] = [line for line in shown.splitlines() if line.startswith("deepseek-v3")]
    cells = " ".join(row.split())
    assert cells == "deepseek-v3 671.0 B 36.6 B 626.7 GiB 68.6 KiB 61 latent 8 of 256 experts"
    assert "any model on any GPU" in shown
    shown = " ".join(kvgym.output("list", "models", "google/gemma-3-27b-it", "--width", 200).split())
    assert "layers 62, 52 with a window of 1,024" in shown
    assert "other names google/gemma-3-27b-it, google/gemma-3-27b-pt" in shown
    shown = " ".join(kvgym.output("list", "models", "Qwen/Qwen3-32B-FP8").split())
    assert "memory 32.0 GiB" in shown
    shown = kvgym.output("list", "gpus", "--markdown")
    [row] = [line for line in shown.splitlines() if line.startswith("| `mi300x`")]
    assert row.startswith(
        "| `mi300x` | 1,307 | fp8 2,615 | 192.0 GiB | 5.30 TB/s | 448 GB/s | – | – | AMD Instinct MI300X data"
    )
