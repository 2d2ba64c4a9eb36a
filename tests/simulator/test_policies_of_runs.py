"""Compiled runs accept only policies and routers that were reset for them: kernels index memory unchecked."""

import numpy as np
import pytest

from helpers.runs.clusters import UNIT, workload
from kvgym import System, make_policy, simulate
from kvgym.errors import ConfigError, KVGymError
from kvgym.policies.policy import Policy, PolicyInfo
from kvgym.policies.routing import make_router
from kvgym.policies.runner import prepare_run, result_of, system_info
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.simulation import Simulation

SYSTEM, TABLE = System(40, UNIT), workload(2, n=30, rate=2.0)


def ready(name, system=SYSTEM, table=TABLE, worker=0):
    policy = make_policy(name)
    policy.reset(system_info(system, table, 0, policy.info.needs, worker))
    return policy


def test_a_policy_that_was_reset_for_the_run_decides():
    simulation = Simulation(SYSTEM, TABLE)
    policy = ready("fcfs")
    simulation.set_policies([policy])
    assert simulation.run()
    expected = simulate(SYSTEM, TABLE, "fcfs")
    assert result_of(simulation, policy).requests.tobytes() == expected.requests.tobytes()


def test_a_reset_for_another_run_has_no_effect():
    """The run keeps its initial memory."""
    spec = "mc_sf:protection=0.2,overrun=extend"
    policy = make_policy(spec)
    simulation, _ = prepare_run(SYSTEM, TABLE, policy)
    assert not simulation.run(budget=5)
    policy.reset(system_info(System(12, UNIT), workload(2, n=1), 0, policy.info.needs))
    assert simulation.run()
    expected = simulate(SYSTEM, TABLE, spec)
    assert result_of(simulation, policy).requests.tobytes() == expected.requests.tobytes()


def smaller(name):
    return {
        "fewer requests": lambda: ready(name, table=workload(2, n=3)),
        "another capacity": lambda: ready(name, System(39, UNIT)),
        "blocks of another size": lambda: ready(name, System(40, UNIT, block_size=4)),
        "no reset": lambda: make_policy(name),
    }


@pytest.mark.parametrize("name", ["vllm_v1", "mc_sf"])
@pytest.mark.parametrize("how", smaller(""))
def test_a_memory_for_another_run_is_refused(name, how):
    policy = smaller(name)[how]()
    simulation = Simulation(SYSTEM, TABLE, needs=policy.info.needs)
    simulation.set_policies([policy])
    with pytest.raises(ConfigError, match="reset"):
        simulation.run()
    assert simulation.worker["decisions"] == 0


def test_information_that_the_policy_needs_must_be_present():
    simulation = Simulation(SYSTEM, TABLE)
    simulation.set_policies([ready("mc_sf")])
    with pytest.raises(ConfigError, match="needs nothing"):
        simulation.run()


def test_wrong_numbers_and_mixtures_of_policies():
    system = SYSTEM.replicate(2)
    cluster = ClusterSimulation(system, TABLE, None)
    with pytest.raises(ConfigError, match="1 policies for 2 workers"):
        cluster.set_policies([ready("fcfs")])
    cluster.set_policies([ready("fcfs", system), ready("vllm", system, worker=1)])
    with pytest.raises(ConfigError, match="different kernels"):
        cluster.run()


class InPython(Policy):
    info = PolicyInfo(name="in_python", summary="no kernel")

    def schedule(self, view):
        raise NotImplementedError


@pytest.mark.parametrize("system", [SYSTEM, SYSTEM.replicate(2)])
def test_without_compiled_policies_there_is_nothing_to_run(system):
    simulation = ClusterSimulation(system, TABLE, None) if system.workers else Simulation(system, TABLE)
    for policies in (None, [InPython() for _ in system.all_workers]):
        if policies is not None:
            simulation.set_policies(policies)
        with pytest.raises(KVGymError, match="no compiled policy to run"):
            simulation.run()


@pytest.mark.parametrize("name", ["round_robin", "join_shortest_queue", "uniform_random"])
def test_a_router_for_another_cluster_is_refused(name):
    router = make_router(name)
    with pytest.raises(ConfigError, match="has not been reset for 3 workers"):
        ClusterSimulation(SYSTEM.replicate(3), TABLE, router)
    router.reset(2, np.random.SeedSequence(0))
    with pytest.raises(ConfigError, match="has not been reset for 3 workers"):
        ClusterSimulation(SYSTEM.replicate(3), TABLE, router)
    router.reset(3, np.random.SeedSequence(0))
    ClusterSimulation(SYSTEM.replicate(3), TABLE, router)
