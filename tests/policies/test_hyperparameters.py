"""Hyperparameters that are declared as attributes of a class."""

from __future__ import annotations

import inspect
import math
import pickle
from typing import Any

import pytest

from kvgym.errors import ConfigError
from kvgym.policies.hyperparameters import (
    AUTO,
    choice,
    flag,
    fraction,
    hyperparameter,
    parsed,
    positive,
    weight,
    weights_of,
    whole,
)
from kvgym.policies.policy import Decision, Policy, PolicyInfo, policy_defaults
from kvgym.utils.hyperparameters import declared, meanings_of


def doubled(name: str, value: Any) -> Any:
    return 2 * value


class Declared(Policy):
    """One hyperparameter of each kind."""

    info = PolicyInfo(name="declared", summary="for tests")

    budget: int = whole(8, search=(4, 8))
    """tokens of an iteration,
    at least 1."""
    limit: int | str | None = whole(AUTO, least=2, expected="a whole number ≥ 2, or auto")
    spare: float = fraction(0.1)
    """fraction that stays free."""
    rate: float = positive(1.0)
    strict: bool = flag(False)
    order: str = choice("fcfs", ("fcfs", "spf"))
    share: float = hyperparameter(0.5, lambda value: 0 <= value <= 1, "a share", kept=float)
    twice: int = parsed(3, doubled)
    bias: float = weight(0.0, 0.5, -1.0, 1.0, "added to the score")

    def __post_init__(self) -> None:
        if self.strict and self.budget > 8:
            raise ConfigError("strict needs a budget of at most 8")

    def schedule(self, view: Any) -> Decision:
        return Decision()


class Further(Declared):
    budget: int = whole(16)
    extra: int = whole(1, least=0)
    order = "spf"


class Ordinary(Policy):
    info = PolicyInfo(name="ordinary", summary="for tests")

    def __init__(self, *, spare: float = 0.1) -> None:
        """Set the margin.

        Args:
            spare: what stays free.
        """
        self.spare = spare

    def schedule(self, view: Any) -> Decision:
        return Decision()


def test_a_declaration_defines_the_constructor():
    defaults = policy_defaults(Declared)
    assert list(defaults) == [
        "budget", "limit", "spare", "rate", "strict", "order", "share", "twice", "bias",
    ]  # fmt: skip
    assert defaults["budget"] == 8
    assert inspect.signature(Declared).parameters["budget"].annotation == "int"
    made = Declared(budget=4, limit=3, share=1)
    assert (made.budget, made.limit, made.spare, made.twice) == (4, 3, 0.1, 6)
    assert isinstance(made.share, float)
    assert made.hyperparameters() == {"budget": 4, "limit": 3, "share": 1}
    assert repr(made) == "declared(budget=4, limit=3, share=1)"
    assert vars(pickle.loads(pickle.dumps(made))) == vars(made)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 0}, "budget = 0; expected a whole number ≥ 1"),
        ({"budget": True}, "budget = True; expected a whole number ≥ 1"),
        ({"budget": None}, "budget = None; expected a whole number ≥ 1"),
        ({"limit": "all"}, "limit = 'all'; expected a whole number ≥ 2, or auto"),
        ({"spare": 1}, r"spare = 1; expected a fraction in \[0, 1\)"),
        ({"rate": math.inf}, "rate = inf; expected a number > 0"),
        ({"strict": 1}, "strict = 1; expected True or False"),
        ({"order": "lifo"}, "order = 'lifo'; expected fcfs or spf"),
        ({"share": 2}, "share = 2; expected a share"),
        ({"share": "x"}, "policy 'declared': a value of the wrong type in share='x'"),
        ({"bias": 1.5}, "bias = 1.5; expected a number from -1 to 1"),
        ({"strict": True, "budget": 9}, "strict needs a budget of at most 8"),
        ({"size": 1}, "policy 'declared': got an unexpected keyword argument 'size'; valid: budget=8, "),
    ],
)
def test_wrong_values_are_refused(given: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        Declared(**given)


def test_a_subclass_adds_moves_and_fixes_hyperparameters():
    assert list(policy_defaults(Further))[-3:] == ["bias", "budget", "extra"]
    assert "order" not in policy_defaults(Further)
    made = Further(extra=2)
    assert (made.budget, made.extra, made.order) == (16, 2, "spf")
    with pytest.raises(ConfigError, match="unexpected keyword argument 'order'"):
        Further(order="fcfs")


def test_a_constructor_of_its_own_declares_nothing():
    assert policy_defaults(Ordinary) == {"spare": 0.1}
    assert declared(Ordinary) == {}
    assert Ordinary(spare=0.2).hyperparameters() == {"spare": 0.2}


def test_texts_search_values_and_weights():
    meanings = meanings_of(Declared)
    assert meanings["budget"] == "tokens of an iteration, at least 1."
    assert (meanings["bias"], meanings["rate"]) == ("added to the score.", "")
    assert meanings_of(Further)["spare"] == meanings["spare"] == "fraction that stays free."
    assert meanings_of(Ordinary) == {"spare": "what stays free."}
    assert declared(Declared)["budget"].search == (4, 8)
    (only,) = Declared.weights()
    assert (only,) == weights_of(Declared)
    assert (only.name, only.default, only.step, only.low, only.high) == ("bias", 0.0, 0.5, -1.0, 1.0)
