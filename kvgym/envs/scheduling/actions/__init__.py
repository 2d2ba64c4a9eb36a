"""What an action means: one module per kind, each with its space, its mask, and how it becomes a decision.

``kind`` is the protocol, ``composing`` what kinds are made of, ``expressing`` the way back from a scheduler's decision
to actions, ``catalogue`` the list of kinds; nothing else tells them apart. May import ``opening``, ``window`` and
``tables`` of the package above and :mod:`kvgym.kernels` and below; may be imported from ``observations`` and above.
"""
