"""Cache rules: how long the KV of a request that has finished is kept for the next turn of its conversation.

A rule gives every finished request a time to live, for which its units of the prefix cache stay pinned
(:mod:`kvgym.simulator.prefix.pins`). It is a setting of the system, ``cache_rule``, and works with every policy. Times
that are longer than any run make an order: what is kept for longer is dropped later. The memory below the GPU drops by
the same times (:func:`kvgym.simulator.tiers.store.end_use`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.utils.checks import check_one_of, whole_number
from kvgym.utils.specs import parse_spec

PREFIX_CACHES = ("off", "computed", "scheduled", "radix")

LRU, FIXED, RELOAD_COST, CLAIRVOYANT, ENDS = 0, 1, 2, 3, 4
"""Codes of the rules, PROBLEM.cache_rule."""

FOREVER = 2.0**27
"""Seconds, four years: longer than any run. In the memory below the GPU, inf is this, too."""


@dataclass(frozen=True)
class RuleOption:
    """A number that a rule takes.

    Attributes:
        name: its name in a spec.
        default: its value unless given.
        meaning: what it does, with its range and unit.
        valid: whether a value is valid.
    """

    name: str
    default: float
    meaning: str
    valid: Callable[[float], bool]


@dataclass(frozen=True)
class CacheRule:
    """A rule.

    Attributes:
        name: its name in a spec.
        summary: one line for listings.
        code: number by which compiled code knows it.
        options: its numbers, in the order of PROBLEM.rule_params.
        numbers: those numbers, if they cannot be given.
        sessions: whether it observes the turns of sessions.
        paper: authors and title, or "" if it comes from practice.
    """

    name: str
    summary: str
    code: int
    options: tuple[RuleOption, ...] = ()
    numbers: tuple[float, ...] = ()
    sessions: bool = False
    paper: str = ""


_RULES = (
    CacheRule("lru", "keep nothing longer: the KV that is unused for longest goes first", LRU),
    CacheRule(
        "fixed",
        "keep KV for a fixed time, one for turns that wait for a person and for requests without sessions, and one for "
        "turns that wait for a tool",
        FIXED,
        (
            RuleOption(
                "user", 0.0, "time to live before a person's turn, seconds ≥ 0, or inf", lambda x: x >= 0
            ),
            RuleOption("tool", 10.0, "time to live before a tool's, seconds ≥ 0, or inf", lambda x: x >= 0),
        ),
    ),
    CacheRule(
        "reload_cost",
        "keep KV as long as its expected use, by the gaps of the same kind (a person, a tool) so far, exceeds the use "
        "of the KV that it displaces",
        RELOAD_COST,
        (
            RuleOption(
                "first",
                10.0,
                "time to live before any gap of the kind, seconds ≥ 0",
                lambda x: x >= 0,
            ),
        ),
        sessions=True,
        paper="after CacheTTL (H. Li et al., Continuum, arXiv 2511.02230)",
    ),
    CacheRule(
        "ends",
        "drop the KV of sessions that are over first: knows the last turn of a session, as where clients mark it",
        ENDS,
        numbers=(math.inf, math.inf),
        sessions=True,
    ),
    CacheRule(
        "order",
        "drop the KV of sessions that are over first, then what waits for a person, then what waits for a tool",
        ENDS,
        numbers=(FOREVER / 2, math.inf),
        sessions=True,
    ),
    CacheRule(
        "clairvoyant",
        "drop KV first that no turn will use, then the KV of the turn that comes last: knows the true gaps, which no "
        "server does",
        CLAIRVOYANT,
        sessions=True,
    ),
)

CACHE_RULES = {rule.name: rule for rule in _RULES}
"""All rules by name; the first is the default."""


def parse_rule(spec: Any) -> tuple[CacheRule, tuple[float, ...]]:
    """Return a rule and the values of its options.

    Args:
        spec: its name, with options as in ``"fixed:tool=5"``.

    Raises:
        ConfigError: an unknown option, or a value out of range.
        UnknownNameError: there is no rule of this name.
    """
    if not isinstance(spec, str):
        raise ConfigError(f"cache_rule = {shown(spec)}; expected a name, as in 'fixed:tool=5'")
    name, given = parse_spec(spec, "cache rule")
    if name not in CACHE_RULES:
        raise UnknownNameError("cache rule", name, CACHE_RULES)
    rule = CACHE_RULES[name]
    unknown = sorted(given.keys() - {option.name for option in rule.options})
    if unknown:
        valid = ", ".join(option.name for option in rule.options) or "none"
        raise ConfigError(f"cache rule {name!r} has no option {shown(unknown[0])}; valid: {valid}")
    values = list(rule.numbers)
    for option in rule.options:
        value = given.get(option.name, option.default)
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not option.valid(number):  # also for NaN
            raise ConfigError(
                f"cache rule {name!r}: {option.name} = {shown(value)}; expected {option.meaning}"
            )
        values.append(number)
    return rule, tuple(values)


def rule_lines() -> dict[str, str]:
    """Return what each rule does, with its options and their defaults, by name."""
    return {
        rule.name: "; ".join(
            [
                rule.summary,
                *(f"{o.name}={o.default:g}: {o.meaning}" for o in rule.options),
                *filter(None, [rule.paper]),
            ]
        )
        for rule in CACHE_RULES.values()
    }


class CacheSettings(NamedTuple):
    """Settings of the prefix cache, as in :class:`~kvgym.simulator.system.System`."""

    prefix_cache: str
    prefix_block: int | None
    cache_rule: str
    cache_staleness: float


def check_cache_settings(given: CacheSettings, block_size: int, smallest: int) -> None:
    """Check the settings of a prefix cache.

    Args:
        given: the settings.
        block_size: tokens of a block.
        smallest: memory of the smallest worker, tokens of whole blocks.

    Raises:
        ConfigError: a value out of range, or one that needs a prefix cache, and there is none.
    """
    check_one_of(given.prefix_cache, "prefix_cache", PREFIX_CACHES)
    off = given.prefix_cache == "off"
    if given.prefix_block is not None:
        expected = f"a multiple of block_size = {block_size}, at most kv_capacity = {smallest}"
        whole_number(given.prefix_block, "prefix_block", expected, most=smallest)
        if given.prefix_block % block_size:
            raise ConfigError(f"prefix_block = {given.prefix_block}; expected {expected}")
    needing = {"prefix_block": given.prefix_block is not None}
    needing |= {"cache_rule": parse_rule(given.cache_rule)[0].code != LRU}
    needing |= {"cache_staleness": given.cache_staleness != 0}
    for name in (name for name, used in needing.items() if used and off):
        raise ConfigError(
            f"{name} = {shown(getattr(given, name))} without a prefix cache; set prefix_cache: computed as well"
        )
