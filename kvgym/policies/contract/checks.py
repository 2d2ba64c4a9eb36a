"""The checks that every policy must pass; each takes a policy and a case, and raises an error if it fails."""

from __future__ import annotations

import json
import linecache
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ContractError, KVGymError, LivelockError
from kvgym.policies.contract.cache_invariants import check_cache
from kvgym.policies.contract.cases import (
    TIMES,
    Case,
    Make,
    Shuffling,
    early_part,
    outcome,
    requests,
    require_equal,
    setting_cases,
    shrink,
    with_common_prefixes,
)
from kvgym.policies.contract.invariants import InvariantChecker
from kvgym.policies.policy import Decision, Policy, SystemInfo, policy_defaults
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.system import PROGRESS_ON_EVICT, System, Worker
from kvgym.simulator.view import SystemView, simulation_of
from kvgym.utils.user_code import calling

REVEALED = {
    "predicted_length": ("predicted_output_len",),
    "length_interval": ("predicted_low", "predicted_high"),
    "class": ("class_id",),
    "slo": ("ttft_slo", "tbt_slo", "e2e_slo"),
    "features": ("feature_0",),
}
"""Columns by the need that exposes them; a policy that does not declare the need must not depend on them."""

HIDDEN = (
    ("true_length", "output_len", -1),
    ("predicted_length", "predicted_len", -1),
    ("length_interval", "predicted_low", -1),
    ("length_interval", "predicted_high", -1),
    ("class", "class_id", -1),
    ("slo", "ttft_slo", np.inf),
    ("slo", "tbt_slo", np.inf),
)
"""Need, column that a compiled policy can read, and the column's value if the need is not declared."""

Cases = Callable[[], Iterator[Case]]


@dataclass(frozen=True)
class Check:
    """A requirement on every policy.

    Attributes:
        name: name of the check.
        what: the requirement, in one line.
        cases: returns the cases on which it is checked.
        holds: raises :class:`~kvgym.errors.ContractError`, or any other error, if the policy fails.
    """

    name: str
    what: str
    cases: Cases
    holds: Callable[[Make, Case], None]

    def run(self, make: Make) -> None:
        """Check a policy on every case.

        Raises:
            ContractError: it fails; the details are the smallest failing case found.
        """
        for case in self.cases():
            fault = self._fault(make, case)
            if fault:
                least = shrink(case, lambda fewer: bool(self._fault(make, fewer)))
                raise ContractError(self._fault(make, least) or fault, least.text())

    def _fault(self, make: Make, case: Case) -> str:
        """Return what is wrong on a case, in one line; "" if the policy passes."""
        try:
            self.holds(make, case)
        except Exception as error:
            text = " ".join(str(error).split())
            if isinstance(error, ContractError):
                return text
            if isinstance(error, KVGymError):  # its message is complete
                return f"{type(error).__name__}: {text}"
            where = traceback.extract_tb(error.__traceback__)[-1]
            source = linecache.getline(where.filename, where.lineno or 0).strip()
            place = f"{where.filename}:{where.lineno}" + (f": {source}" if source else "")
            return (
                f"{type(error).__name__}: {text[:300]} ({place})"
                if text
                else f"{type(error).__name__} at {place}"
            )
        return ""


CHECKS: dict[str, Check] = {}
"""All checks by name, in the order in which they run."""


def _check(name: str, cases: Cases) -> Callable[[Callable[[Make, Case], None]], Callable[[Make, Case], None]]:
    def add(holds: Callable[[Make, Case], None]) -> Callable[[Make, Case], None]:
        CHECKS[name] = Check(name, (holds.__doc__ or "").splitlines()[0].rstrip("."), cases, holds)
        return holds

    return add


def needs_of(policy: Policy) -> frozenset[str]:
    """Return everything that a policy may observe."""
    return policy.info.needs | policy.info.uses


