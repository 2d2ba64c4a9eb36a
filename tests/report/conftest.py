import math

import pytest

from helpers.pages import HOSTILE
from kvgym.experiments.comparison import compare
from kvgym.experiments.scenario import Scenario
from kvgym.policies.policy import Decision, Policy, PolicyInfo


class Stuck(Policy):
    """Waits for ever."""

    info = PolicyInfo(name=HOSTILE, summary="<b>waits</b>")

    def schedule(self, view):
        return Decision(wait_until=math.inf)


def scenario(**changes):
    fields = {
        "name": "tiny",
        "summary": "thirty requests in slotted time",
        "batch_time": {"kind": "unit"},
        "kv_capacity": 30,
        "workload": {
            "description": "uniform lengths",
            "arrivals": {"kind": "poisson", "rate": 2.0},
            "lengths": {
                "kind": "independent",
                "prompt": {"kind": "uniform", "low": 1, "high": 5},
                "output": {"kind": "uniform", "low": 2, "high": 9},
            },
            "num_requests": 30,
        },
        "policies": ("fcfs", "mc_sf", "mc_benchmark"),
        "seeds": 3,
    }
    return Scenario.model_validate({**fields, **changes})


@pytest.fixture(scope="session")
def comparison():
    return compare(scenario(), keep_examples=True)


@pytest.fixture(scope="session")
def single():
    return compare(scenario(), seeds=[7], keep_examples=True)


@pytest.fixture(scope="session")
def with_failure():
    return compare(scenario(name=HOSTILE), ["fcfs", Stuck(), "mc_sf:protection=0.1"], keep_examples=True)
