"""docs/hardware.md matches the code on rooflines."""

import re
from pathlib import Path

import pytest
from validation.rooflines import (
    TABLES,
    engine_predictor,
    engine_table,
    gpu_errors,
    kernel_errors,
    kernel_table,
    roofline_of,
)
from validation.tables import fill

from kvgym.batch_time import RooflineBatchTime
from kvgym.batch_time.deployments.load import load_calibrated, load_hardware
from kvgym.servers.validation.engines import token_errors, token_times
from kvgym.servers.validation.published import REFERENCE

PAGE = (Path(__file__).parents[3] / "docs" / "hardware.md").read_text("utf-8")


def test_the_page_is_up_to_date():
    assert fill(PAGE, TABLES) == PAGE, "run python scripts/validate_engines.py --write"


def test_errors_of_kernels_by_hand():
    """Of one decode after 256 tokens, and of a prompt of 128."""
    hardware = load_calibrated("llama3-8b-a100-tp1")
    shares = {"compute_efficiency": 0.86, "memory_efficiency": 0.69}  # of an A100
    roofline = RooflineBatchTime("a100-80gb", "llama3-8b", **shares, small_kernels_ms=0.04, overhead=0.0)
    tables = hardware.batch_time(engine="none")
    decodes, prompts = kernel_errors(hardware)
    one = {"num_decodes": 1, "decode_context": 256}
    prompt = {"num_prefills": 1, "prefill_tokens": 128, "prefill_squares": 128**2}
    assert decodes[0] == pytest.approx(roofline(**one) / tables(**one) - 1)
    assert prompts[0] == pytest.approx(roofline(**prompt) / tables(**prompt) - 1)
    assert (len(decodes), len(prompts)) == (8, 5)
    assert roofline_of(hardware).kv_capacity == 450_896
    row = next(line for line in kernel_table().splitlines() if "llama3-8b-a100" in line)
    assert f"| 131,000 | 450,896 | {100 * (450_896 / 131_000 - 1):+.0f} % |" in row


def test_errors_of_gpus_with_measured_kernels():
    """Of one decode after 256 tokens, with the shares of the card and with assumed ones."""
    spec = "model=llama3-8b,gpu=h200"
    one = {"num_decodes": 1, "decode_context": 256}
    kernels = load_hardware(f"kernels:{spec}").batch_time(engine="none")
    for assumed, shares in ((False, ""), (True, ",compute_efficiency=0.6,memory_efficiency=0.8")):
        roofline = load_hardware(f"roofline:{spec}{shares}").batch_time(engine="none")
        decodes, prompts = gpu_errors("h200", "llama3-8b", 1, None, assumed=assumed)
        assert decodes[0] == pytest.approx(roofline(**one) / kernels(**one) - 1)
        assert (len(decodes), len(prompts)) == (8, 5)
    assert gpu_errors("rtx-4090", "llama3-70b", 1, None) == ([], [])  # does not fit
    assert gpu_errors("a100-80gb", "llama3-8b", 1, "fp8") == ([], [])  # not measured


def test_errors_beside_an_engine_of_2023():
    source = engine_predictor(REFERENCE)
    assert (source.engine, source.overhead.base_ms, source.calibrated) == ("vllm-2026", 0.0, False)
    [row] = [line for line in engine_table().splitlines() if line.startswith(f"| {REFERENCE.label} |")]
    median, low, high = (int(text) for text in re.findall(r"[+-]\d+", row)[:3])
    errors = 100 * token_errors(token_times(source), source.overhead)
    assert (low, high) == (round(errors.min()), round(errors.max()))
    assert low <= median <= high <= 0
