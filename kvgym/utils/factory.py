"""Base class and factory of policies and routers: recorded hyperparameters, instances from specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from kvgym.errors import ConfigError, shown
from kvgym.utils.arguments import check_fields
from kvgym.utils.checks import check_name, check_text
from kvgym.utils.hyperparameters import (
    Hyperparameter,
    construct,
    constructor_of,
    info_of,
    policy_defaults,
    recording,
)
from kvgym.utils.registry import Registry, Sources
from kvgym.utils.specs import parse_spec

T = TypeVar("T")
C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class EntryInfo:
    """Description of a router or an autoscaler; policies have more to say.

    Attributes:
        name: registry id, snake_case.
        summary: one line for listings.
        paper: authors and title, or "" if it comes from practice.
    """

    what: ClassVar[str]
    """What it describes, for messages."""

    name: str
    summary: str
    paper: str = ""

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ConfigError: one is not a text.
        """
        check_name(self.name, self.what)
        check_fields(self)


class Configurable:
    """Base class with constructors that record their arguments, for labels and saved configurations."""

    _kind: ClassVar[str]
    """``"policy"`` or ``"router"``, for messages."""

    info: ClassVar[Any]
    _hyperparameters: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Define the constructor if the class declares hyperparameters, and make it record its arguments."""
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__init__")
        if own is None and any(isinstance(value, Hyperparameter) for value in vars(cls).values()):
            own = constructor_of(cls)
        if own is not None:
            cls.__init__ = recording(own, cls._kind)  # type: ignore

    def __post_init__(self) -> None:
        """Check the declared hyperparameters against each other, after each has been checked and set."""

    def hyperparameters(self) -> dict[str, Any]:
        """Return the constructor arguments of this instance as plain values."""
        return dict(getattr(self, "_hyperparameters", {}))

    def content(self) -> dict[str, Any]:
        """Return all hyperparameters as plain values; equal for equal instances of a class."""
        return {**policy_defaults(type(self)), **self.hyperparameters()}

    def __repr__(self) -> str:
        """Return e.g. ``alpha_greedy(alpha=0.3)``."""
        inside = ", ".join(f"{k}={v!r}" for k, v in self.hyperparameters().items())
        return f"{self.info.name}({inside})"


class Factory(Generic[T]):
    """Makes policies or routers from specs.

    Args:
        base: their base class.
        info: class of their ``info``.
        form: form of a spec, for messages.
        load: called once before the first look-up, to import the modules that register.
    """

    def __init__(self, base: type[Any], info: type[Any], form: str, load: Callable[[], object]) -> None:
        self._base, self._info, self._form = base, info, form
        self.sources: Sources[T] = Sources(["kvgym.agents.library"])
        self.registry: Registry[type[T]] = Registry(base._kind, load, self.sources)

    def register(self, cls: C) -> C:
        """Register a class under ``cls.info.name``.

        Raises:
            ConfigError: it is no class derived from the base class, or its name is taken.
        """
        name = info_of(cls, self._info).name
        if not isinstance(cls, type) or not issubclass(cls, self._base):
            base = f"kvgym.{self._base.__name__}"
            raise ConfigError(
                f"{self._base._kind} {shown(name)}: {shown(cls)} is not a class derived from {base}"
            )
        self.registry.add(name, cls)
        return cls

    def make(self, spec: str | T, hyperparameters: Mapping[str, Any]) -> T:
        """Return an instance unchanged, or make one from a spec; hyperparameters override those in the spec.

        Raises:
            UnknownNameError: the name is not registered, and no other source knows the spec.
            ConfigError: an unknown hyperparameter or a value out of range.
        """
        if isinstance(spec, self._base):
            info_of(spec, self._info)
            if hyperparameters:
                raise ConfigError(f"{shown(spec)} is made already; give hyperparameters with a name")
            instance: T = spec
            return instance
        kind = self._base._kind
        text = check_text(spec, kind, self._form)
        made = None if text in self.registry else self.sources.find(text)
        if made is not None:
            return made
        name, given = parse_spec(text, kind)
        return construct(self.registry[name], {**given, **hyperparameters}, f"{kind} {name!r}")
