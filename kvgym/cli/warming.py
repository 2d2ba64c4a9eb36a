"""Compile everything beforehand: for images, for CI, and before many processes start at once.

It has no list of what there is to compile: it imports every module that may hold compiled code, those of other
distributions included, and compiles what they define.
May import :mod:`kvgym.envs` and what is below it; may be imported from :mod:`kvgym.cli`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib import import_module

from kvgym.compiling.cache import PACKAGE, compiled_sources, silence
from kvgym.compiling.kernel import Kernel, jit_disabled, kernels
from kvgym.envs.registration import ACTIONS
from kvgym.errors import ConfigError
from kvgym.execution import make_executor
from kvgym.policy import POLICIES
from kvgym.routing import ROUTERS


def warm_up(jobs: int | None = None) -> dict[str, float]:
    """Compile all that ships and what other distributions have registered, where it is not in the cache.

    Args:
        jobs: processes, see :func:`kvgym.execution.make_executor`.

    Returns:
        CPU seconds that each function took, by what it is; empty where all was there.

    Raises:
        ConfigError: compilation is switched off.
    """
    return dict(compile_all([kernel for kernel in all_kernels() if not kernel.cached], jobs))


def all_kernels() -> list[Kernel]:
    """Return the kernels of kvgym and of the distributions that add to it, by module and name.

    Raises:
        ConfigError: compilation is switched off.
    """
    if jit_disabled():
        raise ConfigError("NUMBA_DISABLE_JIT switches compilation off; unset it to compile")
    for source in compiled_sources():
        parts = source.relative_to(PACKAGE.parent).with_suffix("").parts
        import_module(".".join(parts).removesuffix(".__init__"))
    _ = [*POLICIES, *ROUTERS]  # looking at them loads what other distributions add
    for name in ACTIONS:
        ACTIONS[name].make()
    return kernels()


def compile_all(wanted: Sequence[Kernel], jobs: int | None = None) -> Iterator[tuple[str, float]]:
    """Compile kernels; return what each is and the CPU seconds that it took, as soon as it is done."""
    with make_executor(_compile, jobs) as executor:
        for place, seconds in executor.stream(wanted):
            yield wanted[place].title, seconds


def _compile(kernel: Kernel) -> float:
    """Compile, or wait for the process that does; return the CPU seconds that it took here."""
    start = time.process_time()
    with silence():
        _ = kernel.compiled
    return time.process_time() - start
