"""Distributions and renewed predictions: their columns, their predictors, and what policies observe of them."""

import numpy as np
import pytest
from scipy.stats import kendalltau

import kvgym
from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ConfigError, WorkloadError
from kvgym.policies.policy import Decision, Policy, PolicyInfo
from kvgym.simulator.system import System
from kvgym.workloads import Forecasts, RequestTable, make_workload, read_trace, write_requests
from kvgym.workloads.forecasts import tenths_of
from kvgym.workloads.predictions import (
    BinPrediction,
    DistributionPrediction,
    ExactPrediction,
    NoisyPrediction,
    RankPrediction,
)


def table(outputs, **columns) -> RequestTable:
    n = len(outputs)
    return RequestTable(np.arange(n), np.ones(n), outputs, **columns)


def lengths(n=2000, seed=7):
    return np.maximum(1, np.random.default_rng(seed).lognormal(4, 1, n)).astype(int)


@pytest.mark.parametrize("tau", [-0.5, 0.0, 0.19, 0.56, 1.0])
def test_ranks_correlate_as_requested_and_have_the_same_lengths(tau):
    output = np.random.default_rng(1).permutation(4000) + 1  # no ties
    guess = RankPrediction(tau=tau).apply(table(output), np.random.default_rng(0)).predicted_output_len
    assert sorted(guess) == sorted(output)
    assert kendalltau(guess, output).statistic == pytest.approx(tau, abs=0.02)


def test_bins_are_right_as_often_as_requested_and_otherwise_next_to_the_right_one():
    output = lengths()
    right = BinPrediction().apply(table(output), np.random.default_rng(0))
    assert (right.predicted_low <= output).all()
    assert (output <= right.predicted_high).all()
    assert (right.predicted_output_len == (right.predicted_low + right.predicted_high) // 2).all()
    some = BinPrediction(accuracy=0.7).apply(table(output), np.random.default_rng(0))
    hit = (some.predicted_low <= output) & (output <= some.predicted_high)
    assert hit.mean() == pytest.approx(0.7, abs=0.03)
    step = np.log2(some.predicted_high) - np.log2(right.predicted_high)
    assert set(step[~hit]) == {-1, 1}
    with pytest.raises(ConfigError, match="accuracy"):
        BinPrediction(accuracy=1.2)


def test_the_last_bin_of_edges_has_no_neighbour_above():
    found = BinPrediction(bucket=(10, 20), accuracy=0.0).apply(table([15] * 30), np.random.default_rng(0))
    assert set(found.predicted_high) == {10}
    assert set(found.predicted_low) == {1}


@pytest.mark.parametrize("shape", ["log_normal", "log_t", "neighbours"])
def test_distributions_are_ascending_and_calibrated(shape):
    output = lengths(3000)
    made = DistributionPrediction(shape=shape, sigma=0.5).apply(table(output), np.random.default_rng(0))
    tenths = made.forecasts.tenths
    assert tenths.shape == (3000, 10)
    assert (np.diff(tenths, axis=1) >= 0).all()
    assert (made.predicted_output_len == np.floor(tenths.mean(axis=1) + 0.5)).all()
    middle = (tenths[:, 4] + tenths[:, 5]) / 2
    assert (output <= middle).mean() == pytest.approx(0.5, abs=0.06)
    assert (output > tenths[:, 9]).mean() < 0.12
    assert tenths.max() <= output.max()


def test_tenths_of_equally_likely_lengths():
    assert tenths_of(np.arange(1.0, 21.0)[None]).tolist() == [[2, 4, 6, 8, 10, 12, 14, 16, 18, 20]]


def test_renewals_fall_due_every_k_tokens_with_a_falling_error():
    output = np.full(4000, 50)
    made = ExactPrediction(renew_every=10, renew_error=0.8, renew_decay=0.5).apply(
        table(output), np.random.default_rng(0)
    )
    f = made.forecasts
    assert f.every == 10
    assert (f.count == 4).all()  # after 10, 20, 30 and 40 of 50 tokens
    rows = f.renewed.reshape(-1, 4)
    assert (rows > [10, 20, 30, 40]).all()
    spread = np.log((rows - [10, 20, 30, 40]) / [40, 30, 20, 10]).std(axis=0)
    assert spread == pytest.approx([0.8, 0.4, 0.2, 0.1], rel=0.1)
    assert np.array_equal(made.predicted_output_len, output)
    first = NoisyPrediction(epsilon=0.5).apply(table(output), np.random.default_rng(0))
    both = NoisyPrediction(epsilon=0.5, renew_every=5).apply(table(output), np.random.default_rng(0))
    assert np.array_equal(first.predicted_output_len, both.predicted_output_len)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_files_keep_forecasts_clients_and_deadlines(tmp_path, suffix):
    forecasts = Forecasts.from_rows([range(1, 11), range(5, 15)], [[3, 4], []], every=2)
    before = table([6, 2], forecasts=forecasts, client_id=[1, 0], e2e_slo=[2.5, np.inf])
    write_requests(before, tmp_path / f"trace{suffix}")
    after = read_trace(tmp_path / f"trace{suffix}", format="kvgym")
    assert after.client_id.tolist() == [1, 0]
    assert after.e2e_slo.tolist() == [2.5, np.inf]
    assert np.array_equal(after.forecasts.tenths, forecasts.tenths)
    assert [after.forecasts.row(i).tolist() for i in range(2)] == [[3, 4], []]
    assert after.forecasts.every == 2


def test_rows_move_with_their_forecasts():
    forecasts = Forecasts.from_rows([range(1, 11), range(5, 15)], [[3], [7]], every=2)
    made = RequestTable([2, 1], [1, 1], [4, 4], forecasts=forecasts)
    assert [made.forecasts.row(i).tolist() for i in range(2)] == [[7], [3]]
    assert made.forecasts.tenths[0, 0] == 5
    assert made.select(np.array([False, True])).forecasts.row(0).tolist() == [3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "forecasts need"),
        ({"tenths": [[1] * 9]}, "expected \\(n, 10\\)"),
        ({"tenths": [[2, *[1] * 9]]}, "row 0.*ascending"),
        ({"tenths": [[0] * 10]}, "≥ 1"),
        ({"renewed": [[1]]}, "renew_every = 0"),
        ({"renewed": [["a"]], "every": 2}, "renewed_lens"),
        ({"renewed": 5.0, "every": 2}, "renewed_lens = 5.0; expected a list"),
        ({"renewed": np.array(5), "every": 2}, "expected a list"),
        (
            {"renewed": [np.array(["2024-01-01"], "datetime64[s]"), [1]], "every": 2},
            "renewed_lens: .* no times",
        ),
        ({"renewed": [[1]], "every": np.ones(2)}, "renew_every = array"),
        ({"tenths": [[1] * 10], "renewed": [[1], [1]], "every": 2}, "1 rows, renewed_lens 2"),
    ],
)
def test_wrong_forecasts(arguments, message):
    with pytest.raises(WorkloadError, match=message):
        Forecasts.from_rows(**arguments)


