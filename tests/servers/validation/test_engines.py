"""Published measurements and their predictions."""

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime, load_hardware
from kvgym.batch_time.hardware.overhead import EngineOverhead
from kvgym.servers.validation import engines
from kvgym.servers.validation.published import BATCHES, CPU_TIMES, REFERENCE, Deployment, MeasuredBatch

SMALL = Deployment("a100-80gb", 1)
# 10 ms a batch, 0.1 ms a prompt token, 1 ms a decode and 0.001 ms a token of context.
KERNELS = AffineBatchTime(0.01, 1e-4, 0.001, 1e-6, include_new=False)
WHOLE = MeasuredBatch(prompt=100, requests=2, output=11, prompt_ms=30.0, token_ms=12.0, e2e_ms=150.0)
SPLIT = MeasuredBatch(prompt=100, requests=8, output=11, prompt_ms=30.0, token_ms=12.0, e2e_ms=390.0)


def source(monkeypatch, *rows, kv_capacity=None):
    monkeypatch.setitem(engines.BATCHES, SMALL, rows)
    known = {"fast": EngineOverhead(base_ms=1.0, per_request_ms=0.5)}
    return engines.Predictor(SMALL, KERNELS, True, kv_capacity, known, "fast")


def test_every_deployment_has_nineteen_rows():
    assert len(BATCHES) == 6
    assert all(len(rows) == 19 for rows in BATCHES.values())
    assert CPU_TIMES[0].total_ms == pytest.approx(0.16513 + 0.88781 + 0.29317 + 0.62438 + 0.15646)
    assert Deployment("h100-80gb", 4).label == "H100 TP 4"
    files = {deployment.label: deployment.hardware for deployment in BATCHES if deployment.hardware}
    assert files == {"A100 TP 2": "llama2-70b-a100-tp2", "H100 TP 4": "llama2-70b-h100-tp4-2023"}


def test_split_batches_show_in_end_to_end_times():
    assert WHOLE.decodes == pytest.approx(10)
    assert WHOLE.whole
    assert not SPLIT.whole
    split = {(d.label, row.requests) for d, rows in BATCHES.items() for row in rows if not row.whole}
    assert split == {("A100 TP 2", 32), ("A100 TP 2", 64), ("H100 TP 2", 64)}


def test_a_split_batch_has_the_size_that_fits_the_memory():
    assert engines.held(WHOLE, None) == engines.held(WHOLE, 1) == 2
    assert engines.held(SPLIT, None) is None
    assert engines.held(SPLIT, 350) == 3  # of 111 tokens each
    assert engines.held(SPLIT, 10_000) == 8


def test_token_times_by_hand(monkeypatch):
    """Contexts 100 to 109, mean 104.5, of two requests: 10 + 2 + 0.209 ms."""
    (time,) = engines.token_times(source(monkeypatch, WHOLE, SPLIT))
    assert time.requests == 2
    assert time.kernels_ms == pytest.approx(12.209)
    error = engines.token_errors([time], EngineOverhead(base_ms=1.0, per_request_ms=0.5))
    assert error == pytest.approx([14.209 / 12 - 1])


def test_early_outputs_are_predicted_to_their_end(monkeypatch):
    early = MeasuredBatch(prompt=100, requests=1, output=1000, prompt_ms=30.0, token_ms=12.0, e2e_ms=66.0)
    (time,) = engines.token_times(source(monkeypatch, early))
    assert time.kernels_ms == pytest.approx(11 + 1e-3 * 101)  # three iterations, at 100, 101 and 102


def test_prompt_times_by_hand(monkeypatch):
    found = engines.prompt_times(source(monkeypatch, WHOLE, SPLIT, kv_capacity=800))
    assert [t.measured.requests for t in found] == [2, 8]
    overhead = EngineOverhead(base_ms=1.0, per_request_ms=0.5)
    assert found[0].together_ms == pytest.approx(30)
    assert found[0].alone_ms == pytest.approx(20)
    assert engines.together_error(found[0], overhead) == pytest.approx(32 / 30 - 1)
    assert engines.in_turn_error(found[0], overhead) == pytest.approx(2 * 21.5 / 30 - 1)
    assert len(engines.prompt_times(source(monkeypatch, WHOLE, SPLIT, kv_capacity=799))) == 1


