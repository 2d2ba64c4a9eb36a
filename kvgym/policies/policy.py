"""The interface of policies: what a scheduler may observe, and what it decides.

A policy has one of two forms. A plain :class:`Policy` has ``schedule(view) -> Decision`` and may use any Python. A
:class:`CompiledPolicy` has a compiled kernel and runs inside the compiled loop; its ``schedule`` runs the same kernel
as plain Python and gives the same schedule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import Kernel
from kvgym.compiling.named import row_of
from kvgym.errors import ConfigError, shown
from kvgym.policies.hyperparameters import Declaring, dataclass_transform
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.simulator.decision import Decision as Decision
from kvgym.simulator.policy_interface import MemoryRoom, PolicyMemory, policy_memory
from kvgym.simulator.view import SystemView
from kvgym.utils.arguments import check_fields, explained
from kvgym.utils.checks import check_name
from kvgym.utils.factory import Factory
from kvgym.utils.hyperparameters import policy_defaults
from kvgym.utils.registry import import_package, load_plugins
from kvgym.workloads.classes import ClassStatistics

__all__ = [
    "NEEDS",
    "POLICIES",
    "CompiledPolicy",
    "Decision",
    "Policy",
    "PolicyInfo",
    "SystemInfo",
    "make_policy",
    "policy_defaults",
    "register_policy",
    "register_policy_source",
]

NEEDS = (
    "predicted_length",
    "length_interval",
    "length_distribution",
    "renewed_length",
    "true_length",
    "class",
    "class_rates",
    "client",
    "features",
    "slo",
    "session",
)
"""Information that a policy may declare it needs; everything else is hidden from it."""

CLAIRVOYANT = frozenset({"true_length"})
"""Information no real scheduler has; a policy that needs it is clairvoyant."""

REFERENCE_ONLY = "clairvoyant: knows the true lengths; a reference, not a deployable scheduler"
"""The note on clairvoyant policies wherever results are compared."""


@dataclass(frozen=True)
class PolicyInfo:
    """Description of a policy and the information it needs.

    Attributes:
        name: registry id, snake_case.
        summary: one line for listings.
        paper: authors and title, or "" if it comes from practice.
        algorithm: algorithm or section number in the paper.
        needs: subset of :data:`NEEDS`.
        uses: subset of :data:`NEEDS` that it uses if the requests carry it, but does not need.
        chunks_prefill: whether prompts may be processed in several iterations.
        pauses: whether active requests may be left out of an iteration.
        evicts: whether active requests may be evicted.
        rules: pairs of a setting of :class:`~kvgym.simulator.system.System` and its value in the engine that
            the policy comes from; runs with other values are marked.
        auto: pairs of a hyperparameter that may be ``AUTO``, and the value that it then usually has. Labels of
            results name it only where it has another value.
        budget: the hyperparameter that limits the tokens of an iteration, "" for none.
        drafts: whether it counts the drafts of decodes in memory and tokens, so that the worker may speculate.
        loads: whether a request that it starts may stay in the queue, because it loads its KV first.
        livelock_advice: what to do if a run makes no progress, a sentence; "" = the general advice.
    """

    name: str
    summary: str
    paper: str = ""
    algorithm: str = ""
    needs: frozenset[str] = frozenset()
    uses: frozenset[str] = frozenset()
    chunks_prefill: bool = False
    pauses: bool = False
    evicts: bool = False
    rules: tuple[tuple[str, str], ...] = ()
    auto: tuple[tuple[str, Any], ...] = ()
    budget: str = ""
    drafts: bool = False
    loads: bool = False
    livelock_advice: str = ""

    @property
    def origin(self) -> str:
        """The source: the paper, with its algorithm or section if named, or practice."""
        return ", ".join(filter(None, (self.paper or "practice", self.algorithm)))

    @property
    def clairvoyant(self) -> bool:
        """Whether it observes information no real scheduler has; it is then a reference, never ranked best.

        True if and only if it declares true lengths.
        """
        return bool(CLAIRVOYANT & (self.needs | self.uses))

    def __post_init__(self) -> None:
        """Check the name, and convert ``needs`` and ``uses`` to sets.

        Raises:
            ConfigError: the name is not a string, or a need is unknown.
        """
        check_name(self.name, "policy")
        for what in ("needs", "uses"):
            given = getattr(self, what)
            try:
                found = None if isinstance(given, str) else frozenset(given)
            except TypeError:
                found = None
            if found is None or not all(isinstance(need, str) for need in found):
                raise ConfigError(
                    f"policy {shown(self.name)}: {what} = {shown(given)}; expected a set of {', '.join(NEEDS)}"
                )
            object.__setattr__(self, what, found)
        unknown = sorted({*self.needs, *self.uses} - set(NEEDS))
        if unknown:
            raise ConfigError(
                f"policy {shown(self.name)} needs {unknown}, which is not one of {', '.join(NEEDS)}"
            )
        check_fields(self)


@dataclass(frozen=True)
class SystemInfo:
    """Information that a policy gets once, before a run.

    Attributes:
        kv_capacity: KV memory, tokens of whole blocks.
        prefill_emits: whether the last prefill iteration emits the first counted output token.
        max_requests: most requests the run can hold; it sizes buffers and reveals nothing about arrivals.
        max_predicted_len: longest predicted output, or true output if the policy may observe it, tokens; 0 if it may
            observe neither.
        seed: seed sequence of the policy's own random stream.
        batch_time: the worker's batch-time model.
        first_token: see :class:`~kvgym.simulator.system.System`.
        classes: rates and mean lengths of the classes, for policies that need ``class_rates``; else empty.
        block_size: tokens of a block of memory.
        underestimates: which of the predictions that the policy observes (``"predicted_length"``, or upper ends of
            ``"length_interval"``) are below a true length. It describes the predictor, as an operator knows it: none
            of exact predictions and of upper bounds.
        drafts: most drafts that a decode verifies besides its token, with speculation; else 0.
    """

    kv_capacity: int
    prefill_emits: bool
    max_requests: int
    max_predicted_len: int
    seed: np.random.SeedSequence
    batch_time: BatchTimeModel
    first_token: str
    classes: tuple[ClassStatistics, ...] = ()
    block_size: int = 1
    underestimates: frozenset[str] = frozenset()
    drafts: int = 0


@dataclass_transform(kw_only_default=True)
class Policy(Declaring, ABC):
    """A scheduler. Hyperparameters are keyword-only constructor arguments that default to the paper's.

    They are declared as in :mod:`kvgym.policies.hyperparameters`, or a class has a constructor of its own.

    Attributes:
        info: its description and needs.
        label: its label in results; "" = its name with the given hyperparameters.
    """

    info: ClassVar[PolicyInfo]
    label: str = ""
    _kind = "policy"

    def resolve(self, system: SystemInfo) -> dict[str, Any]:
        """Return the values that hyperparameters with the value ``AUTO`` have on a system, by name.

        Raises:
            ConfigError: a value does not fit to the other hyperparameters.
        """
        return {}

    def reset(self, system: SystemInfo) -> None:
        """Reset all state and prepare for a run. Randomness may come from ``system.seed`` only."""
        return None

    @abstractmethod
    def schedule(self, view: SystemView) -> Decision:
        """Decide what the worker does until the next iteration boundary."""

    def blocking(self, view: SystemView) -> int | None:
        """Return the waiting request that no other may overtake; None = not known.

        Only messages use it: a run that ends because no request is admitted names this request.
        """
        return None


class CompiledPolicy(Policy):
    """A policy with a compiled kernel, see :mod:`kvgym.kernels`.

    Attributes:
        kernel: its kernel.
        parameters: named tuple of the numbers that its kernel reads, see :func:`kvgym.kernels.named_numbers`; None: it
            reads none, or :meth:`params` makes them.
        additions: a and b, if it ranks requests by scores to which an agent may add numbers: ``reals[a + b n + i]`` of
            its memory is added to the score of request i, with room for n requests. None: it has no such scores.
    """

    kernel: ClassVar[Kernel]
    parameters: ClassVar[type[Any] | None] = None
    additions: ClassVar[tuple[int, int] | None] = None

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the parameters that are not hyperparameters of the same name, such as a fraction of a memory."""
        return {}

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the numbers that the kernel reads, float64 (k,)."""
        if self.parameters is None:
            return np.zeros(1)
        return row_of(self.parameters, self, self.computed(system))

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the parameters and fresh memory for a run."""
        return policy_memory(self.params(system))

    def reset(self, system: SystemInfo) -> None:
        """Prepare parameters and memory for a run."""
        self._memory = policy_memory(**self.memory(system)._asdict())
        self._room = MemoryRoom(
            system.kv_capacity, system.max_requests, system.block_size, len(system.classes), self.info.needs
        )

    @property
    def room(self) -> MemoryRoom | None:
        """Sizes of the run that :meth:`reset` prepared the memory for; None before the first reset."""
        return getattr(self, "_room", None)

    def arguments(self) -> PolicyMemory:
        """Return parameters and memory of the run prepared by :meth:`reset`."""
        return self._memory

    def schedule(self, view: SystemView) -> Decision:
        """Decide by the kernel, run as plain Python."""
        return view.consult(self.kernel, self.arguments())


