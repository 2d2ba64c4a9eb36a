"""Kernels and their helpers: decorators that compile them, and their uncompiled twins."""

from __future__ import annotations

import contextlib
import functools
import gc
import glob
import hashlib
import itertools
import sys
import threading
import types as pytypes
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core.errors import NumbaError
from numba.extending import intrinsic

from kvgym.compiling.cache import (
    OwnCache,
    cache_dir,
    checksum_file,
    code_folder,
    compiled_once,
    expected_seconds,
    is_cached,
)
from kvgym.compiling.checked_build import CHECKED
from kvgym.compiling.errors import kernel_error
from kvgym.compiling.numba_internals import FORCE_INLINE
from kvgym.compiling.passes import helper, machine_code

_LOCK = threading.RLock()
_config: Any = numba.config


def jit(function: Callable[..., Any]) -> Any:
    """Compile a helper that only compiled code calls; each kernel contains its own copy of the code."""
    return helper(function)


def jit_inline(function: Callable[..., Any]) -> Any:
    """Inline a helper into its callers: for functions on the hot path with few callers and many arguments.

    A named tuple of tables counts as many arguments: a call that is not inlined copies seven words for each array.
    """
    return helper(function, **FORCE_INLINE)


def jit_expand(function: Callable[..., Any]) -> Any:
    """Expand a helper in its callers before typing: for functions that return records, which Numba functions cannot."""
    return helper(function, inline="always")


