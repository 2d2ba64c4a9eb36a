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
from kvgym.execution import make_executor
from kvgym.policy import POLICIES
from kvgym.routing import ROUTERS


def warm_up(jobs: int | None = None) -> dict[str, float]:
    """Compile all kernels, also those that other distributions have registered, that are not in the cache.

    Args:
        jobs: processes, see :func:`kvgym.execution.make_executor`.

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
    """Compile kernels; yield the title and the CPU seconds of each when it is done."""
    with make_executor(_compile, jobs) as executor:
        for place, seconds in executor.stream(wanted):
            yield wanted[place].title, seconds


def _compile(kernel: Kernel) -> float:
    """Compile a kernel, or wait for another process that does; return the CPU seconds used here."""
    start = time.process_time()
    with silence():
        _ = kernel.compiled
    return time.process_time() - start
