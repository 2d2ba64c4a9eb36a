"""The compiler toolkit: kernels of explicit signatures, their cache, and the Numba APIs they need.

Four tricks make it faster than plain Numba; none of them changes results.

| trick | gain | Numba API that it depends on | without it |
|---|---|---|---|
| ``helpers``, :mod:`.passes` | first run 1.8 times as fast | lowering and code libraries, private | slower compiling |
| ``wraparound``, :mod:`.numba_internals` | 20 to 30 % of ``slai`` and ``ranked`` | private | slower kernels |
| ``prefetch``, :mod:`.pointers` | 512 environments 1.3 times as fast | ``intrinsic``, public | slower environments |
| named tuples, :mod:`.references` | 5 to 9 % of a run | ``numba.extending``, public | other signatures |

- ``helpers``: helpers are compiled only into kernels, and each kernel is optimised once.
- ``wraparound``: kvgym's own functions do not check for negative indices. ``fix_integer_index`` is patched only while
  kvgym compiles.
- ``prefetch``: while one environment is stepped, the tables of the next ones are loaded into the processor's cache.
- Named tuples are passed by address. This cannot be switched off, as signatures contain it; the gain is from its
  introduction.

``python scripts/speed/compiler_tricks.py NAME`` measures each of the first three: two processes, with and without
it, take turns. Without these APIs kvgym would only be slower.

Two more only make compiling faster. Tables are opened when they are read, so helpers take two rows instead of
hundreds of words (:mod:`.references`). Branches that a run cannot take are removed before they are typed
(:func:`.passes.false_for`).

Other private APIs are needed. Reference counting is switched off (``_nrt``), as kernels allocate nothing. Tables and
functions are opened by address (``populate_array``, ``_get_wrapper_address``, ``_get_jit_address``). The cache key
covers all sources that a kernel reaches (``_CacheLocator``), and machine code is loaded without getting ready to
compile (``Cache``). :mod:`kvgym.compiling.numba_internals` checks all private APIs at import.

May import :mod:`kvgym.utils` and :mod:`kvgym.errors`; may be imported from anywhere above it.
"""
