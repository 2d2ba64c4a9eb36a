"""Environments that schedule one worker: ``kvgym/AdmitCount-v0`` and its siblings, scalar and vector.

``environment`` and ``vector_environment`` are faces of ``episodes``; the compiled step is in ``stepping``, what an
action means in ``actions``, what is observed in ``observations``. May be imported from ``kvgym.envs`` and above.
"""
