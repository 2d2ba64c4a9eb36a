"""Compilation: which functions are compiled, where the machine code is kept, and the uncompiled twin.

Numba's cache looks only at the file that holds an entry point and would run stale code after an edit to a
helper in another file. The cache folder is therefore named by a hash of all sources that can be compiled.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import tempfile
import threading
import types as pytypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

_PACKAGE = Path(__file__).resolve().parent.parent
_COMPILED_PARTS = ("simulator", "batch_time", "baselines", "envs")
_LOCK = threading.RLock()
_announced = False
_njit: Any = numba.njit  # untyped: the option _nrt is not in Numba's stubs
_config: Any = numba.config


@functools.lru_cache(maxsize=1)
def cache_dir() -> Path:
    """Return the folder for machine code, named by a hash of the sources and of the tool versions.

    The root is ``KVGYM_CACHE_DIR``, else ``XDG_CACHE_HOME/kvgym``, else ``~/.cache/kvgym``; where that
    cannot be written, a folder in the system's temporary directory.
    """
    digest = hashlib.sha256(f"{sys.version}|{numba.__version__}|{np.__version__}".encode())
    for part in _COMPILED_PARTS:
        for source in sorted((_PACKAGE / part).glob("**/*.py")):
            digest.update(source.name.encode())
            digest.update(source.read_bytes())
    name = f"code-{digest.hexdigest()[:20]}"
    chosen = os.environ.get("KVGYM_CACHE_DIR")
    root = (
        Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "kvgym"
    )
    for candidate in (
        root,
        Path(tempfile.gettempdir()) / f"kvgym-{os.getuid() if hasattr(os, 'getuid') else 0}",
    ):
        folder = candidate / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    raise OSError(f"no writable folder for compiled code: tried {root} and the temporary directory")


# Compiled functions only use arrays that the caller owns and allocate nothing. Numba's reference counting
# (two atomic operations per array and call) would cost more than the simulation itself: it is off.


def jit(function: Callable[..., Any]) -> Any:
    """Compile a helper that only compiled code calls; its code is kept with each caller's."""
    return _njit(_nrt=False)(function)


def jit_inline(function: Callable[..., Any]) -> Any:
    """Compile a helper into its callers: for functions on the hot path with one caller and many arguments."""
    return _njit(_nrt=False, forceinline=True)(function)


class Kernel:
    """A compiled function of one explicit signature, made on first use and kept across processes.

    Because the signature is explicit, a kernel can be passed to another kernel as a typed function pointer
    without the caller being recompiled.

    Args:
        function: the Python function, in Numba's subset of the language.
        signature: its Numba signature.
    """

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self.function = function
        self.signature = signature
        self._compiled: Any = None
        functools.update_wrapper(self, function)

    @property
    def compiled(self) -> Any:
        """The compiled function; the first use in a process loads or compiles it."""
        if self._compiled is None:
            with _LOCK:
                if self._compiled is None:
                    self._compiled = self._compile()
        return self._compiled

    def _compile(self) -> Any:
        folder = cache_dir()
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        marker = folder / f"{name}.compiled"
        if not marker.exists():
            _announce()
        previous = _config.CACHE_DIR
        _config.CACHE_DIR = str(folder)
        try:
            result = _njit(self.signature, cache=True, _nrt=False)(self.function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            return _njit(self.signature, _nrt=False)(self.function)  # typed at a prompt: no file to key by
        finally:
            _config.CACHE_DIR = previous
        marker.touch()
        return result

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


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Return a decorator that makes a :class:`Kernel` of the given Numba signature."""
    return lambda function: Kernel(function, signature)


def _announce() -> None:
    global _announced
    if not _announced and not _config.DISABLE_JIT:
        _announced = True
        print(
            "kvgym: compiling the simulator for this machine (about 10 s, once) ...",
            file=sys.stderr,
            flush=True,
        )


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
    """Builds and remembers Python twins of compiled functions."""

    def __init__(self) -> None:
        self._twins: dict[int, Any] = {}

    def of(self, item: Any) -> Any:
        if hasattr(item, "python_twin"):  # compiler intrinsics bring their own
            return item.python_twin
        source = item.function if isinstance(item, Kernel) else getattr(item, "py_func", None)
        if source is None:
            return item
        if id(source) not in self._twins:
            namespace = dict(source.__globals__)
            twin = pytypes.FunctionType(
                source.__code__, namespace, source.__name__, source.__defaults__, source.__closure__
            )
            self._twins[id(source)] = twin
            for name in source.__code__.co_names:
                if name in namespace:
                    namespace[name] = self.of(namespace[name])
        return self._twins[id(source)]


_TWINS = _Twins()
