"""One-line descriptions of workloads, including changed presets."""

import pytest

from kvgym.workloads.describing import describe_requests, describe_spec
from kvgym.workloads.presets import PRESETS, preset_names
from kvgym.workloads.spec import WorkloadSpec
from kvgym.workloads.workload import make_workload


@pytest.mark.parametrize("name", preset_names())
def test_an_unchanged_preset_has_its_own_description(name):
    """Also when read back from results."""
    kept = make_workload(name).provenance()["spec"]
    assert describe_spec(WorkloadSpec(**kept)) == PRESETS[name].description


def test_a_changed_preset_names_its_changes():
    changed = make_workload({"preset": "lmsys", "rate": 20, "num_requests": 300})
    assert describe_spec(changed.spec) == (
        "lmsys, 20 requests/s, 300 requests; changed from the preset: arrivals, num_requests"
    )
    assert describe_requests(changed) == "lmsys, 20 requests/s, 300 requests"
    noisy = make_workload({"preset": "lmsys", "predictions": {"kind": "noisy", "epsilon": 0.2}})
    assert describe_spec(noisy.spec).endswith(
        "50 requests/s, 1,000 requests; changed from the preset: predictions"
    )


def test_users_descriptions_stay():
    own = make_workload({"preset": "lmsys", "rate": 20, "description": "our chat"})
    assert describe_spec(own.spec) == "our chat"
    nameless = {
        "arrivals": {"kind": "poisson", "rate": 2500},
        "lengths": PRESETS["lmsys"].lengths.model_dump(),
    }
    assert describe_spec(make_workload({**nameless, "num_requests": 5}).spec) == (
        "custom, 2,500 requests/s, 5 requests"
    )