BIG = np.full(2, 10**9)
NONE = np.zeros(1, np.int64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (None, 1, np.array([5]), BIG, np.full(2, 10**6)),
            "row 0: start 1000000000 and count 1000000 end beyond",
        ),
        ((None, 1, [5, 5], [0, 1], [2, 2]), "row 1: start 1 and count 2 end beyond renewed, which has 2"),
        ((None, 1, [5], [1], [1]), "row 0: start 1 and count 1 end beyond"),
        (
            (None, 1, [5], [2**62], [2**62 - 1]),
            "start, row 0: 4611686018427387904; expected a whole number from 0",
        ),
        ((None, 1, [5], np.array([2**64 - 1], np.uint64), [1]), "start, row 0: 18446744073709551615"),
        ((None, 1, [5], [-1], [1]), "start, row 0: -1"),
        ((None, 1, [5], [0], [-1]), "count, row 0: -1"),
        ((None, 1, [5], [0, 0], [1]), "start has 2 rows, count 1"),
        ((None, 1, [5], [0.0], [1]), "start has shape .* float64"),
        ((None, 1, [[5]], [0], [1]), "renewed_lens have shape"),
        ((None, 1, [0], [0], [1]), "renewed_lens: expected whole numbers"),
        ((None, 1, [2**31], [0], [1]), "renewed_lens: expected whole numbers"),
        ((None, -1, [5], [0], [1]), "renew_every = -1"),
        ((None, 2**31, [5], [0], [1]), "renew_every = 2147483648"),
        ((None, True, [5], [0], [1]), "renew_every = True"),
        ((None, "2", [5], [0], [1]), "renew_every = '2'"),
        ((None, 0, [], [0], [0]), "forecasts need tenths"),
        (([[1] * 10], 0, [5], [0], [1]), "renew_every = 0 with renewed_lens"),
        (([[-1] * 10], 0, [], [0], [0]), "predicted_tenths: expected whole numbers"),
        (([[1] * 9 + [2**31]], 0, [], [0], [0]), "predicted_tenths: expected whole numbers"),
        (([[1] * 11], 0, [], [0], [0]), "expected \\(n, 10\\)"),
        (([[2, *[1] * 9]], 0, [], [0], [0]), "row 0.*ascending"),
        (([[1] * 10] * 2, 0, [], [0], [0]), "start has 1 rows, predicted_tenths 2"),
    ],
)
def test_the_constructor_refuses_what_compiled_code_could_not_read(arguments, message):
    with pytest.raises(WorkloadError, match=message):
        Forecasts(*arguments)


