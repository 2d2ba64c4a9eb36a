"""Policies with one fault each, for tests of what finds them."""

from __future__ import annotations

import os
import signal

import numpy as np

from kvgym.kernels import (
    UNKNOWN,
    admit,
    admit_while_fits,
    evict_latest,
    first_waiting,
    need_of,
    need_of_active,
    next_waiting,
    policy_kernel,
)
from kvgym.policies.policy import CompiledPolicy, Decision, Policy, PolicyInfo
from kvgym.simulator.view import simulation_of


class OneByOne(Policy):
    """No fault: one request at a time, in queue order."""

    info = PolicyInfo(name="one_by_one", summary="one at a time")

    def __init__(self, *, spare: int = 0) -> None:
        self.spare = spare

    def chosen(self, view):
        return int(view.waiting.request_id[0])

    def schedule(self, view):
        return Decision(admit=[] if view.num_active else [self.chosen(view)])


class Peeks(OneByOne):
    """Takes the shortest output, which it does not know."""

    def chosen(self, view):
        lengths = simulation_of(view).table.output_len
        return min(view.waiting.request_id.tolist(), key=lambda i: lengths[i])


class Starves(OneByOne):
    """Keeps prompts of more than 25 tokens waiting for ever."""

    def schedule(self, view):
        short = view.waiting.request_id[view.waiting.prompt_len <= 25].tolist()
        if view.num_active or not short:
            return Decision()
        return Decision(admit=short[:1])


class Remembers(OneByOne):
    """Takes the last of the queue from its second run on."""

    runs = 0

    def reset(self, system):
        self.runs += 1

    def chosen(self, view):
        return int(view.waiting.request_id[-1 if self.runs > 1 else 0])


class Evicts(OneByOne):
    """Sends a request back after its prefill, now and then."""

    def schedule(self, view):
        if view.num_active and view.iteration % 7 == 3:
            return Decision(evict=view.active.request_id.tolist())
        return super().schedule(view)


class Undeclared(OneByOne):
    """Depends on SLOs, of which it says nothing."""

    def chosen(self, view):
        slo = simulation_of(view).table.ttft_slo
        return int(view.waiting.request_id[0 if slo is None or slo[0] < 10 else -1])


class Crashes(OneByOne):
    """Ends the process."""

    def reset(self, system):
        os.kill(os.getpid(), signal.SIGSEGV)


@policy_kernel
def wild(view, decision, memory):
    """FCFS that writes far outside of an array where it admits three at once."""
    need = need_of_active(view)
    if need > view.problem.kv_capacity:
        evict_latest(view, decision, need)
    else:
        admit_while_fits(view, decision, need, view.problem.kv_capacity)
    if decision.record.num_admit == 3:
        decision.admit[5_000_000] = 1


@policy_kernel
def by_prediction(view, decision, memory):
    """FCFS with the shortest predicted output first, one a moment."""
    need, best, i = need_of_active(view), UNKNOWN, first_waiting(view)
    if need > view.problem.kv_capacity:
        evict_latest(view, decision, need)
        return
    while i != UNKNOWN:
        if best == UNKNOWN or view.requests[i].predicted_len < view.requests[best].predicted_len:
            best = i
        i = next_waiting(view, i)
    if best != UNKNOWN and need + need_of(view, view.requests[best]) <= view.problem.kv_capacity:
        admit(decision, best)


class ByPrediction(CompiledPolicy):
    """Reads predicted outputs, of which it says nothing, so that they are blank."""

    info = PolicyInfo(name="by_prediction", summary="reads a blank column", evicts=True)
    kernel = by_prediction


class Wild(CompiledPolicy):
    info = PolicyInfo(name="wild", summary="writes anywhere", evicts=True)
    kernel = wild


@policy_kernel
def misspelt(view, decision, memory):
    """FCFS that reads a field that there is not."""
    need = need_of_active(view)
    if need > view.problem.kv_capacty:
        evict_latest(view, decision, need)


class Misspelt(CompiledPolicy):
    """Does not compile."""

    info = PolicyInfo(name="misspelt", summary="not", paper="practice", evicts=True)
    kernel = misspelt


class Luck(OneByOne):
    """Draws from the random state of the whole process."""

    def chosen(self, view):
        return int(np.random.default_rng().choice(view.waiting.request_id))
