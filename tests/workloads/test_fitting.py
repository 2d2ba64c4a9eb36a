import numpy as np
import pytest
import yaml

from kvgym.errors import WorkloadError
from kvgym.workloads import fit_lengths, fit_predictor, make_workload, variance_explained
from kvgym.workloads.fitting import mixture_text
from kvgym.workloads.lengths import MixedLengths


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