def test_given_arrays_are_copied_and_read_only():
    given = [np.full((1, 10), 3), np.array([5]), np.array([0]), np.array([1])]
    made = Forecasts(given[0], 2, *given[1:])
    for array in given:
        array[...] = 10**9
    kept = [made.tenths, made.renewed, made.start, made.count]
    assert [int(array.max()) for array in kept] == [3, 5, 0, 1]
    assert not any(array.flags.writeable for array in kept)
    assert made[np.array([0, 0])].row(1).tolist() == [5]


def test_forecasts_must_fit_the_requests():
    with pytest.raises(WorkloadError, match="1 rows; expected 2"):
        table([1, 1], forecasts=Forecasts.from_rows([[1] * 10]))


class Seen(Policy):
    """Admits everything, and notes what it sees of the waiting and of the active requests."""

    info = PolicyInfo(
        name="seen_forecasts",
        summary="notes forecasts",
        needs={"renewed_length", "length_distribution", "client", "slo", "predicted_length"},
    )

    def reset(self, system):
        self.waiting, self.active = [], []

    def schedule(self, view):
        for which in ("waiting", "active"):
            rows = getattr(view, which)
            columns = (
                "renewed_output_len",
                "client_id",
                "e2e_slo",
                "num_output_tokens",
                "predicted_output_len",
            )
            for k in range(len(rows)):
                getattr(self, which).append(
                    (*(getattr(rows, name)[k].item() for name in columns), rows.predicted_tenths[k, 0].item())
                )
        return Decision(admit=tuple(view.waiting.request_id.tolist()))


def test_policies_observe_what_they_declare_and_renewals_only_when_they_are_due():
    forecasts = Forecasts.from_rows([range(4, 14)], [[9, 6]], every=2)
    requests = table([6], forecasts=forecasts, client_id=[3], e2e_slo=[8.0], predicted_output_len=[5])
    policy = Seen()
    kvgym.simulate(System(20, UnitBatchTime()), requests, policy)
    assert policy.waiting == [(5, 3, 8.0, 0, 5, 4)]
    assert [(made, renewed) for renewed, _, _, made, _, _ in policy.active] == [
        (1, 5), (2, 9), (3, 9), (4, 6), (5, 6),
    ]  # fmt: skip
    assert {row[4] for row in policy.active} == {5}  # the prediction on arrival stays
    with pytest.raises(ConfigError, match="needs client"):
        kvgym.simulate(System(20, UnitBatchTime()), requests.replace(client_id=None), policy)
    with pytest.raises(ConfigError, match="needs length_distribution"):
        kvgym.simulate(System(20, UnitBatchTime()), requests.replace(forecasts=None), policy)


def test_workloads_have_clients_and_deadlines():
    description = {
        "preset": "wait-low",
        "num_requests": 400,
        "clients": {"count": 4, "zipf": 1},
        "e2e_slo": 30.0,
    }
    made = make_workload(description).sample(0)
    plain = make_workload({"preset": "wait-low", "num_requests": 400}).sample(0)
    count = np.bincount(made.client_id, minlength=4)
    assert count[0] > count[1] > count[3]
    assert (made.e2e_slo == 30).all()
    assert np.array_equal(made.output_len, plain.output_len)
    assert plain.client_id is None
