"""Hyperparameters of policies and routers: declared, recorded by constructors, described for messages, applied."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kvgym.errors import ConfigError, shown
from kvgym.utils.docstrings import attribute_texts, meanings
from kvgym.utils.specs import parse_spec
from kvgym.utils.user_code import calling

T = TypeVar("T")


def recording(original: Callable[..., None], kind: str = "policy") -> Callable[..., None]:
    """Wrap a constructor so that it records its arguments and explains wrong ones; ``kind`` is for messages."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, /, *arguments: Any, **hyperparameters: Any) -> None:  # noqa: N807
        cls = type(self)
        try:
            values = dict(list(signature.bind(self, *arguments, **hyperparameters).arguments.items())[1:])
        except TypeError as error:
            raise ConfigError(
                f"{kind} {shown(cls.info.name)}: {error}; valid: {describe_arguments(cls)}"
            ) from error
        try:
            for parameter in signature.parameters.values():
                if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                    values |= values.pop(parameter.name, {})
            if not hasattr(self, "_hyperparameters"):
                self._hyperparameters = values
            original(self, *arguments, **hyperparameters)
        except (TypeError, OverflowError) as error:
            if not values:
                raise
            given = ", ".join(f"{k}={v!r}" for k, v in values.items())
            raise ConfigError(
                f"{kind} {shown(cls.info.name)}: a value of the wrong type in {given} ({error}); defaults: "
                f"{describe_arguments(cls)}"
            ) from error

    return __init__


@dataclass(frozen=True)
class Hyperparameter:
    """The declaration of a hyperparameter: an attribute of the class of a policy or router.

    Attributes:
        default: its default.
        kept: returns the value that instances have, from name and given value; raises ConfigError for a wrong one.
        search: the values that ``kvgym tune`` tries.
        learned: for a real number that can be learned: the size of a typical change, the least and the greatest value.
        meaning: what it is, with unit and range; "" = the text below the attribute, see :func:`meanings_of`.
    """

    default: Any
    kept: Callable[[str, Any], Any]
    search: tuple[Any, ...] = ()
    learned: tuple[float, float, float] | None = None
    meaning: str = ""


def declared(cls: type[Any]) -> dict[str, Hyperparameter]:
    """Return the hyperparameters that a class and its bases declare, by name.

    Those of bases come first. One that a subclass declares again has its place there, and one for which it has a plain
    value is fixed.
    """
    found: dict[str, Hyperparameter] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            found.pop(name, None)
            if isinstance(value, Hyperparameter):
                found[name] = value
    return found


def constructor_of(cls: type[Any]) -> Callable[..., None]:
    """Return the constructor that the declared hyperparameters of a class define.

    It checks and sets each of them, then calls ``__post_init__``.
    """
    hyperparameters = declared(cls)
    annotations = {
        k: v for base in reversed(cls.__mro__) for k, v in vars(base).get("__annotations__", {}).items()
    }

    def __init__(self: Any, /, **given: Any) -> None:  # noqa: N807
        for name, declaration in hyperparameters.items():
            setattr(self, name, declaration.kept(name, given.get(name, declaration.default)))
        self.__post_init__()

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, keyword, default=x.default, annotation=annotations.get(name, "Any"))
        for name, x in hyperparameters.items()
    ]
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    __init__.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
    __init__.__doc__ = "Set the hyperparameters that the class and its bases declare."
    __init__.__module__, __init__.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
    return __init__


def meanings_of(cls: type[Any]) -> dict[str, str]:
    """Return what each hyperparameter of a policy or router is, by name, on one line.

    It is the text below the declaration, or the text of an ordinary constructor's docstring. Without the source of a
    class nothing is known of the declarations in it.
    """
    found = meanings(cls.__init__)
    for base in reversed(cls.__mro__):
        own = {name: x for name, x in vars(base).items() if isinstance(x, Hyperparameter)}
        if own:
            texts = attribute_texts(base)
            found |= {
                name: f"{x.meaning}." if x.meaning else texts.get(name) or found.get(name, "")
                for name, x in own.items()
            }
    return found


def policy_defaults(cls: type[Any]) -> dict[str, Any]:
    """Return the hyperparameters of a policy with their defaults.

    Raises:
        ConfigError: ``cls`` is no class.
    """
    if not isinstance(cls, type):
        raise ConfigError(f"cls = {shown(cls)}; expected a class")
    return dict(_defaults(cls))  # type: ignore[arg-type]  # every class is hashable


@functools.lru_cache(256)  # reading a signature takes as long as a run of a hundred requests
def _defaults(cls: type[Any]) -> dict[str, Any]:
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return {
        p.name: p.default for p in parameters if p.kind in kinds and p.default is not inspect.Parameter.empty
    }


def info_of(made: Any, kind: type[T]) -> T:
    """Return the ``info`` of a policy or router, or of its class.

    Raises:
        ConfigError: it is missing or of another kind.
    """
    info = getattr(made, "info", None)
    if not isinstance(info, kind):
        name = getattr(made, "__qualname__", type(made).__qualname__)
        raise ConfigError(f"{name}.info = {shown(info)}; expected a {kind.__name__}")
    return info


def given_hyperparameters(made: Any) -> dict[str, Any]:
    """Return the hyperparameters passed to the constructor of a policy or router.

    Raises:
        UserCodeError: ``hyperparameters()`` of a user's class raised an exception.
        ConfigError: it did not return a mapping with string keys.
    """
    with calling(made, "policy or router", "hyperparameters"):
        given = made.hyperparameters()
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(
            f"hyperparameters() of {type(made).__name__} returned {shown(given)}; expected a dict"
        )
    return dict(given)


def all_hyperparameters(made: Any) -> dict[str, Any]:
    """Return the hyperparameters of a policy or router, defaults included; errors of :func:`given_hyperparameters`."""
    return {**policy_defaults(type(made)), **given_hyperparameters(made)}


def describe_arguments(cls: type[Any]) -> str:
    """Return the hyperparameters of a policy with their defaults, for messages."""
    return ", ".join(f"{k}={v!r}" for k, v in policy_defaults(cls).items()) or "none"


def construct(cls: Callable[..., T], hyperparameters: Mapping[str, Any], what: str) -> T:
    """Construct an object of a class that may not define a constructor.

    Raises:
        ConfigError: an unknown hyperparameter or a value out of range.
    """
    if hyperparameters and getattr(cls, "__init__", None) is object.__init__:
        raise ConfigError(f"{what} has no hyperparameters; got {', '.join(hyperparameters)}")
    with calling(cls, what.partition(" ")[0], "its constructor"):
        return cls(**hyperparameters)


def maker_of(spec: str, what: str, bases: tuple[type[Any], ...]) -> Callable[[], Any]:
    """Return a function that makes a new object of a user's class at every call.

    Args:
        spec: ``"module:Class"``, with hyperparameters as in ``"module:Class,spare=0.1"``.
        what: what the object is, for messages.
        bases: public classes of kvgym, of which the class is derived from one.

    Raises:
        ConfigError: the module cannot be imported, or has no such class.
    """
    module, _, rest = spec.partition(":")
    attribute, _, options = rest.partition(",")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} {shown(spec)}: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, bases)):
        expected = " or ".join(f"kvgym.{base.__name__}" for base in bases)
        raise ConfigError(
            f"{what} {shown(spec)}: {attribute} of {module} is not a class derived from {expected}"
        )
    _, hyperparameters = parse_spec(f"{attribute}:{options}", what)
    return lambda: construct(found, hyperparameters, f"{what} {spec!r}")
