"""Compilation: which functions are compiled, and the uncompiled twin."""

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
    cache_dir,
    code_folder,
    compiled_once,
    expected_seconds,
    is_compiled,
    marker_of,
)
from kvgym.compiling.checked_build import CHECKED
from kvgym.compiling.errors import kernel_error
from kvgym.compiling.numba_internals import FORCE_INLINE
from kvgym.compiling.passes import helper, machine_code

_LOCK = threading.RLock()
_config: Any = numba.config


def jit(function: Callable[..., Any]) -> Any:
    """Compile a helper that only compiled code calls; its code is kept with each caller's."""
    return helper(function)


def jit_inline(function: Callable[..., Any]) -> Any:
    """Compile a helper into its callers: for functions on the hot path with few callers and many arguments.

    A named tuple of tables counts as many: a call that is not inlined copies it, seven words for each array.
    """
    return helper(function, **FORCE_INLINE)


def jit_expand(function: Callable[..., Any]) -> Any:
    """Expand a helper in its callers before they are typed: for functions that return records, which none can."""
    return helper(function, inline="always")


def _reached(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return the globals that a function names, and what it names of modules among them."""
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
    """Go through a function and all compiled helpers that it reaches, each once."""
    seen, todo = set(), [function]
    while todo:
        source = todo.pop()
        if source not in seen:
            seen.add(source)
            yield source
            todo += [inner for _, item in _reached(source) if (inner := _source_of(item)) is not None]


def _drop_kept_code(function: Callable[..., Any]) -> bool:
    """Remove what Numba keeps of helpers compiled by ``numba.njit(cache=True)``; return whether there was any."""
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
    """Leave cycles where they are: compiling makes millions of objects, and looking through them costs a tenth."""
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
    """A compiled function of one explicit signature, made on first use and kept across processes.

    Because the signature is explicit, a kernel can be passed to another kernel as a typed function pointer
    without the caller being recompiled.

    Args:
        function: the Python function, in Numba's subset of the language.
        signature: its Numba signature.
        what: what it is, for notices, e.g. ``"scheduler"``.
        nogil: whether other threads may run meanwhile.
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
    def kept(self) -> bool:
        """Whether its machine code is in the cache."""
        return is_compiled(self._marker())

    def _marker(self) -> Path:
        """Return the file that holds the checksum of the machine code once that is kept."""
        folder = cache_dir()
        if not self.function.__module__.startswith("kvgym."):
            folder /= f"user-{fingerprint(self.function)}"  # helpers in other files may have changed
            folder.mkdir(exist_ok=True)
        return marker_of(folder, self.function)

    def _compile(self) -> Any:
        if _config.DISABLE_JIT:
            return self.function
        marker, previous = self._marker(), _config.CACHE_DIR
        _config.CACHE_DIR = str(code_folder(marker))
        try:
            with compiled_once(marker, self.title, self._seconds):
                return self._machine_code(cache=True)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            return self._machine_code(cache=False)  # typed at a prompt: there is no file to key by
        finally:
            _config.CACHE_DIR = previous

    def _machine_code(self, *, cache: bool) -> Any:
        compiled = machine_code(self.signature, cache=cache, nogil=self._nogil)
        try:
            with _no_collection():
                try:
                    return compiled(self.function)
                except Exception as error:
                    if isinstance(error, NumbaError) or not _drop_kept_code(self.function):
                        raise
                    return compiled(self.function)  # kept code of a helper was damaged, or it fails as before
        except (NumbaError, KeyError) as error:  # Numba looks fields of records up in a dict
            functions = list(_all_reached(self.function))
            told = kernel_error(self.title, self.signature, functions, error)
            raise told from (error if CHECKED else None)

    def _seconds(self) -> float:
        """Return about how long it takes to compile: helpers are typed once a process, and optimised in each kernel."""
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
    """Return a decorator that makes a :class:`Kernel` of the given Numba signature; ``what`` is for notices."""
    return lambda function: Kernel(function, signature, what, nogil=nogil)


def kernels() -> list[Kernel]:
    """Return the kernels of all modules that have been imported, by module and name."""
    found = [k for k in _KERNELS if "<locals>" not in k.function.__qualname__]
    return sorted(found, key=lambda k: (k.function.__module__, k.function.__qualname__))


def uncompiled(function: Any) -> Callable[..., Any]:
    """Return the same function running as plain Python, with everything it calls.

    It is built from the same code objects, with every compiled helper replaced by its Python twin, so the
    readable reference and the fast engine cannot drift apart.

    Args:
        function: a :class:`Kernel`, a Numba dispatcher, or a plain function (returned as it is).
    """
    twin: Callable[..., Any] = _TWINS.of(function)
    return twin


class _Twins:
    """Builds and remembers Python twins of compiled functions, by the function itself."""

    def __init__(self) -> None:
        self._twins: dict[Callable[..., Any], Any] = {}

    def of(self, item: Any) -> Any:
        if hasattr(item, "python_twin"):  # compiler intrinsics bring their own
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
    """Stands for a module in uncompiled code: what is read off it is the twin of what the module holds."""

    def __init__(self, module: pytypes.ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        twin = _TWINS.of(getattr(self._module, name))
        setattr(self, name, twin)  # found without this function from now on
        return twin


_TWINS = _Twins()


def jit_disabled() -> bool:
    """Whether Numba was told not to compile (``NUMBA_DISABLE_JIT=1``)."""
    return bool(_config.DISABLE_JIT)


def generated(typed: Callable[..., Any], in_python: Callable[..., Any]) -> Any:
    """Return a function whose compiled code is generated, word for word; where nothing is compiled, its twin.

    Args:
        typed: what ``numba.extending.intrinsic`` takes: of the types of arguments the signature, and what generates.
        in_python: what does the same in plain Python.
    """
    if jit_disabled():
        return in_python
    found: Any = intrinsic(typed)
    found.python_twin = in_python
    return found
