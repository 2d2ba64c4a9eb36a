"""Kinds of action: one module each, with its space, its mask, and the translation to a decision.

``kind`` is the protocol, ``composing`` has the helpers that kinds share, ``expressing`` supports the translation from a
scheduler's decision back to actions, and ``catalogue`` lists the kinds. May import ``opening``, ``window`` and
``tables`` of the package above and :mod:`kvgym.kernels` and below; may be imported from ``observations`` and above.
"""