def _reached(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return the globals that a function uses, and the attributes of modules that it uses."""
    names, found = function.__code__.co_names, []
    for name in names:
        item = function.__globals__.get(name)
        found.append((name, item))
        if isinstance(item, pytypes.ModuleType):
            found += [(part, vars(item)[part]) for part in names if part in vars(item)]
    return found


def _source_of(item: Any) -> Callable[..., Any] | None:
    """Return the Python function of a kernel or of a compiled helper, None for anything else."""
    return item.function if isinstance(item, Kernel) else getattr(item, "py_func", None)


def _all_reached(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield a function and all compiled helpers that it reaches, each once."""
    seen, todo = set(), [function]
    while todo:
        source = todo.pop()
        if source not in seen:
            seen.add(source)
            yield source
            todo += [inner for _, item in _reached(source) if (inner := _source_of(item)) is not None]


def _remove_cached_helpers(function: Callable[..., Any]) -> bool:
    """Remove cached code of helpers compiled by ``numba.njit(cache=True)``; return whether there was any."""
    found: list[Path] = []
    for _, item in itertools.chain.from_iterable(map(_reached, _all_reached(function))):
        if folder := getattr(getattr(item, "stats", None), "cache_path", None):
            code = item.py_func.__code__
            name = item.py_func.__qualname__.replace("<", "").replace(">", "")
            stem = glob.escape(f"{Path(code.co_filename).stem}.{name}-{code.co_firstlineno}.py")
            found += Path(folder).glob(f"{stem}*.nb[ic]")
    for path in found:
        path.unlink(missing_ok=True)
    return bool(found)


def fingerprint(function: Callable[..., Any]) -> str:
    """Return a hash of a function's code and of all functions and constants it reaches."""
    digest = hashlib.sha256()
    for source in _all_reached(function):
        codes = [source.__code__]
        while codes:
            code = codes.pop()
            codes += [c for c in code.co_consts if isinstance(c, pytypes.CodeType)]
            plain = [c for c in code.co_consts if not isinstance(c, pytypes.CodeType)]
            digest.update(code.co_code + repr((code.co_names, plain)).encode())
        for name, item in _reached(source):
            item = getattr(item, "cache_key", item)  # of functions with generated code
            if _source_of(item) is None and isinstance(item, bool | int | float | str | tuple | np.ndarray):
                digest.update(
                    repr((name, item if not isinstance(item, np.ndarray) else item.tolist())).encode()
                )
    return digest.hexdigest()[:20]


def _length(functions: Iterable[Callable[..., Any]]) -> int:
    """Return the number of bytecode instructions of functions."""
    return sum(len(function.__code__.co_code) // 2 for function in functions)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Suspend garbage collection: compiling creates millions of objects, and scanning them takes a tenth of it."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


_KERNELS: weakref.WeakSet[Kernel] = weakref.WeakSet()
_typed: set[Callable[..., Any]] = set()


class Kernel:
    """A compiled function of one explicit signature, compiled on first use and cached across processes.

    Because the signature is explicit, a kernel can be passed to another kernel as a typed function pointer
    without recompiling the caller.

    Args:
        function: the Python function, in Numba's subset of the language.
        signature: its Numba signature.
        what: kind of kernel, for notices, e.g. ``"scheduler"``.
        nogil: whether the kernel releases the GIL.
    """

    def __init__(
        self, function: Callable[..., Any], signature: Any, what: str = "code", *, nogil: bool = False
    ) -> None:
        self.function = function
        self.signature = signature
        self._nogil = nogil
        self.title = f"{what} {function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self._compiled: Any = None
        functools.update_wrapper(self, function)
        _KERNELS.add(self)

    @property
    def compiled(self) -> Any:
        """The compiled function; the first use in a process loads or compiles it."""
        if self._compiled is None:
            with _LOCK:
                if self._compiled is None:
                    self._compiled = self._compile()
        return self._compiled

    @property
    def _own(self) -> bool:
        """Whether it is part of kvgym: the name of its cached code then depends on the sources it reaches."""
        return self.function.__module__.startswith("kvgym.")

    @property
    def size(self) -> int:
        """Number of bytecode instructions that it reaches, by which its compile time can be compared."""
        return _length(set(_all_reached(self.function)))

    def reads(self, name: str) -> bool:
        """Return whether it, or a helper that it reaches, uses an attribute or a global of this name."""
        return any(name in source.__code__.co_names for source in _all_reached(self.function))

    @property
    def cached(self) -> bool:
        """Whether its machine code is in the cache."""
        return is_cached(self._checksum_file())

    def _checksum_file(self) -> Path:
        """Return the path of the checksum of the cached machine code."""
        folder = cache_dir()
        if not self._own:
            folder /= f"user-{fingerprint(self.function)}"  # helpers in other files may have changed
            folder.mkdir(exist_ok=True)
        return checksum_file(folder, self.function)

    def _compile(self) -> Any:
        if _config.DISABLE_JIT:
            return self.function
        stored, previous = self._checksum_file(), _config.CACHE_DIR
        _config.CACHE_DIR = str(code_folder(stored))
        try:
            with compiled_once(stored, self.title, self._seconds):
                return self._machine_code(cache=True)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            return self._machine_code(cache=False)  # entered at a prompt: no source file for the cache key
        finally:
            _config.CACHE_DIR = previous

    def _machine_code(self, *, cache: bool) -> Any:
        kept: dict[str, Any] = {"own_cache": OwnCache} if self._own else {"cache": cache}
        compiled = machine_code(self.signature, nogil=self._nogil, **kept)
        try:
            with _no_collection():
                try:
                    return compiled(self.function)
                except Exception as error:
                    if isinstance(error, NumbaError) or not _remove_cached_helpers(self.function):
                        raise
                    return compiled(self.function)  # a helper's cached code was damaged; or it fails again
        except (NumbaError, KeyError) as error:  # KeyError: Numba looks up the fields of records in a dict
            functions = list(_all_reached(self.function))
            shown = kernel_error(self.title, self.signature, functions, error)
            raise shown from (error if CHECKED else None)

    def _seconds(self) -> float:
        """Return about how long compiling takes: helpers are typed once a process and optimised in each kernel."""
        sources = set(_all_reached(self.function))
        new = sources - _typed
        _typed.update(new)
        return expected_seconds(_length(sources), _length(new))

    def __call__(self, *args: Any) -> Any:
        """Call the compiled function."""
        return self.compiled(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by reference to the module attribute."""
        return _lookup, (self.function.__module__, self.function.__qualname__)


def _lookup(module: str, name: str) -> Kernel:
    __import__(module)
    kernel = getattr(sys.modules[module], name)
    assert isinstance(kernel, Kernel)
    return kernel


def kernel(
    signature: Any, what: str = "code", *, nogil: bool = False
) -> Callable[[Callable[..., Any]], Kernel]:
    """Return a decorator for a :class:`Kernel` of the given Numba signature; ``what`` is its kind, for notices."""
    return lambda function: Kernel(function, signature, what, nogil=nogil)


def kernels() -> list[Kernel]:
    """Return the kernels of all imported modules, sorted by module and name."""
    found = [k for k in _KERNELS if "<locals>" not in k.function.__qualname__]
    return sorted(found, key=lambda k: (k.function.__module__, k.function.__qualname__))


def uncompiled(function: Any) -> Callable[..., Any]:
    """Return a function's twin in plain Python, which calls the twins of all helpers.

    It is built from the same code objects, with every compiled helper replaced by its Python twin, so the
    readable reference and the fast engine cannot diverge.

    Args:
        function: a :class:`Kernel`, a Numba dispatcher, or a plain function (returned unchanged).
    """
    twin: Callable[..., Any] = _TWINS.of(function)
    return twin


class _Twins:
    """Builds and caches the Python twins of compiled functions."""

    def __init__(self) -> None:
        self._twins: dict[Callable[..., Any], Any] = {}

    def of(self, item: Any) -> Any:
        if hasattr(item, "python_twin"):  # intrinsics, see generated()
            return item.python_twin
        if isinstance(item, pytypes.ModuleType):
            held = vars(item).values()
            return _ModuleTwin(item) if any(hasattr(x, "py_func") for x in held) else item
        source = _source_of(item)
        if source is None:
            return item
        if source not in self._twins:
            namespace = dict(source.__globals__)
            twin = pytypes.FunctionType(
                source.__code__, namespace, source.__name__, source.__defaults__, source.__closure__
            )
            self._twins[source] = twin
            for name in source.__code__.co_names:
                if name in namespace:
                    namespace[name] = self.of(namespace[name])
        return self._twins[source]


class _ModuleTwin:
    """Stand-in for a module in uncompiled code; its attributes are the twins of the module's."""

    def __init__(self, module: pytypes.ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        twin = _TWINS.of(getattr(self._module, name))
        setattr(self, name, twin)
        return twin


_TWINS = _Twins()


def jit_disabled() -> bool:
    """Return whether compilation is switched off (``NUMBA_DISABLE_JIT=1``)."""
    return bool(_config.DISABLE_JIT)


def generated(typed: Callable[..., Any], in_python: Callable[..., Any]) -> Any:
    """Return a function with generated LLVM code; its Python twin if compilation is switched off.

    Args:
        typed: as ``numba.extending.intrinsic`` takes it: maps argument types to a signature and a code generator.
        in_python: the equivalent function in plain Python.
    """
    if jit_disabled():
        return in_python
    found: Any = intrinsic(typed)
    found.python_twin = in_python
    return found
