"""The Ray executor on a cluster of two nodes, both processes of this machine."""

import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from helpers.execution_works import Square, raise_two_parted, refuse_three, where
from kvgym.errors import ConfigError, KVGymError
from kvgym.experiments.comparison import compare
from kvgym.experiments.scenario import load_scenario
from kvgym.utils.execution import make_executor

ray = pytest.importorskip("ray")

SMALL = load_scenario("a100-llama2-70b").override(
    workload={"preset": "lmsys", "num_requests": 150, "rate": 20}
)


@pytest.fixture(scope="module")
def two_nodes():
    """Return a cluster of two nodes with one core each, and its second node."""
    from ray.cluster_utils import Cluster

    before = os.environ.get("PYTHONPATH")
    paths = [str(Path(__file__).parents[2]), *filter(None, [before])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # nodes inherit it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000},
        )
        second = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster, second
        ray.shutdown()
        cluster.shutdown()
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


pytestmark = pytest.mark.filterwarnings("ignore")


def test_tasks_run_on_both_nodes_and_errors_are_raised(two_nodes):
    with make_executor(where, ray="auto") as executor:
        found = executor.map(range(60))
    assert [task for task, _ in found] == list(range(60))
    pids = {pid for _, pid in found}
    assert os.getpid() not in pids
    assert len(pids) >= 2
    with make_executor(Square(), 1, ray="auto") as executor:
        assert [square for square, _ in executor.map(range(10))] == [k * k for k in range(10)]
    with make_executor(refuse_three, ray="auto") as executor, pytest.raises(ConfigError, match="three"):
        executor.map(range(5))
    with (
        make_executor(raise_two_parted, ray="auto") as executor,
        pytest.raises(KVGymError, match="a leak in task 4"),
    ):
        executor.map([4])
    assert ray.is_initialized()  # the executor did not start it


def test_results_survive_the_death_of_a_node(two_nodes):
    cluster, second = two_nodes
    policies = ["mc_sf", "fcfs", "sarathi"]
    before = compare(SMALL, policies, seeds=8)
    lost = []

    def kill(_):
        if len(lost) < 1:
            cluster.remove_node(second, allow_graceful=False)
            lost.append(second)

    after = compare(SMALL, policies, seeds=8, ray="auto", progress=kill)
    assert lost
    np.testing.assert_equal(
        *([(r.policy, r.seed, r.metrics, r.error) for r in c.runs] for c in (after, before))
    )
    assert after.num_requests == before.num_requests


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_no_cluster_at_an_address(address):
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(ConfigError, match=rf"no Ray cluster at '{address}'"):
        make_executor(where, ray=address)


def test_without_ray_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install "kvgym\[ray\]"'):
        make_executor(where, ray="local")


def test_a_local_cluster_starts_and_stops_with_the_executor():
    if ray.is_initialized():
        ray.shutdown()
    with make_executor(abs, 1, ray="local") as executor:
        assert executor.map([-1, 2, -3]) == [1, 2, 3]
        assert ray.is_initialized()
    assert not ray.is_initialized()