def _demand(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ContractError(otherwise)


def _one() -> Iterator[Case]:
    yield Case(requests(), System(kv_capacity=48, batch_time=UnitBatchTime()))


def _short_prompts() -> Iterator[Case]:
    """Yield cases of many short prompts with outputs that overflow the memory."""
    for k, progress in enumerate(PROGRESS_ON_EVICT):
        table = requests(k, 24, longest=12).replace(
            arrival_time=np.zeros(24), prompt_len=np.ones(24, dtype=int)
        )
        yield Case(table, System(18, UnitBatchTime(), progress_on_evict=progress, stall_limit=100), k)


def _plain() -> Iterator[Case]:
    for seed in range(4):
        yield Case(requests(seed), System(48, TIMES["affine"]), seed)


def _unfinished() -> Iterator[Case]:
    for seed in range(4):
        table = requests(seed, 20, longest=3)
        if seed % 2 == 1:  # many to choose from
            table = table.replace(arrival_time=np.where(np.arange(20) < 12, 0.0, table.arrival_time))
        yield Case(table, System(48, UnitBatchTime(), horizon=8.0), seed)
    cached = System(48, UnitBatchTime(), horizon=8.0, prefix_cache="computed", prefix_block=2)
    yield Case(with_common_prefixes(table, 2), cached, seed)


def _clusters() -> Iterator[Case]:
    for k, case in enumerate(setting_cases(10, ("unit",), 48)):
        settings = {
            name: getattr(case.system, name) for name in ("first_token", "progress_on_evict", "requeue")
        }
        workers = [Worker(48, TIMES["affine"]), Worker(40, UnitBatchTime()), Worker(40, UnitBatchTime())]
        system = System.cluster(
            workers, transfer_latency=0.25, transfer_time=0.5 * (k % 2), stall_limit=400, **settings
        )
        yield Case(requests(k, 20), system, k)


FIRST = "one run"
"""The check that must pass before any other is useful."""


@_check(FIRST, _one)
def plays(make: Make, case: Case) -> None:
    """It compiles, if it has a kernel, and runs a workload without an error."""
    outcome(case, make())


@_check("description", _one)
def describes_itself(make: Make, case: Case) -> None:
    """Its description is complete, and its hyperparameters survive JSON and give the same policy."""
    policy = make()
    info = policy.info
    _demand(bool(info.name) and "\n" not in info.name, "info.name is empty")
    _demand(bool(info.summary) and "\n" not in info.summary, "info.summary is not one line")
    _demand(not info.needs & info.uses, f"info.needs and info.uses share {sorted(info.needs & info.uses)}")
    _demand(not info.algorithm or bool(info.paper), "info.algorithm without info.paper")
    given = policy.hyperparameters()
    _demand(
        json.loads(json.dumps(given)) == given,
        f"hyperparameters {given} change when written to and read from JSON",
    )
    if policy_defaults(type(policy)):
        again = type(policy)(**{**policy_defaults(type(policy)), **given})
        require_equal(
            outcome(case, make()),
            outcome(case, again),
            "as made, and made again from all its hyperparameters",
        )


@_check("every request", lambda: setting_cases(1, tuple(TIMES), 64, 3, exact=True, largest=30))
def serves_every_request(make: Make, case: Case) -> None:
    """It serves every request within the memory, under all settings of the engine."""
    result = simulate(case.system, case.table, make(), seed=case.seed, log=True)
    r, log = result.requests, result.log
    assert log is not None
    _demand(result.completed, "the run ends before every request has finished")
    _demand(bool((r["num_output_tokens"] == case.table.output_len).all()), "not all tokens were generated")
    _demand(bool((log["kv_tokens"] <= case.system.kv_capacity).all()), "KV exceeds the memory")
    times = (case.table.arrival_time, r["start_time"], r["first_token_time"], r["finish_time"])
    ordered = (times[0] <= times[1]) & (times[1] < times[2]) & (times[2] <= times[3])
    _demand(bool(ordered.all()), "arrival, start, first token and finish are out of order")
    evicts = result.policy.info.evicts
    _demand(bool(r["num_evictions"].any()) <= evicts, "it evicts; info.evicts is False")


@_check("compiled", lambda: setting_cases(4, tuple(TIMES), 32, n=12))
def decides_the_same_in_all_modes(make: Make, case: Case) -> None:
    """Its decisions are the same compiled, as plain Python, and called step by step."""
    first = outcome(case, make())
    require_equal(first, outcome(case, make(), compiled=False), "compiled, and as plain Python")
    require_equal(first, outcome(case, ThroughView(make())), "in the loop, and step by step")
    require_equal(
        first, outcome(case, ThroughView(make()), compiled=False), "in the loop, and step by step in Python"
    )


@_check("overflow", _short_prompts)
def handles_overflow_the_same_in_all_modes(make: Make, case: Case) -> None:
    """When many requests overflow the memory, its decisions are the same in the loop and step by step."""
    require_equal(outcome(case, make()), outcome(case, ThroughView(make())), "in the loop, and step by step")


@_check("powers", lambda: setting_cases(3, ("unit",), 32))
def declares_its_powers(make: Make, case: Case) -> None:
    """It chunks prompts, pauses and evicts only if it declares so."""
    policy = ThroughView(make())
    with suppress(LivelockError):
        simulate(case.system, case.table, policy, seed=case.seed)
    for power, used in policy.used.items():
        _demand(
            used <= getattr(policy.info, power), f"it {power.replace('_', ' ')}, but info.{power} is False"
        )


@_check("repeatable", _plain)
def repeats(make: Make, case: Case) -> None:
    """Equal seeds give equal bits: again, after another run, and pickled."""
    policy = make()
    first = outcome(case, policy)
    outcome(Case(requests(9), case.system, case.seed + 1), policy)
    require_equal(
        first,
        outcome(case, policy),
        "a run, and the same run after another one; reset() must clear all state",
    )
    require_equal(first, outcome(case, make()), "two equal policies")
    try:
        copy = pickle.loads(pickle.dumps(policy))
    except Exception as error:
        raise ContractError(f"it cannot be pickled, which runs in other processes need: {error}") from None
    require_equal(first, outcome(case, copy), "the policy, and its pickled copy")


def _same_schedule(one: SimulationResult, other: SimulationResult) -> bool:
    """Return whether the requests of two runs were served at the same times."""
    fields = ("start_time", "first_token_time", "finish_time", "num_evictions")
    return all(np.array_equal(one.requests[f], other.requests[f], equal_nan=True) for f in fields)


def depends_on_declared_columns(make: Make, case: Case) -> SimulationResult | str:
    """Require that columns of requests that a policy does not declare have no effect; return its outcome.

    Raises:
        ContractError: they have.
    """
    rng = np.random.default_rng(1)
    first = outcome(case, make())
    for need, columns in REVEALED.items():
        if need in needs_of(make()):
            continue
        shuffled = np.stack([getattr(case.table, column) for column in columns])[
            :, rng.permutation(len(case.table))
        ]
        for values in (dict(zip(columns, shuffled, strict=True)), dict.fromkeys(columns)):
            table = case.table.replace(**values)
            other = outcome(Case(table, case.system, case.seed), make())
            if isinstance(first, SimulationResult) and isinstance(other, SimulationResult):
                same = _same_schedule(first, other)
                _demand(
                    same,
                    f"its schedule depends on {' and '.join(columns)}; info.needs does not declare {need!r}",
                )
            else:
                require_equal(first, other, f"with and without {need}")
    return first


@_check("undeclared", _plain)
def uses_only_declared_columns(make: Make, case: Case) -> None:
    """Columns that it does not declare in info.needs or info.uses have no effect, filled or blank."""
    first = depends_on_declared_columns(make, case)
    result = first if isinstance(first, SimulationResult) else None
    for need, column, blank in HIDDEN if result is not None else ():
        assert result is not None
        if need not in needs_of(make()):
            _demand(bool((result.requests[column] == blank).all()), f"{column} is exposed without {need!r}")
            if blank > 0:  # inf = no target, which requests may also have, so a policy for both may read it
                continue
            informed = make()
            informed.info = replace(informed.info, needs=informed.info.needs | {need})  # type: ignore[misc]
            known = outcome(case, informed)
            same = isinstance(known, SimulationResult) and _same_schedule(result, known)
            _demand(same, f"it reads {column}, which is blank because info.needs does not declare {need!r}")


@_check("true lengths", _unfinished)
def does_not_know_the_future(make: Make, case: Case) -> None:
    """It does not depend on true lengths before requests finish, or on requests before they arrive."""
    rng, until = np.random.default_rng(case.seed), case.system.horizon
    times, rows = case.table.arrival_time.copy(), np.arange(len(case.table))
    late = times > until
    rows[late] = rng.permutation(rows[late])
    times[late] = np.sort(until + 1 + rng.integers(0, 20, int(late.sum())))
    tables = [case.table, case.table.as_arrived(rows, times)]
    if "true_length" not in needs_of(make()):  # new lengths are too long to finish before the horizon
        lengths = (10 + case.table.output_len, rng.integers(10, 30, len(case.table)))
        predicted = case.table.predicted_output_len
        tables = [
            table.replace(output_len=output, predicted_output_len=predicted)
            for table, output in zip(tables, lengths, strict=True)
        ]
    runs = [early_part(Case(table, case.system, case.seed), make(), until) for table in tables]
    _demand(
        all(np.array_equal(one, other) for one, other in zip(*runs, strict=True)),
        "its decisions change with true lengths or future arrivals",
    )


@_check("invariants", lambda: setting_cases(2, ("affine",), 40))
def keeps_the_invariants(make: Make, case: Case) -> None:
    """The engine's state and totals follow from its decisions at every boundary."""
    checker = InvariantChecker(make(), case.system, case.table)
    try:
        result = simulate(case.system, case.table, checker, seed=case.seed, log=True)
    except LivelockError:
        return
    checker.check(result)


def _shared_prefixes() -> Iterator[Case]:
    cases = (("computed", "recompute", 1, 1), ("radix", "lost", 2, 4), ("scheduled", "recompute", 2, 2))
    for k, (share, progress, block, unit) in enumerate(cases):
        system = System(
            40,
            TIMES["affine"],
            progress_on_evict=progress,
            stall_limit=400,
            block_size=block,
            prefix_cache=share,
            prefix_block=unit,
        )
        yield Case(with_common_prefixes(requests(k, 14), unit, k), system, k)


@_check("prefixes", _shared_prefixes)
def shares_prefixes(make: Make, case: Case) -> None:
    """Its decisions fit when requests share memory in a prefix cache, the same in the loop and step by step."""
    require_equal(outcome(case, make()), outcome(case, WatchedCache(make())), "in the loop, and step by step")


@_check("moves", _clusters)
def keeps_up_with_moves(make: Make, case: Case) -> None:
    """It handles a router that moves requests between workers, the same compiled and in plain Python."""
    runs = [outcome(case, make(), router=Shuffling(0.8), compiled=compiled) for compiled in (True, False)]
    require_equal(runs[0], runs[1], "compiled, and as plain Python, with requests moved between workers")
    if isinstance(runs[0], SimulationResult):
        _demand(runs[0].completed, "the run ends before every request has finished")
        for name in ("kv_tokens", "num_active", "num_waiting"):
            _demand(bool((runs[0].worker[name] == 0).all()), f"{name} is not 0 at the end")


class WatchedCache(Policy):
    """Calls another policy through ``schedule`` and checks the prefix cache at every decision."""

    def __init__(self, inner: Policy) -> None:
        """Wrap a policy."""
        self.inner, self.info = inner, inner.info  # type: ignore[misc]

    def reset(self, system: SystemInfo) -> None:
        """Reset the policy."""
        with calling(self.inner, "policy", "reset"):
            self.inner.reset(system)

    def schedule(self, view: SystemView) -> Decision:
        """Check the prefix cache and return the policy's decision."""
        check_cache(simulation_of(view))
        with calling(self.inner, "policy", "schedule"):
            return self.inner.schedule(view)


class ThroughView(Policy):
    """Calls another policy through ``schedule``, as for a user's policy; records which powers it uses."""

    def __init__(self, inner: Policy) -> None:
        """Wrap a policy."""
        self.inner, self.info = inner, inner.info  # type: ignore[misc]
        self.used = dict.fromkeys(("pauses", "chunks_prefill", "evicts"), False)

    def reset(self, system: SystemInfo) -> None:
        """Reset the policy."""
        with calling(self.inner, "policy", "reset"):
            self.inner.reset(system)

    def schedule(self, view: SystemView) -> Decision:
        """Return the policy's decision.

        Raises:
            ContractError: it gives tokens to a request that does not run.
        """
        with calling(self.inner, "policy", "schedule"):
            decision = self.inner.schedule(view)
        left: dict[int, int] = {}
        for rows in (view.waiting, view.active):
            left.update(zip(rows.request_id.tolist(), rows.num_prefill_left.tolist(), strict=True))
        staying = set(view.active.request_id.tolist()) - set(decision.evict)
        stray = sorted(decision.tokens.keys() - (staying | set(decision.admit)))
        _demand(not stray, f"tokens for requests {stray}, which do not run")
        self.used["pauses"] |= any(count == 0 for count in decision.tokens.values())
        self.used["chunks_prefill"] |= any(0 < count < left[i] for i, count in decision.tokens.items())
        self.used["evicts"] |= len(decision.evict) > 0
        return decision
