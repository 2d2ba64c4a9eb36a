"""Policies and memory that compiled code leaves the bounds of, for processes of the checked build."""

from __future__ import annotations

import ctypes

import numba
import numpy as np

from kvgym import RequestTable, System, simulate
from kvgym.batch_time import UnitBatchTime
from kvgym.compiling.kernel import jit
from kvgym.errors import OutOfBoundsError
from kvgym.policies.policy import CompiledPolicy, PolicyInfo
from kvgym.simulator.policy_interface import policy_kernel, policy_memory

FAR = 4_000


@policy_kernel
def writes_far(view, decision, memory):
    memory.state[FAR + view.worker.num_active] = 7  # WRITES


@policy_kernel
def reads_before(view, decision, memory):
    memory.reals[0] = view.requests[-FAR].prompt_len  # READS


@jit
def own_helper(numbers, k):
    numbers[k] = 1  # HELPER


@numba.njit
def users_helper(numbers, k):
    numbers[k] = 1  # PLAIN


@policy_kernel
def by_helper(view, decision, memory):
    own_helper(decision.admit, FAR)


@policy_kernel
def by_plain_helper(view, decision, memory):
    users_helper(decision.evict, FAR)


def policies():
    """Return a policy of each kernel, by name."""
    found = {}
    for rule in (writes_far, reads_before, by_helper, by_plain_helper):
        name = rule.__name__
        found[name] = type(name, (CompiledPolicy,), {"info": PolicyInfo(name, "a bad one"), "kernel": rule})
    return found


def table():
    return RequestTable([0, 1, 1], [2, 3, 1], [3, 2, 4])


def one():
    return System(kv_capacity=9, batch_time=UnitBatchTime())


def refused(function, *arguments, **options):
    """Return the message of the error."""
    try:
        function(*arguments, **options)
    except OutOfBoundsError as error:
        return str(error)
    return None


def run_all(cluster):
    """Return what running each policy says: on one worker, and if requested the first in a cluster."""
    found = {name: refused(simulate, one(), table(), cls()) for name, cls in policies().items()}
    if cluster:
        system = System.replicate(one(), 2)
        found["cluster"] = refused(simulate, system, table(), policies()["writes_far"]())
    return found


def damaged(owner, tables):
    """Return the errors after changing a byte before and behind each table, by table and side."""
    found = {}
    for name, array in tables.items():
        if array.size == 0:
            continue  # an empty array has no address
        for side, place in (("before", array.ctypes.data - 1), ("behind", array.ctypes.data + array.nbytes)):
            byte = ctypes.string_at(place, 1)
            ctypes.memset(place, 0, 1)
            found[f"{name} {side}"] = refused(owner.check_memory, "tester")
            ctypes.memmove(place, byte, 1)
    assert refused(owner.check_memory, "tester") is None
    return found


def damaged_everywhere():
    """Return :func:`damaged` of a run, a cluster, environments and the observer of a cluster."""
    from kvgym.envs.routing.config import RoutingConfig
    from kvgym.envs.routing.observer import Observer
    from kvgym.envs.scheduling.environment import EnvConfig
    from kvgym.envs.scheduling.episodes import Episodes
    from kvgym.simulator.boundary import RUN_TABLES
    from kvgym.simulator.cluster.simulation import ClusterSimulation
    from kvgym.simulator.simulation import Simulation

    episodes = Episodes(EnvConfig.of(action="admit_count", num_requests=3), 2)
    own = ("settings", "batch_params", "observations", "masks", "rewards", "outcomes", "actions")
    run = Simulation(one(), table(), log=True)
    found = {
        "run": damaged(run, dict(zip(RUN_TABLES, run.tables(), strict=True))),
        "environments": damaged(episodes, {name: getattr(episodes, name) for name in own}),
        "block": damaged(episodes, episodes.slots[1].block.tables),
    }
    memory = policy_memory(profile=np.zeros(3))
    system = System.replicate(one(), 2)
    cluster = ClusterSimulation(system, table(), None, compiled=False)
    cluster._memory[-1] = memory
    found["policy of a worker"] = damaged(cluster, memory._asdict())
    found["cluster"] = damaged(cluster, {"workers": cluster.workers, "active": cluster.active})
    config = RoutingConfig.of(workers=2)
    observer = Observer(config, config.make_settings(system, 3, 1.0), 2)
    observer.attach(cluster)
    found["observer"] = damaged(observer, {"flat": observer.flat, "mask": observer.mask})
    return found


def step_after_damage():
    """Return the error of an environment's step after a byte behind one of its tables has changed."""
    from kvgym.envs.scheduling.environment import ServingEnv

    env = ServingEnv(action="admit_count", num_requests=3)
    env.reset(seed=0)
    requests = env.episodes.slots[0].block["requests"]
    ctypes.memset(requests.ctypes.data + requests.nbytes, 0, 1)
    return refused(env.step, 0)
