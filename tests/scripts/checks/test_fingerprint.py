"""The fingerprint covers every id, repeats, and differs where a value does."""

import numpy as np
import pytest

from kvgym.policies.policy import POLICIES


@pytest.fixture(scope="module")
def script(checks):
    return checks("fingerprint")


def test_environments_repeat_and_differ(script):
    first, second = ({name: str(digest) for name, digest in script.environments(20)} for _ in range(2))
    assert first == second
    assert {"kvgym/AdmitCount-v0", "kvgym/Route-v0"} <= first.keys()
    # 20 steps can be the same in two versions of an environment, but not in two kinds of it.
    kinds = {(digest, name.partition("-v")[0]) for name, digest in first.items()}
    assert len({digest for digest, _ in kinds}) == len(kinds)


def test_every_policy_runs_on_a_scenario(script, monkeypatch):
    monkeypatch.setattr(script, "scenario_names", lambda: ["mc-sf-model-2"])
    found = dict(script.simulations(20))
    assert list(found) == [f"mc-sf-model-2 {policy}" for policy in POLICIES]
    assert len({str(digest) for digest in found.values()}) > 5


@pytest.mark.parametrize("other", [np.float32(1.5), np.array([1.5, 2.0]), 1.5000000001, {"a": 1.5}])
def test_a_digest_differs_where_a_value_does(script, other):
    digests = []
    for value in (1.5, other):
        digests.append(script.Digest())
        digests[-1].add(value)
    assert str(digests[0]) != str(digests[1])
