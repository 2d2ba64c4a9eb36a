import numpy as np
import pytest
import yaml

from kvgym.errors import ConfigError, WorkloadError
from kvgym.workloads import fit_lengths, fit_predictor, make_workload, variance_explained
from kvgym.workloads.lengths import ConstantLength, UniformLength
from kvgym.workloads.mixtures import MixedLengths, NormalFeature, RequestKind, mixture_text


def test_a_fit_by_hand():
    prompt, output = [5, 1, 2, 6, 3, 4, 8, 7], [9, 3, 1, 5, 2, 4, 7, 7]
    fitted = fit_lengths(prompt, output, bins=2, values=2)
    values = [(kind.prompt.values, kind.output.values) for kind in fitted.kinds]
    assert values == [((2, 4), (2, 4)), ((6, 8), (6, 8))]  # halves are rounded to even
    assert MixedLengths(**yaml.safe_load(mixture_text(fitted))) == fitted


def test_a_predictor_by_hand():
    # bins of two by prompt: (1, 2), (3, 3), (3, 9); the second and third begin with the same prompt
    found = fit_predictor([9, 1, 3, 3, 2, 3], [50, 1, 10, 20, 4, 20], bins=3)
    assert (found.prompts, found.outputs) == ((1, 3), (2, 25))  # 2.5 is rounded to even
    with pytest.raises(WorkloadError, match="at least bins"):
        fit_predictor([1], [1], bins=2)


def test_variance_explained():
    prompt = np.repeat([10, 20], 50)
    fitted = fit_lengths(prompt, prompt, bins=2, values=5)
    assert variance_explained(fitted, prompt, prompt) == pytest.approx(1)
    assert variance_explained(fitted, [9, 25], [10, 20]) == pytest.approx(1)
    assert variance_explained(fitted, [10, 20], [20, 10]) < 0


@pytest.mark.parametrize("lengths", [([1, 2], [1, 2]), (range(200), range(201))])
def test_a_fit_needs_enough_pairs(lengths):
    with pytest.raises(WorkloadError, match="at least bins · values = 200"):
        fit_lengths(*lengths)


def test_conversations_have_the_fitted_means():
    from kvgym.experiments.scenario import load_scenario

    workload = make_workload({**load_scenario("conversations").workload, "num_requests": 5000})
    table = workload.sample(0)
    assert workload.spec.lengths.mean_prompt_len == pytest.approx(1243.25, abs=2)
    assert table.output_len.mean() == pytest.approx(217.3, rel=0.02)
    assert variance_explained(workload.spec.lengths, table.prompt_len, table.output_len) > 0.6


def rng(seed):
    return np.random.default_rng(seed)


def test_kinds_keep_their_lengths_together_and_a_longer_sample_begins_alike():
    d = MixedLengths(
        kinds=(
            RequestKind(weight=3, prompt=UniformLength(low=1, high=9), output=UniformLength(low=50, high=60)),
            RequestKind(prompt=UniformLength(low=20, high=30), output=ConstantLength(value=2)),
        )
    )
    prompt, output = d.sample(4000, rng(1), rng(2))
    np.testing.assert_array_equal(prompt >= 20, output == 2)
    assert (prompt < 20).mean() == pytest.approx(0.75, abs=0.03)
    assert (d.mean_prompt_len, d.mean_output_len) == (10.0, 41.75)
    for whole, part in zip((prompt, output), d.sample(500, rng(1), rng(2)), strict=True):
        np.testing.assert_array_equal(whole[:500], part)


KIND = {"prompt": {"kind": "constant", "value": 4}, "output": {"kind": "constant", "value": 5}}


def test_features_belong_to_kinds_and_change_no_length():
    plain = [
        RequestKind(weight=3, prompt=UniformLength(low=1, high=9), output=ConstantLength(value=5)),
        RequestKind(prompt=UniformLength(low=20, high=30), output=ConstantLength(value=2)),
    ]
    assert "features" not in plain[0].model_dump()  # hashes of descriptions without features stay
    kinds = [
        kind.model_copy(update={"features": (float(k), NormalFeature(mean=10.0 * k, deviation=0.5))})
        for k, kind in enumerate(plain)
    ]
    d = MixedLengths(kinds=tuple(kinds))
    prompt, _ = d.sample(4000, rng(1), rng(2))
    np.testing.assert_array_equal(prompt, MixedLengths(kinds=tuple(plain)).sample(4000, rng(1), rng(2))[0])
    found = d.sample_features(4000, rng(1), rng(3))
    assert list(found) == ["feature_0", "feature_1"]
    np.testing.assert_array_equal(found["feature_0"], prompt >= 20)
    second = found["feature_1"][prompt >= 20]
    assert (second.mean(), second.std()) == (pytest.approx(10, abs=0.1), pytest.approx(0.5, abs=0.05))
    for name, part in d.sample_features(500, rng(1), rng(3)).items():
        np.testing.assert_array_equal(found[name][:500], part)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MixedLengths(kinds=[{**KIND, "features": [1]}, KIND]), "0 or 1 features"),
        (lambda: RequestKind(**KIND, features=[1] * 5), "features"),
    ],
)
def test_wrong_features_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
