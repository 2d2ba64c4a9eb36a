"""Environments that schedule one worker: ``kvgym/AdmitCount-v0`` and its siblings, scalar and vector.

``environment`` and ``vector_environment`` are faces of ``episodes``; the compiled step is in ``stepping``, what an
action means in ``actions``, what is observed in ``observations``. May import what is below :mod:`kvgym.envs`, and
``rendering`` when something is drawn; may be imported from :mod:`kvgym.envs.agents` and above.
"""
