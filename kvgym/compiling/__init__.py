"""The compiler toolkit: kernels of explicit signatures, their cache, and the Numba APIs they need.

Tricks make it faster than plain Numba; none of them changes results. Ratios are of CPU seconds without a trick over
those with it, one at a time, for ``fcfs``, ``mc_sf``, ``sarathi``, ``slai`` and ``ranked``:

| trick | gain | Numba API that it depends on |
|---|---|---|
| ``helpers``, :mod:`.lowering` | first run 3.3 | lowering and code libraries, private |
| ``once``, :mod:`.lowering` | first run 1.08 | code libraries, private |
| ``loading``, :mod:`.numba_internals` | a process with all code in the cache 1.24 | ``Cache``, private |
| ``refcount``, :mod:`.numba_internals` | 1.04, 1.16, 1.16, 1.17, 2.1 | option ``_nrt``, private |
| ``inline``, :mod:`.numba_internals` | 1.10, 1.14, 1.11, 1.09, 1.09 | option ``forceinline``, private |
| ``wraparound``, :mod:`.numba_internals` | 1.04, 1.06, 1.03, 1.23, 1.31 | ``fix_integer_index``, private |
| ``prefetch``, :mod:`.pointers` | 512 environments 1.3 | ``intrinsic``, public |
| named tuples, :mod:`.references` | a run 1.05 to 1.09 | ``numba.extending``, public |

- ``helpers``: helpers are compiled only into kernels; ``once``: each kernel is optimised once, after linking.
- ``loading``: machine code is loaded without getting ready to compile.
- ``refcount``: references are not counted, as kernels allocate nothing.
- ``wraparound``: kvgym's own functions do not check for negative indices. ``fix_integer_index`` is patched only while
  kvgym compiles.
- ``prefetch``: while one environment is stepped, the tables of the next ones are loaded into the processor's cache.
- Named tuples are passed by address. This cannot be switched off, as signatures contain it; the gain is from its
  introduction.

``python scripts/speed/compiler_tricks.py NAME`` measures each but the last: two processes, with and without it, take
turns. With a version of Numba that they were not tested with, kvgym does without the private ones
(:data:`.numba_internals.TRICKS`), which costs these ratios.

Two more only make compiling faster. Tables are opened when they are read, so helpers take two rows instead of
hundreds of words (:mod:`.references`). Branches that a run cannot take are removed before they are typed
(:func:`.passes.false_for`).

Other private APIs are needed. Tables and functions are opened by address (``populate_array``,
``_get_wrapper_address``, ``_get_jit_address``), and the cache key covers all sources that a kernel reaches
(``_CacheLocator``). :mod:`kvgym.compiling.numba_internals` checks them at import.

May import :mod:`kvgym.utils` and :mod:`kvgym.errors`; may be imported from anywhere above it.
"""
