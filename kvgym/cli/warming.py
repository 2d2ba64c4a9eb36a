"""Compile everything in advance: for images, for CI, and before many processes start at once.

There is no list of kernels: this module imports every module that may define compiled code, also of other
distributions, and compiles what they define.
May import :mod:`kvgym.envs` and what is below it; may be imported from :mod:`kvgym.cli`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib import import_module

from kvgym.compiling.cache import silence
from kvgym.compiling.kernel import Kernel, jit_disabled, kernels
from kvgym.compiling.sources import PACKAGE, compiled_sources
from kvgym.envs.registration import ACTIONS
from kvgym.errors import ConfigError
from kvgym.policies.policy import POLICIES
from kvgym.policies.routing import ROUTERS
from kvgym.utils.execution import cores, make_executor


def warm_up(jobs: int | None = None) -> dict[str, float]:
    """Compile all kernels, also those that other distributions have registered, that are not in the cache.

    Args:
        jobs: processes, see :func:`compile_all`.

    Returns:
        CPU seconds per function, by title; empty if everything was cached.

    Raises:
        ConfigError: compilation is disabled.
    """
    return dict(compile_all([kernel for kernel in all_kernels() if not kernel.cached], jobs))


def all_kernels() -> list[Kernel]:
    """Return the kernels of kvgym and of other distributions, by module and name.

    Raises:
        ConfigError: compilation is disabled.
    """
    if jit_disabled():
        raise ConfigError("NUMBA_DISABLE_JIT disables compilation; unset it to compile")
    for source in compiled_sources():
        parts = source.relative_to(PACKAGE.parent).with_suffix("").parts
        import_module(".".join(parts).removesuffix(".__init__"))
    _ = [*POLICIES, *ROUTERS]  # reading them loads what other distributions add
    for name in ACTIONS:
        ACTIONS[name].make()
    return kernels()


def compile_all(wanted: Sequence[Kernel], jobs: int | None = None) -> Iterator[tuple[str, float]]:
    """Compile kernels; yield the title and the CPU seconds of each when it, or the part with it, is done.

    Args:
        wanted: the kernels.
        jobs: processes; 0 = one per core; None = one per core, unless there are few kernels.
    """
    if jobs is None and len(wanted) <= _FEW:
        jobs = 1
    count = jobs or cores()
    parts = [[kernel] for kernel in wanted] if count == 1 else parts_of(wanted, _PARTS * count)
    with make_executor(_compile, count) as executor:
        for place, seconds in executor.stream(parts):
            yield from zip((kernel.title for kernel in parts[place]), seconds, strict=True)


_FEW = 6
"""Most kernels that are compiled before other processes would have started."""

_PARTS = 2
"""Parts for each process: more would end together more exactly, fewer share more helpers."""


def parts_of(wanted: Sequence[Kernel], count: int) -> list[list[Kernel]]:
    """Return kernels in at most ``count`` parts of about equal size; neighbours in the source stay together.

    A process types each helper once, and kernels of one kind share most of their helpers.
    """
    ordered = sorted(wanted, key=lambda kernel: (kernel.title.partition(" ")[0], kernel.function.__module__))
    sizes = [kernel.size for kernel in ordered]
    parts: list[list[Kernel]] = [[] for _ in range(count)]
    total, before = max(1, sum(sizes)), 0
    for kernel, size in zip(ordered, sizes, strict=True):
        parts[before * count // total].append(kernel)
        before += size
    return [part for part in parts if part]


def _compile(part: Sequence[Kernel]) -> list[float]:
    """Compile kernels, or wait for another process that does; return the CPU seconds of each used here."""
    spent = []
    for kernel in part:
        start = time.process_time()
        with silence():
            _ = kernel.compiled
        spent.append(time.process_time() - start)
    return spent
