"""The compiler toolkit: kernels of explicit signatures, their cache, and the Numba APIs they need.

It compiles and runs faster than plain Numba by four tricks. All are optional: without any of them results are the same
bits. ``python scripts/benchmark/compiler_tricks.py NAME`` measures each one, with and without, on the same machine.

| trick (NAME) | gain | Numba API it depends on | without it |
|---|---|---|---|
| helpers are compiled only into kernels, and kernels are optimised once (``helpers``): :mod:`kvgym.compiling.passes` |\
 first compile 2.5 times as fast | ``NativeLowering``, ``JITCodeLibrary``, ``DefaultPassBuilder``, ``register_pass`` |\
 nothing breaks: ``numba.njit`` compiles the same code, slower |
| no check for negative indices in kvgym's own functions (``wraparound``):\
 :func:`~kvgym.compiling.numba_internals.no_index_wraparound` | 20-30 % of the time of ``slai`` and ``ranked`` |\
 ``arrayobj.fix_integer_index``, patched only while kvgym compiles | nothing breaks |
| kernels get their named tuples by address (``references``): :mod:`kvgym.compiling.references` | 5-9 % of a run |\
 public (``numba.extending``) | tuples are passed by value: compiled kernels of other packages are compiled again |
| tables of the next environments are prefetched (``prefetch``): ``prefetch`` in :mod:`kvgym.compiling.pointers` |\
 1.2-1.7 times as fast with 1,024 environments, no gain below 512 | ``intrinsic``; LLVM's ``llvm.prefetch`` |\
 nothing breaks |

Not tricks but needed: reference counting is switched off (``_nrt``), as kernels allocate nothing; tables and functions
are opened by address (``populate_array``, ``_get_wrapper_address``, ``_get_jit_address``); the cache is keyed by all
sources (``_CacheLocator``). :mod:`kvgym.compiling.numba_internals` checks all of these APIs when kvgym is imported.

May import :mod:`kvgym.utils` and :mod:`kvgym.errors`; may be imported from anywhere above it.
"""
