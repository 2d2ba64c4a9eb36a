"""Who is judged: policies, on numbers of workers, behind routers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvgym.errors import ConfigError, KVGymError
from kvgym.experiments.comparison import label_of
from kvgym.experiments.runs import Player
from kvgym.experiments.scenario import Scenario
from kvgym.policy import POLICIES, REFERENCE_ONLY, Policy, make_policy
from kvgym.routing import Router, make_router
from kvgym.runner import check_needs, prepare_run

ALL = "all"
"""Instead of policies: every registered one that can run with what the requests tell."""


@dataclass(frozen=True)
class Contender:
    """A policy on some workers.

    Attributes:
        label: what results call it, e.g. ``"fcfs via round_robin ×4"``.
        policy: the policy.
        router: who spreads the requests; None for one worker.
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
        """The label of the router, "" where there is none."""
        return "" if self.router is None else label_of(self.router)


def find_policies(
    policies: Sequence[str | Policy] | None, scenario: Scenario, seed: int
) -> tuple[list[Policy], tuple[str, ...]]:
    """Return the policies to judge, and why others are left out.

    Args:
        policies: policies or specs; :data:`ALL` among them stands for every registered one that is not named and can
            run here; None = those of the scenario.
        scenario: where they are to run, at a rate that is low enough for all that can run at some rate.
        seed: whose requests say what policies may know.

    Raises:
        ConfigError: there is none, one is named twice, or a named one cannot run.
        KVGymError: the workload cannot be sampled or served.
    """
    named = list(scenario.policies if policies is None else policies)
    made = [make_policy(p) for p in named if p != ALL]
    labels = [label_of(policy) for policy in made]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"policy {label} is listed twice; results are told apart by policy")
    system, table = Player().requests(scenario, seed)
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
                notes.append(f"{name} is left out: it is clairvoyant; name it to see what it holds")
                continue
            try:
                policy = make_policy(name)
                prepare(policy)
            except KVGymError as error:
                notes.append(f"{name} is left out: {error}")
            else:
                made.append(policy)
    if not made:
        raise ConfigError("no policies to run; name at least one")
    return made, tuple(notes)


def pair(
    policies: Iterable[Policy],
    routers: Sequence[str | Router] | None,
    workers: Sequence[int] | None,
    scenario: Scenario,
) -> list[Contender]:
    """Return every policy on every number of workers, behind every router.

    Args:
        policies: the policies.
        routers: routers or specs for more than one worker; None = the scenario's.
        workers: numbers of equal workers; None = as in the scenario.
        scenario: the scenario.

    Raises:
        ConfigError: a number is wrong or given twice, or there are routers and nothing to route.
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
        raise ConfigError("routers go with a cluster: several workers, and at least one router")
    chosen = [make_router(router) for router in ((scenario.router,) if routers is None else routers)]
    found: list[Contender] = []
    for policy in policies:
        for count, routed in zip(counts, cluster, strict=True):
            for router in chosen if routed else [None]:
                label = label_of(policy)
                if router is not None and len(chosen) > 1:
                    label += f" via {label_of(router)}"
                if len(counts) > 1:
                    label += f" ×{count}"
                found.append(Contender(label, policy, router, count))
    return found
