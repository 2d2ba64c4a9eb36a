"""Predictions far beyond the memory: the look-ahead allocates only what fitting requests can need, same decisions."""

import numpy as np
import pytest

from kvgym import RequestTable, System, make_batch_time, make_policy, simulate
from kvgym.errors import ConfigError
from kvgym.kernels import empty_profile
from kvgym.policies.runner import prepare_run

UNIT = make_batch_time({"kind": "unit"})
LONGEST = 2**31 - 1
NAMES = (
    "mc_sf",
    "mc_benchmark",
    "work_conserving_fcfs_lookahead",
    "work_conserving_sjf_lookahead",
    "mc_sf:strict=False",
)


def table(predicted):
    """Return six requests of 2 + 8 tokens; the last one has the given prediction."""
    return RequestTable.from_columns(
        arrival_time=np.arange(6) / 2,
        prompt_len=[2] * 6,
        output_len=[8] * 6,
        predicted_output_len=[8] * 5 + [predicted],
    )


@pytest.mark.parametrize("name", NAMES)
def test_one_huge_prediction_takes_no_memory(name):
    system = System(24, UNIT, horizon=200.0)
    simulation, _ = prepare_run(system, table(LONGEST), make_policy(name))
    (policy,) = simulation.policies
    assert policy.arguments().profile.size <= 2 * (24 + 24 + 2)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_all_predictions_that_can_never_fit_mean_the_same(name, compiled):
    """All predictions beyond the capacity mean the same: never admitted, or treated like the capacity."""
    system = System(24, UNIT, horizon=200.0)
    runs = [
        simulate(system, table(predicted), name, compiled=compiled).requests["finish_time"]
        for predicted in (30, 1_000, LONGEST)
    ]
    for other in runs[1:]:
        np.testing.assert_array_equal(other, runs[0])
    assert np.isfinite(runs[0][:5]).all()


def test_excessive_memory_is_refused_with_its_size():
    assert empty_profile(100, 24).shape == (52,)
    assert empty_profile(7, 24, extra=3).shape == (24,)
    with pytest.raises(
        ConfigError, match=r"tokens with kv_capacity 2,147,483,647 takes 16.0 GiB; at most 1 GiB"
    ):
        prepare_run(System(LONGEST, UNIT), table(LONGEST), make_policy("mc_sf"))
