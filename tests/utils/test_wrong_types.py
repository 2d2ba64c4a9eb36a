"""Public functions called with a wrong type for each argument return a result or raise an error of kvgym."""

from __future__ import annotations

import inspect
import math
import traceback

import pytest

from helpers.public_calls import ELSEWHERE, PUBLIC, RUNS, parameters_of
from kvgym.errors import ConfigError, KVGymError
from kvgym.utils.arguments import explained, explained_class

WRONG = (None, "x", 5, [1], object(), math.nan)


def outcome(call):
    """Return what is wrong with the exception of a call, "" if nothing is."""
    try:
        made = call()
        if inspect.isgenerator(made):
            next(made, None)
    except KVGymError:
        return ""
    except TypeError as error:
        # Arguments that are too many or missing are Python's to refuse, at the call itself.
        own = [
            f for f in traceback.extract_tb(error.__traceback__) if not f.filename.endswith("arguments.py")
        ]
        return "" if len(own) <= 2 else f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PUBLIC)
def test_wrong_types(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = PUBLIC[name]
    named, needed = parameters_of(name)
    tried = [p.name for p in named if p.name in needed or name.partition(":")[2] not in RUNS]
    faults = []
    for argument in tried:
        for wrong in WRONG if argument not in ELSEWHERE else ():
            fault = outcome(lambda given={**needed, argument: wrong}: function(**given))
            if fault:
                faults.append(f"{argument}={wrong!r}: {fault[:200]}")
    assert not faults, f"{len(faults)} of {len(tried) * len(WRONG)}: {faults[:3]}"


class Missing:
    """A class that annotations name only for type checkers."""


@explained
def halved(number: int, more: list[int] | None = None, other: Missing | None = None, **rest: str) -> float:
    return (number + sum(more or []) + (0 if other is None else other.value)) / 2  # type: ignore[attr-defined]


def test_the_first_wrong_argument_is_named():
    assert halved(3, [1]) == 2
    for arguments, words in (
        (("x",), r"halved: number = 'x'; expected int \(TypeError: "),
        ((1, ["a"]), r"halved: more = \['a'\]; expected list\[int\] \| None"),
        ((1, None, 5), r"halved: other = 5; expected Missing \| None"),
        ((1, 5), r"halved: more = 5"),
    ):
        with pytest.raises(ConfigError, match=words):
            halved(*arguments)
    for arguments in ((), (1, [], None, 5)):
        with pytest.raises(TypeError, match="argument"):
            halved(*arguments)


def test_errors_not_caused_by_an_argument_stay():
    @explained
    def fails(number: int = 0, whatever: object = None) -> None:
        raise ZeroDivisionError("own")

    @explained_class
    class Held:
        def __init__(self, size: float) -> None:
            self.size = 1 / size

    with pytest.raises(ZeroDivisionError, match="own"):
        fails(3, "x")
    with pytest.raises(ZeroDivisionError):
        Held(0.0)
    with pytest.raises(ConfigError, match=r"Held: size = '0'; expected float"):
        Held("0")