KERNEL_SCHEDULES: set[Callable[..., Decision]] = {CompiledPolicy.schedule}
"""The ``schedule`` methods that do what the ``kernel`` of their policies does; runs call that instead.

Such a policy has ``kernel``, ``room`` and ``arguments()``, as :class:`CompiledPolicy` has. One that calls Python from
its kernel, as agents do, also has ``attach(simulation, worker)``, which is called before a run, and
``check_failure()``, which raises what the last call raised.
"""


def head_of_queue(self: Policy, view: SystemView) -> int | None:
    """Return the request at the head of the queue: :meth:`Policy.blocking` of policies that admit in queue order."""
    return int(view.waiting.request_id[0]) if view.num_waiting else None


def _load_policies() -> None:
    import_package("kvgym.baselines")  # first, so that no plugin can take the name of a built-in policy
    load_plugins("kvgym.policies", "policies")


_FACTORY: Factory[Policy] = Factory(
    Policy,
    PolicyInfo,
    "a name, with hyperparameters as in 'alpha_greedy:alpha=0.3', or a Policy",
    _load_policies,
)

POLICIES = _FACTORY.registry
"""All policies by name. Other distributions add theirs by an entry point in group ``kvgym.policies``."""

P = TypeVar("P", bound=type[Policy])


@explained
def register_policy(cls: P) -> P:
    """Class decorator: register a policy under ``cls.info.name``; compiled ones need a kernel."""
    if isinstance(cls, type) and issubclass(cls, CompiledPolicy) and not hasattr(cls, "kernel"):
        raise ConfigError(f"policy {cls.__qualname__} has no kernel; set it to a function of kvgym.kernel")
    return _FACTORY.register(cls)


