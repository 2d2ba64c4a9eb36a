import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.errors import ConfigError, WorkloadError
from kvgym.workloads import RequestTable
from kvgym.workloads.predictions import (
    ClassPrediction,
    ExactPrediction,
    IntervalPrediction,
    NoisyPrediction,
    NoPrediction,
    PromptPrediction,
    UpperBoundPrediction,
)

OUTPUTS = st.lists(st.integers(1, 2**20), min_size=1, max_size=40)
BUCKETS = st.one_of(st.integers(1, 500), st.just("power_of_two"), st.just((1, 64, 2**20)))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(outputs, class_id=None) -> RequestTable:
    n = len(outputs)
    return RequestTable(np.arange(n), np.ones(n), outputs, class_id=class_id)


@pytest.mark.parametrize(
    "predictor",
    [
        NoPrediction(),
        ExactPrediction(),
        NoisyPrediction(epsilon=0.5),
        UpperBoundPrediction(factor=1.5, bucket=32),
        IntervalPrediction(epsilon=0.5, point="middle"),
        ClassPrediction(),
        PromptPrediction(prompts=(1, 9), outputs=(5, 7)),
    ],
    ids=lambda p: p.kind,
)
def test_only_predicted_columns_change(predictor):
    before = table([3, 40, 900], [0, 1, 1])
    after = predictor.apply(before, rng())
    for name, column in before.columns().items():
        np.testing.assert_array_equal(column, getattr(after, name))
    extra = set(after.columns()) - set(before.columns())
    assert extra <= {"predicted_output_len", "predicted_low", "predicted_high"}
    again = type(predictor)(**predictor.model_dump()).apply(after, rng())  # repeatable and overwriting
    for name in extra:
        np.testing.assert_array_equal(getattr(again, name), getattr(after, name))


def test_exact_and_none():
    before = ExactPrediction().apply(table([3, 40]), rng())
    assert before.predicted_output_len is not None
    assert before.predicted_output_len.tolist() == [3, 40]
    assert NoPrediction().apply(before, rng()).predicted_output_len is None


@pytest.mark.parametrize("epsilon", [0.2, 0.5, 0.8])
def test_noisy_is_uniform_around_the_truth(epsilon: float):
    after = NoisyPrediction(epsilon=epsilon).apply(table(np.full(100_000, 1000)), rng())
    guess = after.predicted_output_len
    assert guess.min() >= 1000 * (1 - epsilon)
    assert guess.max() <= 1000 * (1 + epsilon)
    assert guess.mean() == pytest.approx(1000, rel=0.01)
    assert guess.std() == pytest.approx(1000 * epsilon / np.sqrt(3), rel=0.01)


def test_noisy_is_at_least_one():
    after = NoisyPrediction(epsilon=1.0).apply(table(np.ones(1000)), rng())
    assert set(after.predicted_output_len) == {1, 2}


@given(OUTPUTS, st.floats(1, 4), st.one_of(st.none(), st.integers(1, 500), st.just("power_of_two")))
def test_upper_bound_bounds(outputs, factor, bucket):
    after = UpperBoundPrediction(factor=factor, bucket=bucket).apply(table(outputs), rng())
    assert np.all(after.predicted_output_len >= factor * np.array(outputs) - 1e-6)
    assert np.all(after.predicted_output_len >= after.output_len)


def test_upper_bound_values():
    bound = lambda outputs, **k: UpperBoundPrediction(**k).apply(table(outputs), rng()).predicted_output_len  # noqa: E731
    assert bound([1, 2, 3, 4, 5, 1025], bucket="power_of_two").tolist() == [1, 2, 4, 4, 8, 2048]
    assert bound([1, 50, 51], bucket=50).tolist() == [50, 50, 100]
    assert bound([1, 10, 11], bucket=(10, 90)).tolist() == [10, 10, 90]
    assert bound([7], factor=1.5).tolist() == [11]
    with pytest.raises(WorkloadError, match=r"edges end at 90, but request 1 needs a bound of 91"):
        bound([1, 91], bucket=(10, 90))


@given(OUTPUTS, BUCKETS)
def test_bucket_intervals_contain_the_truth(outputs, bucket):
    after = IntervalPrediction(bucket=bucket, point="high").apply(table(outputs), rng())
    assert np.all((after.predicted_low <= after.output_len) & (after.output_len <= after.predicted_high))
    np.testing.assert_array_equal(after.predicted_output_len, after.predicted_high)


@given(OUTPUTS, st.floats(0, 3), st.integers(0, 5))
def test_random_intervals_contain_the_truth(outputs, epsilon, seed):
    after = IntervalPrediction(epsilon=epsilon).apply(table(outputs), rng(seed))
    assert np.all((after.predicted_low <= after.output_len) & (after.output_len <= after.predicted_high))
    assert after.predicted_low.min() >= 1
    assert after.predicted_output_len is None


def test_common_bounds():
    after = IntervalPrediction(bounds=(1, 100), point="low").apply(table([5, 100]), rng())
    assert after.predicted_low.tolist() == [1, 1]
    assert after.predicted_high.tolist() == [100, 100]
    with pytest.raises(WorkloadError, match="request 1 has output_len 101"):
        IntervalPrediction(bounds=(1, 100)).apply(table([5, 101]), rng())


def test_class_predictions():
    before = table([10, 30, 20, 5], [0, 1, 1, 2])
    predicted = lambda **k: ClassPrediction(**k).apply(before, rng()).predicted_output_len.tolist()  # noqa: E731
    assert predicted() == [10, 30, 30, 5]
    assert predicted(statistic="mean") == [10, 25, 25, 5]
    assert predicted(lengths=(1, 2, 3)) == [1, 2, 2, 3]
    with pytest.raises(WorkloadError, match="one length per class"):
        predicted(lengths=(1, 2))
    with pytest.raises(WorkloadError, match="has none"):
        ClassPrediction().apply(table([1]), rng())


def test_predictions_by_the_prompt():
    before = RequestTable([0, 0, 0, 0], [4, 10, 19, 500], [1, 1, 1, 1])
    found = PromptPrediction(prompts=(10, 20), outputs=(7, 90)).apply(before, rng())
    assert found.predicted_output_len.tolist() == [7, 7, 7, 90]
    with pytest.raises(ValueError, match="1 rows and outputs 2"):
        PromptPrediction(prompts=(10,), outputs=(7, 90))
    with pytest.raises(ValueError, match="must increase"):
        PromptPrediction(prompts=(10, 10), outputs=(7, 90))


def test_first_predictions_of_a_longer_run_are_equal():
    outputs = rng(1).integers(1, 500, 1000)
    for predictor in (NoisyPrediction(epsilon=0.5), IntervalPrediction(epsilon=0.5, point="middle")):
        short, long = predictor.apply(table(outputs[:100]), rng(2)), predictor.apply(table(outputs), rng(2))
        for name, column in short.columns().items():
            np.testing.assert_array_equal(column, getattr(long, name)[:100])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoisyPrediction(epsilon=1.2), "epsilon"),
        (lambda: UpperBoundPrediction(factor=0.9), "factor"),
        (lambda: UpperBoundPrediction(bucket=(5, 5)), "increase"),
        (lambda: IntervalPrediction(), "exactly one"),
        (lambda: IntervalPrediction(epsilon=0.5, bucket=10), "exactly one"),
        (lambda: IntervalPrediction(bounds=(5, 4)), "low ≤ high"),
    ],
)
def test_mistakes_are_named(make, message: str):
    with pytest.raises(ConfigError, match=message):
        make()
