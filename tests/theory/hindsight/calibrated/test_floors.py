"""Floors of batch times: no batch is faster, and they are tight near the requested composition."""

import functools

import numpy as np
import pytest

from kvgym.batch_time import (
    COMPOSITIONS,
    AffineBatchTime,
    PiecewiseBatchTime,
    RooflineBatchTime,
    TileBatchTime,
    UnitBatchTime,
    hardware_names,
    load_hardware,
)
from kvgym.batch_time.models.piecewise import QUANTITIES
from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel
from kvgym.theory.hindsight.calibrated.floors import batch_floor
from kvgym.theory.hindsight.calibrated.lines import Composition, hull, line_below

PLACES = [
    Composition(150, 60, 58, 15_000),
    Composition(2, 1, 1, 50),
    Composition(3_000, 200, 190, 16_000),
    Composition(3_000, 9, 0, 0, pairs=2_000_000, prefill_tokens=3_000),
    Composition(500, 50, 0, 0, pairs=3_000, prefill_tokens=500),
]


@functools.cache
def models():
    found = {
        "unit": UnitBatchTime(),
        "affine": AffineBatchTime(0.3, 0.02, 0.05, 0.003),
        "affine, old tokens": AffineBatchTime(0.3, 0.02, 0.05, 0.003, include_new=False),
        "roofline": RooflineBatchTime("a100-80gb", "llama3-8b"),
        "roofline, experts": RooflineBatchTime("a100-80gb", "mixtral-8x7b", overhead_per_request=1e-4),
        "roofline, latent": RooflineBatchTime("h200", "deepseek-v3", tensor_parallel=8),
        "roofline, windows": RooflineBatchTime("a100-80gb", "gemma-3-27b"),
        "kernels, windows": load_hardware("model=gemma-3-27b,gpu=h100").batch_time(),
        "tile": TileBatchTime("a100-80gb", "llama3-8b"),
        "small tiles": TileBatchTime("a100-80gb", "llama3-8b", t_col=8, gemv_row=16, gemv_col=32),
    }
    for quantity in QUANTITIES:
        found[f"piecewise in {quantity}"] = PiecewiseBatchTime(quantity, [3, 20, 90], [0.2, 0.3, 2.0], 0.02)
    for gpu in ("h100-80gb", "rtx-4090"):
        found[f"kernels, {gpu}"] = load_hardware(f"model=llama3-8b,gpu={gpu}").batch_time()
    for name in hardware_names():
        for composition in COMPOSITIONS:
            found[f"{name}, {composition}"] = load_hardware(name).batch_time(composition=composition)
    return found


@pytest.mark.parametrize("name", models())
def test_no_batch_is_faster(name):
    model, rng = models()[name], np.random.default_rng(0)
    floors = [batch_floor(model, 16_000, 4_000, at) for at in PLACES]
    nearest = np.inf
    for _ in range(60):
        decodes = rng.integers(0, int(rng.choice([3, 300])), int(rng.integers(0, int(rng.choice([3, 90])))))
        # Whole prompts, so that the floor of a prefill is the floor of its one chunk.
        chunks = rng.integers(1, int(rng.choice([3, 50, 2_000])), int(rng.integers(0, 4)))
        if rng.random() < 0.3:  # a long one among short ones
            chunks = np.concatenate([chunks, rng.integers(1, 40, int(rng.integers(1, 60)))])
        if not len(decodes) + len(chunks):
            continue
        seconds = model(
            num_prefills=len(chunks),
            prefill_tokens=chunks.sum(),
            prefill_squares=(chunks * chunks).sum(),
            num_decodes=len(decodes),
            decode_context=decodes.sum(),
        )
        for f in floors:
            least = f.batch + f.request * (len(chunks) + len(decodes)) + f.prefill_token * chunks.sum()
            least += f.decode * len(decodes) + f.context * decodes.sum()
            least += f.prefill_batch * (len(chunks) > 0) + f.decode_batch * (len(decodes) > 0)
            least += f.attention(chunks.astype(float)).sum()
            assert least <= seconds * (1 + 1e-9)
            nearest = min(nearest, seconds / max(least, 1e-9))
    assert nearest < 1.25


@pytest.mark.parametrize("name", models())
def test_chunks_pay_for_the_attention_of_their_prompt(name):
    model, rng = models()[name], np.random.default_rng(1)
    for at in PLACES:
        f = batch_floor(model, 16_000, 1_000, at)
        for _ in range(10):
            cuts = np.sort(rng.choice(np.arange(1, 700), int(rng.integers(0, 12)), replace=False))
            chunks = np.diff([0, *cuts, 700])
            cached = np.concatenate([[0], cuts])
            seconds = sum(
                model(
                    num_prefills=1,
                    prefill_tokens=c,
                    prefill_context=k,
                    prefill_squares=c * c,
                    prefill_products=c * k,
                )
                for c, k in zip(chunks, cached, strict=True)
            )
            own = f.prefill_token * 700 + float(f.attention(np.array([700.0]))[0])
            assert len(chunks) * (f.batch + f.prefill_batch + f.request) + own <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("gpu", ["h100-80gb", "rtx-4090"])
def test_prompts_longer_than_measured_chunks_pay_for_their_pairs(gpu):
    """Tables end at 16,384 and 2,048 tokens; several prompts in a batch take as long as a longer one."""
    model = load_hardware(f"model=llama3-8b,gpu={gpu}").batch_time()
    at = Composition(60_000, 9, 0, 0, pairs=1e9, prefill_tokens=60_000)
    f = batch_floor(model, 100_000, 40_000, at)
    for count, length in ((1, 40_000), (2, 40_000), (1, 3_000), (3, 30_000), (30, 3_000)):
        tokens = count * length
        seconds = model(num_prefills=count, prefill_tokens=tokens, prefill_squares=tokens * length)
        least = f.batch + f.request * count + f.prefill_token * tokens
        least += count * f.attention(np.array([float(length)]))[0]
        assert 0.8 * seconds < least <= seconds


@batch_time_kernel
def _doubled(load, params):
    return 2.0 + 0.1 * load.num_decodes * load.num_decodes


class Unknown(BatchTimeModel):
    kernel = _doubled

    def params(self):
        return np.zeros(1)


def test_an_unknown_model_is_bounded_by_its_shortest_batch():
    f = batch_floor(Unknown(), 100, 100, PLACES[0])
    assert f.batch == pytest.approx(2.0)
    assert (f.request, f.prefill_token, f.decode, f.context) == (0.0, 0.0, 0.0, 0.0)


def test_lines_below_a_curve():
    x, y = np.array([1.0, 4.0, 10.0]), np.array([2.0, 2.0, 14.0])
    assert line_below(x, y, 2.0) == pytest.approx((2.0, 0.0))
    # Beyond the corner the tangent would fall below 0 at 0: the best line from the origin.
    assert line_below(x, y, 8.0) == pytest.approx((0.0, 0.5))
    assert line_below(x, np.array([5.0, 3.0, 4.0]), 1.0)[1] >= 0  # no line falls
    assert hull(np.arange(4.0), np.array([0.0, 3.0, 1.0, 2.0])) == [0, 2, 3]