def test_a_fit_recovers_known_overheads_also_without_each_size():
    true = EngineOverhead(base_ms=4.0, per_request_ms=0.25)
    times = [
        engines.TokenTime(MeasuredBatch(100, n, 11, 1.0, 20.0 + n + 4 + 0.25 * n, 1.0), n, 20.0 + n)
        for n in (1, 1, 2, 8, 32)
    ]
    fit = engines.fit_to_tokens(times)
    assert (fit.base_ms, fit.per_request_ms) == pytest.approx((true.base_ms, true.per_request_ms))
    folds = engines.held_out(times)
    assert [fold.requests for fold in folds] == [1, 2, 8, 32]
    assert [len(fold.errors) for fold in folds] == [2, 1, 1, 1]
    assert np.concatenate([fold.errors for fold in folds]) == pytest.approx(np.zeros(5), abs=1e-9)


def test_left_out_rows_do_not_enter_their_fit():
    times = [
        engines.TokenTime(MeasuredBatch(100, n, 11, 1.0, 24.0 + (30 if n == 8 else 0), 1.0), n, 20.0)
        for n in (1, 2, 4, 8)
    ]
    fold = engines.held_out(times)[-1]
    assert fold.overhead.base_ms == pytest.approx(4)
    assert fold.errors == pytest.approx([24 / 54 - 1])


def test_the_named_engine_predicts_the_token_times_of_its_hardware():
    found = engines.predictor(REFERENCE)
    assert found.engine == "vllm-2023"
    times = engines.token_times(found)
    assert len(times) == 19
    errors = np.abs(engines.token_errors(times, found.overhead))
    assert np.median(errors) <= 0.05
    assert errors.max() <= 0.12


def test_errors_on_held_out_batch_sizes():
    errors = np.concatenate(
        [f.errors for f in engines.held_out(engines.token_times(engines.predictor(REFERENCE)))]
    )
    assert np.median(np.abs(errors)) <= 0.05
    assert np.abs(errors).max() <= 0.12


@pytest.mark.parametrize("own", [True, False])
def test_a_deployment_uses_its_hardware_file_if_it_has_one(monkeypatch, own):
    """With engines of its own or, where it names none, with those of the reference."""
    deployment, reference = Deployment("h100-80gb", 4, "own"), load_hardware(REFERENCE.hardware)
    named = {"fast": EngineOverhead(base_ms=1.0)} if own else {}
    file = reference.model_copy(
        update={"engines": named, "engine": "fast" if own else "none", "kv_capacity": 5}
    )
    files = {deployment.hardware: file, reference.name: reference}
    monkeypatch.setattr(engines, "load_hardware", files.__getitem__)
    found = engines.predictor(deployment)
    assert found.calibrated
    assert found.kv_capacity == 5
    assert found.engine == ("fast" if own else reference.engine)
    assert ("fast" in found.engines) == own
    assert {"vllm-2023", "none"} <= set(found.engines)


def test_single_prompts_of_the_reference_are_within_fifteen_per_cent():
    found = engines.predictor(REFERENCE)
    alone = [t for t in engines.prompt_times(found) if t.measured.requests == 1]
    errors = [engines.together_error(t, found.overhead) for t in alone]
    assert len(errors) == 13
    assert max(map(abs, errors)) <= 0.15


@pytest.mark.parametrize("deployment", BATCHES, ids=lambda d: d.label)
def test_deployments_without_a_file_have_a_roofline_and_borrowed_engines(deployment):
    found = engines.predictor(deployment)
    assert found.calibrated == (deployment.hardware != "")
    assert {"none", found.engine} <= set(found.engines)
    assert found.overhead.base_ms > 0
    assert found.kernels() == 0.0
    if not found.calibrated:
        assert found.kv_capacity is None


def test_the_spread_of_repeated_measurements():
    assert len(engines.repeated(REFERENCE)) == 7
    assert engines.half_spread(REFERENCE) == pytest.approx((60.349 - 54.856) / (60.349 + 54.856))
