"""The compiler toolkit: kernels of explicit signatures, their cache, and what they need of Numba.

May import :mod:`kvgym.utils` and :mod:`kvgym.errors`; may be imported from anywhere above it.
"""
