"""Entries of a capacity search: policies on numbers of workers, behind routers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvgym.errors import ConfigError, KVGymError
from kvgym.experiments.comparison import label_of
from kvgym.experiments.marks import exact_notes
from kvgym.experiments.resolving import resolve_policy
from kvgym.experiments.runs import Player
from kvgym.experiments.scenario import Scenario
from kvgym.policies.policy import POLICIES, REFERENCE_ONLY, Policy, make_policy
from kvgym.policies.routing import Router, make_router
from kvgym.policies.runner import check_needs, prepare_run

ALL = "all"
"""Stands for every registered policy that can run with the requests' predictions."""


@dataclass(frozen=True)
class Entry:
    """A policy on a number of workers.

    Attributes:
        label: its name in results, e.g. ``"fcfs via round_robin ×4"``.
        policy: the policy.
        router: the router; None for one worker.
        workers: equal workers; None = as in the scenario.
    """

    label: str
    policy: Policy
    router: Router | None
    workers: int | None

    @property
    def policy_label(self) -> str:
        """The label of the policy alone."""
        return label_of(self.policy)

    @property
    def router_label(self) -> str:
        """The label of the router, "" if there is none."""
        return "" if self.router is None else label_of(self.router)


def find_policies(
    policies: Sequence[str | Policy] | None, scenario: Scenario, seed: int
) -> tuple[list[Policy], tuple[str, ...]]:
    """Return the policies to run, and notes on exact lengths and on policies that are excluded.

    Args:
        policies: policies or specs; :data:`ALL` adds every other registered policy that can run here; None = those of
            the scenario.
        scenario: the scenario, at a rate low enough for every policy that can run at some rate.
        seed: the requests of this seed show which predictions are available.

    Raises:
        ConfigError: there are no policies, one is named twice, or a named one cannot run.
        KVGymError: the workload cannot be sampled or served.
    """
    named = list(scenario.policies if policies is None else policies)
    system, table = Player().requests(scenario, seed)
    made = [resolve_policy(make_policy(p), system, table) for p in named if p != ALL]
    labels = [label_of(policy) for policy in made]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"policy {label} is listed twice; results need different labels")
    system.check_fits(table)
    first = table.select(slice(0, 100), "")

    def prepare(policy: Policy) -> None:
        check_needs(policy, first)
        prepare_run(system, first, policy, scenario.make_router(), seed)

    for policy in made:
        prepare(policy)
    notes = [f"{label_of(policy)} is {REFERENCE_ONLY}." for policy in made if policy.info.clairvoyant]
    if ALL in named:
        for name in sorted(POLICIES):
            if name in {policy.info.name for policy in made}:
                continue
            if POLICIES[name].info.clairvoyant:
                notes.append(f"{name} is excluded, as it is clairvoyant; name it to include it")
                continue
            try:
                policy = resolve_policy(make_policy(name), system, table)
                prepare(policy)
            except KVGymError as error:
                notes.append(f"{name} is excluded: {error}")
            else:
                made.append(policy)
    if not made:
        raise ConfigError("no policies to run; name at least one")
    return made, (*exact_notes({label_of(policy): policy for policy in made}, table), *notes)


def pair(
    policies: Iterable[Policy],
    routers: Sequence[str | Router] | None,
    workers: Sequence[int] | None,
    scenario: Scenario,
) -> list[Entry]:
    """Return an entry for every combination of policy, number of workers and router.

    Args:
        policies: the policies.
        routers: routers or specs for more than one worker; None = the scenario's.
        workers: numbers of equal workers; None = as in the scenario.
        scenario: the scenario.

    Raises:
        ConfigError: a number is wrong or given twice, or routers are given without a cluster.
    """
    counts: list[int | None] = [None] if workers is None else list(workers)
    for count in counts:
        if count is not None and (isinstance(count, bool) or count < 1):
            raise ConfigError(f"workers {count}: expected whole numbers ≥ 1")
        if counts.count(count) > 1:
            raise ConfigError(f"workers {count} is given twice")
    if not counts:
        raise ConfigError("no numbers of workers; give at least one")
    cluster = [(scenario.workers if count is None else count) != 1 for count in counts]
    if routers is not None and (not routers or not any(cluster)):
        raise ConfigError("routers need a cluster: give several workers, and at least one router")
    chosen = [make_router(router) for router in ((scenario.router,) if routers is None else routers)]
    found: list[Entry] = []
    for policy in policies:
        for count, routed in zip(counts, cluster, strict=True):
            for router in chosen if routed else [None]:
                label = label_of(policy)
                if router is not None and len(chosen) > 1:
                    label += f" via {label_of(router)}"
                if len(counts) > 1:
                    label += f" ×{count}"
                found.append(Entry(label, policy, router, count))
    return found
