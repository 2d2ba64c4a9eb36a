"""Compilation: which functions are compiled, where the machine code is kept, and the uncompiled twin.

Numba's cache looks only at the file that holds an entry point and would run stale code after an edit to a
helper in another file. The cache folder is therefore named by a hash of all sources that can be compiled.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
import types as pytypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

_PACKAGE = Path(__file__).resolve().parent.parent
_COMPILED_PARTS = (
    "simulator",
    "batch_time",
    "baselines",
    "envs",
    "kernels.py",
    "workloads/layout.py",
    "theory/hindsight/slotted/exact_kernels.py",
    "theory/hindsight/slotted/price_kernels.py",
    "theory/hindsight/slotted/search_kernels.py",
)
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
        path = _PACKAGE / part
        for source in [path] if path.is_file() else sorted(path.glob("**/*.py")):
            digest.update(source.name.encode())
            digest.update(source.read_bytes())
    name = f"code-{digest.hexdigest()[:20]}"
    chosen = os.environ.get("KVGYM_CACHE_DIR")
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = Path(chosen).absolute() if chosen else base / "kvgym"
    user = os.getuid() if hasattr(os, "getuid") else 0
    for candidate in (root, Path(tempfile.gettempdir()) / f"kvgym-{user}"):
        folder = candidate / name
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if candidate is not root and candidate.stat().st_uid != user:
                continue  # machine code from a folder of somebody else is not to be trusted
            with tempfile.TemporaryFile(dir=folder):
                _prune(candidate, folder)
                return folder
        except OSError:
            continue
    raise OSError(f"no writable folder for compiled code: tried {root} and the temporary directory")


def _prune(root: Path, current: Path, days: float = 30.0) -> None:
    """Remove machine code of other versions that has not been used for a month."""
    os.utime(current)
    for folder in root.glob("code-*"):
        with contextlib.suppress(OSError):
            if folder != current and time.time() - folder.stat().st_mtime > days * 86_400:
                shutil.rmtree(folder, ignore_errors=True)


# Compiled functions only use arrays that the caller owns and allocate nothing. Numba's reference counting
# (two atomic operations per array and call) would cost more than the simulation itself: it is off.


def jit(function: Callable[..., Any]) -> Any:
    """Compile a helper that only compiled code calls; its code is kept with each caller's."""
    return _njit(_nrt=False)(function)


def jit_inline(function: Callable[..., Any]) -> Any:
    """Compile a helper into its callers: for functions on the hot path with few callers and many arguments.

    A named tuple of tables counts as many: a call that is not inlined copies it, seven words for each array.
    """
    return _njit(_nrt=False, forceinline=True)(function)


def jit_expand(function: Callable[..., Any]) -> Any:
    """Expand a helper in its callers before they are typed: for functions that return records, which none can."""
    return _njit(_nrt=False, inline="always")(function)


def _reached(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return the globals that a function names, and what it names of modules among them."""
    names, found = function.__code__.co_names, []
    for name in names:
        item = function.__globals__.get(name)
        found.append((name, item))
        if isinstance(item, pytypes.ModuleType):
            found += [(part, vars(item)[part]) for part in names if part in vars(item)]
    return found


def fingerprint(function: Callable[..., Any]) -> str:
    """Return a hash of a function's code and of all functions and constants it reaches."""
    digest, seen, todo = hashlib.sha256(), set(), [function]
    while todo:
        source = todo.pop()
        if source in seen:
            continue
        seen.add(source)
        codes = [source.__code__]
        while codes:
            code = codes.pop()
            codes += [c for c in code.co_consts if isinstance(c, pytypes.CodeType)]
            plain = [c for c in code.co_consts if not isinstance(c, pytypes.CodeType)]
            digest.update(code.co_code + repr((code.co_names, plain)).encode())
        for name, item in _reached(source):
            inner = item.function if isinstance(item, Kernel) else getattr(item, "py_func", None)
            if inner is not None:
                todo.append(inner)
            elif isinstance(item, bool | int | float | str | tuple | np.ndarray):
                digest.update(
                    repr((name, item if not isinstance(item, np.ndarray) else item.tolist())).encode()
                )
    return digest.hexdigest()[:20]


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
        if _config.DISABLE_JIT:
            return self.function
        folder = cache_dir()
        if not self.function.__module__.startswith("kvgym."):
            folder /= f"user-{fingerprint(self.function)}"  # helpers in other files may have changed
            folder.mkdir(exist_ok=True)
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
    if not _announced:
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
    """Builds and remembers Python twins of compiled functions, by the function itself."""

    def __init__(self) -> None:
        self._twins: dict[Callable[..., Any], Any] = {}

    def of(self, item: Any) -> Any:
        if hasattr(item, "python_twin"):  # compiler intrinsics bring their own
            return item.python_twin
        if isinstance(item, pytypes.ModuleType):
            held = vars(item).values()
            return _ModuleTwin(item) if any(hasattr(x, "py_func") for x in held) else item
        source = item.function if isinstance(item, Kernel) else getattr(item, "py_func", None)
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
