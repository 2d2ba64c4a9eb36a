"""User code that raises exceptions, in a module so that other processes can load it."""

from __future__ import annotations

import sys

import numpy as np

from kvgym.kernels import need_of_active, policy_kernel
from kvgym.policies.policy import CompiledPolicy, Decision, Policy, PolicyInfo
from kvgym.policies.routing import Router, RouterInfo
from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel
from kvgym.simulator.observer import Observer


class UnsendableError(Exception):
    """An exception that cannot be pickled."""

    def __init__(self, one, two):
        super().__init__(one)
        self.held = lambda: two


def fail(how):
    """Raise an exception of a kind."""
    if how == "stop":
        return next(iter(()))
    if how == "exit":
        sys.exit(3)
    if how == "library":
        return np.zeros(3).reshape(5)
    if how == "unsendable":
        raise UnsendableError("one", "two")
    raise {"interrupt": KeyboardInterrupt, "memory": MemoryError, "generator": GeneratorExit}.get(
        how, KeyError
    )(how)


class Raising(Policy):
    """FCFS, one at a time, that fails at one of its methods."""

    info = PolicyInfo(name="raising", summary="fails")

    def __init__(self, *, at: str = "", how: str = "key") -> None:
        self.at, self.how = at, how
        self.reach("__init__")

    def reach(self, method):
        if method == self.at:
            fail(self.how)

    def reset(self, system):
        self.reach("reset")

    def schedule(self, view):
        if view.iteration == 2:
            self.reach("schedule")
        if self.at == "blocking":
            return Decision()
        return Decision(admit=[] if view.num_active else [int(view.waiting.request_id[0])])

    def blocking(self, view):
        self.reach("blocking")

    def hyperparameters(self):
        self.reach("hyperparameters")
        return super().hyperparameters()

    def content(self):
        self.reach("content")
        return super().content()


class WrongArguments(Raising):
    def schedule(self):
        return Decision()


class RaisingRouter(Router):
    """Everything to worker 0, and fails at one of its methods."""

    info = RouterInfo(name="raising", summary="fails")
    reassigns = True

    def __init__(self, *, at: str = "", how: str = "key") -> None:
        self.at, self.how = at, how

    def reach(self, method):
        if method == self.at:
            fail(self.how)

    def reset(self, num_workers, seed):
        self.reach("reset")

    def route(self, view):
        self.reach("route")
        return 0

    def reassign(self, view):
        self.reach("reassign")

    def compiled_rule(self, num_workers):
        self.reach("compiled_rule")


class RaisingObserver(Observer):
    """Fails when it hears of something, once."""

    def __init__(self, at, how="key"):
        self.at, self.how, self.heard = at, how, []

    def reach(self, method):
        self.heard.append(method)
        if method == self.at and self.heard.count(method) == 1:
            fail(self.how)

    def joined(self, time, worker, request_id):
        self.reach("joined")

    def moved(self, time, source, target, request_id, was_active):
        self.reach("moved")

    def decided(self, time, worker, admitted, evicted):
        self.reach("decided")

    def ran(self, batch):
        self.reach("ran")

    def waited(self, time, worker, active, kv_tokens):
        self.reach("waited")

    def ended(self, time):
        self.reach("ended")


@batch_time_kernel
def one_second(load, params):
    return params[0]


class RaisingModel(BatchTimeModel):
    """One second a batch; reading its parameters fails."""

    kernel = one_second

    def __init__(self, how="key"):
        self.how = how

    def params(self):
        return fail(self.how)


@batch_time_kernel
def out_of_range(load, params):
    return params[7 if load.num_decodes > 0 else 0]


class OutOfRangeModel(RaisingModel):
    """Reads behind its parameters; as plain Python this is an IndexError."""

    kernel = out_of_range

    def params(self):
        return np.ones(1)


@policy_kernel
def writes_outside(view, decision, memory):
    """Writes behind an array, an error as plain Python only."""
    decision.admit[view.problem.kv_capacity] = need_of_active(view)


class WritesOutside(CompiledPolicy):
    info = PolicyInfo(name="writes_outside", summary="fails", evicts=True)
    kernel = writes_outside


class NoParams(WritesOutside):
    info = PolicyInfo(name="no_params", summary="fails", evicts=True)

    def params(self, system):
        return fail("key")
