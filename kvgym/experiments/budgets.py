"""Token budgets of policies: a note on them, the choice of the best of a few, and whether a ranking depends on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kvgym.errors import ConfigError
from kvgym.experiments.resolving import as_given
from kvgym.policies.policy import Policy
from kvgym.simulator.system import System
from kvgym.utils.hyperparameters import all_hyperparameters, construct, given_hyperparameters

BUDGETS = (512, 1024, 2048, 4096, 8192)
"""Token budgets to choose from, in addition to a policy's own."""

FIRST_SEED, TRAINING_SEEDS = 1000, 3
"""The first seed on which budgets are chosen, as in tuning, and the most such seeds."""

ADVICE = "Rankings can depend on them: --tune-budgets also runs the best of a few."
"""What a note on budgets advises."""

Choice = Callable[[Policy, Sequence[Policy]], Policy]
"""Return the best of a policy as given and the same policy with other budgets, the first among equals."""


def training_seeds(count: int, replays: bool) -> range:
    """Return the seeds on which budgets are chosen for a comparison.

    Args:
        count: number of seeds of the comparison.
        replays: whether all seeds have the same requests, so that one is enough.
    """
    return range(FIRST_SEED, FIRST_SEED + (1 if replays else min(count, TRAINING_SEEDS)))


def is_open(policy: Policy) -> bool:
    """Return whether a policy has a token budget that was not given."""
    return bool(policy.info.budget) and policy.info.budget not in given_hyperparameters(as_given(policy))


def with_budgets(policy: Policy) -> list[Policy]:
    """Return a policy with each other budget that fits to its hyperparameters.

    Args:
        policy: the policy, with the values of the system.

    Returns:
        The policies; none if it has no token budget, or if it was given.
    """
    if not is_open(policy):
        return []
    name, given = policy.info.budget, given_hyperparameters(as_given(policy))
    found, own = [], all_hyperparameters(policy)[name]
    for value in BUDGETS:
        if value != own:
            try:
                found.append(construct(type(policy), {**given, name: value}, f"policy {policy.info.name!r}"))
            except ConfigError:  # it contradicts another hyperparameter
                continue
    return found


def add_best_budgets(policies: Sequence[Policy], choose: Choice) -> tuple[list[Policy], dict[int, int]]:
    """Return policies, each with an open token budget followed by the same policy with its best budget if that differs.

    Args:
        policies: the policies, with the values of the system.
        choose: chooses the best.

    Returns:
        The policies; and for each with an open budget, the place of the policy with its best budget by its own place.
    """
    chosen = {
        k: choose(policy, others) for k, policy in enumerate(policies) if (others := with_budgets(policy))
    }
    found: list[Policy] = []
    places: list[int] = []
    for k, policy in enumerate(policies):
        places.append(len(found))
        found.append(policy)
        if k in chosen and not any(_alike(chosen[k], other) for other in policies):
            found.append(chosen[k])
    best = {
        places[k]: next(at for at, other in enumerate(found) if _alike(policy, other))
        for k, policy in chosen.items()
    }
    return found, best


def _alike(policy: Policy, other: Policy) -> bool:
    """Return whether two policies are the same as given."""
    policy, other = as_given(policy), as_given(other)
    return type(policy) is type(other) and policy.content() == other.content()


def budget_note(policies: Sequence[Policy], system: System, advice: str = "") -> list[str]:
    """Return a note on the token budgets of policies, or none.

    Args:
        policies: the policies, with the values of the system.
        system: the system.
        advice: a sentence to append.
    """
    parts: dict[str, str] = {}
    for policy in policies:
        value = all_hyperparameters(policy).get(policy.info.budget)
        if not isinstance(value, int):
            continue
        device = system.all_workers[0].batch_time.device
        on = "hardware without a known GPU" if device is None else device.name
        chosen = policy.info.budget in dict(policy.info.auto) and is_open(policy)
        own = f" (its engine's default on {on})" if chosen else ""
        parts.setdefault(f"{policy.info.name} {value:,}", own)
    if not parts:
        return []
    listed = ", ".join(name + own for name, own in parts.items())
    return [" ".join(filter(None, (f"Tokens per iteration at most: {listed}.", advice)))]


def ranking_notes(
    labels: Sequence[str], best: Mapping[int, int], values: Mapping[str, float], lower: bool, by: str, seeds: range,
    replays: bool,
) -> list[str]:  # fmt: skip
    """Return which budgets were chosen, and whether the ranking of policies depends on them.

    Args:
        labels: labels of the policies of :func:`add_best_budgets`.
        best: see there.
        values: what is ranked, by label; NaN ranks last.
        lower: whether less is better.
        by: name of the ranked value.
        seeds: the seeds on which budgets were chosen.
        replays: whether they have the same requests as the comparison.
    """
    if not best:
        return ["--tune-budgets: no policy has a token budget that is not given."]
    added = set(best.values()) - best.keys()
    changes = {place: best.get(place, place) for place in range(len(labels)) if place not in added}
    sign = 1.0 if lower else -1.0
    plain = [labels[k].partition(":")[0] for k in changes]
    short = {k: name if plain.count(name) == 1 else labels[k] for k, name in zip(changes, plain, strict=True)}

    def order(places: Mapping[int, int]) -> list[str]:
        key = {k: sign * values[labels[place]] for k, place in places.items()}
        return [short[k] for k in sorted(key, key=lambda k: np.inf if np.isnan(key[k]) else key[k])]

    on = f"seed{'s' if len(seeds) > 1 else ''} {seeds[0]}" + (f"–{seeds[-1]}" if len(seeds) > 1 else "")
    on = "on the same requests, as a trace has no others" if replays else f"on {on}"
    named = ", ".join(labels[best[k]] if best[k] != k else f"{short[k]} as given" for k in best)
    first, second = order({k: k for k in changes}), order(changes)
    found = [f"Best token budgets of {BUDGETS[0]} to {BUDGETS[-1]:,}, chosen by {by} {on}: {named}."]
    if first == second:
        return [*found, f"The ranking by {by} is the same with the budgets as given and with the best ones."]
    return [
        *found,
        f"The ranking by {by} depends on the token budgets: {', '.join(first)} as given; {', '.join(second)} with the "
        "best ones.",
    ]
