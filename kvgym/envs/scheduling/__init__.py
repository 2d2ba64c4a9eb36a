"""Environments that schedule one worker: ``kvgym/AdmitCount-v0`` and its siblings, scalar and vector.

``environment`` and ``vector_environment`` are interfaces to ``episodes``; ``stepping`` has the compiled step,
``actions`` the kinds of action, ``observations`` the features. May import packages below :mod:`kvgym.envs`, and
``rendering`` when pictures are drawn; may be imported from :mod:`kvgym.envs.agents` and above.
"""
