"""Hyperparameters of policies and routers: recorded by constructors, described for messages, applied by name."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kvgym.errors import ConfigError, shown
from kvgym.utils.specs import parse_spec
from kvgym.utils.user_code import calling

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., None])


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


def with_hyperparameters(hyperparameters: Mapping[str, tuple[Any, str]]) -> Callable[[C], C]:
    """Return a decorator of constructors: their ``**keywords`` are these hyperparameters.

    Signature and docstring list them before the constructor's own, as if they were written there.

    Args:
        hyperparameters: default of each and what the docstring says of it, by name.
    """

    def decorated(constructor: C) -> C:
        signature = inspect.signature(constructor)
        first, *own = (p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD)
        added = [inspect.Parameter(k, first.KEYWORD_ONLY, default=v) for k, (v, _) in hyperparameters.items()]
        lines = "".join(f"    {k}: {said.rstrip('.')}.\n" for k, (_, said) in hyperparameters.items())
        constructor.__doc__ = (inspect.getdoc(constructor) or "").replace("Args:\n", f"Args:\n{lines}", 1)
        constructor.__signature__ = signature.replace(parameters=[first, *added, *own])  # type: ignore
        return constructor

    return decorated


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