def clairvoyant_labels(labels: Iterable[str]) -> frozenset[str]:
    """Return the labels of results that begin with the name of a clairvoyant policy."""
    return frozenset(
        label
        for label in labels
        if (name := label.partition(":")[0]) in POLICIES and POLICIES[name].info.clairvoyant
    )


PolicySource = Callable[[str], Policy | None]
"""Return the policy that a spec names, or None for a spec of another form."""


def register_policy_source(
    source: PolicySource, names: Callable[[], Iterable[str]] | None = None
) -> PolicySource:
    """Register a source of policies for :func:`make_policy` in addition to registered names; usable as a decorator.

    Args:
        source: returns the policy that a spec names, or None for a spec of another form.
        names: returns the names it supports, which messages list with the registered ones; None = none.
    """
    return _FACTORY.sources.add(source, names)


@explained
def make_policy(spec: str | Policy, **hyperparameters: Any) -> Policy:
    """Return a policy by name.

    Args:
        spec: a registered name, optionally with hyperparameters as in ``"alpha_greedy:alpha=0.3"`` or
            ``"alpha_beta:alpha=0.2,beta=0.1"``. Or a trained agent, see :func:`kvgym.agents.load_agent`; a
            registered policy of the same name takes precedence. A policy instance is returned unchanged.
        **hyperparameters: override those in ``spec``.

    Raises:
        UnknownNameError: no policy of that name.
        ConfigError: an unknown hyperparameter or a value out of range.
    """
    return _FACTORY.make(spec, hyperparameters)
