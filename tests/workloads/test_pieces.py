"""Requests that are drawn in pieces are those of one table."""

import numpy as np
import pytest

from kvgym.errors import ConfigError
from kvgym.workloads.pieces import pieces_of
from kvgym.workloads.workload import make_workload

LOGNORMAL = {"kind": "lognormal", "median": 20, "mean": 50}
MIXTURE = {
    "kind": "mixture",
    "kinds": [
        {"weight": 0.7, "prompt": LOGNORMAL, "output": {"kind": "uniform", "low": 1, "high": 30}},
        {"weight": 0.3, "prompt": {"kind": "constant", "value": 9}, "output": LOGNORMAL},
    ],
}
WORKLOADS = {
    "noisy": ("lmsys", {"predictions": {"kind": "noisy", "epsilon": 0.5}, "ttft_slo": 1.0}),
    "mixture": ("lmsys", {"lengths": MIXTURE}),
    "classes by weight": ("slai", {}),
    "gamma": ("lmsys", {"arrivals": {"kind": "gamma", "rate": 3.0, "burstiness": 0.5}}),
    "sinusoid": ("lmsys", {"arrivals": {"kind": "sinusoid", "rate": 3.0, "amplitude": 0.5, "period": 60.0}}),
    "clients": ("lmsys", {"clients": {"count": 5}}),
}


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("size", [37, 200, 500])
def test_pieces_are_the_rows_of_one_table(name, size):
    preset, changes = WORKLOADS[name]
    workload = make_workload(preset, num_requests=200, **changes)
    pieces, whole = list(pieces_of(workload, 7, size)), workload.sample(7).columns()
    assert [len(piece) for piece in pieces[:-1]] == [size] * (len(pieces) - 1)
    for column, values in whole.items():
        np.testing.assert_array_equal(np.concatenate([piece.columns()[column] for piece in pieces]), values)


@pytest.mark.parametrize(
    ("preset", "changes", "reason"),
    [
        ("flow", {"num_requests": 100}, "slotted"),
        ("lmsys", {"duration": 5.0}, "not fixed"),
        ("lmsys", {"predictions": {"kind": "rank", "tau": 0.5}}, "depend on all requests"),
        ("lmsys", {"limits": {"policy": "drop"}}, "drop requests"),
        ("coding-agent", {}, "common prefixes"),
    ],
)
def test_others_are_refused_with_the_reason(preset, changes, reason):
    with pytest.raises(ConfigError, match=reason):
        next(pieces_of(make_workload(preset, **changes), 0, 10))
