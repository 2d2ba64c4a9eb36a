"""What an action means: one module per kind, each with its space, its mask, and how it becomes a decision.

``kind`` is the protocol, ``composing`` what kinds are made of, ``expressing`` the way back: from the decision of a
scheduler to actions. Kinds are registered in :mod:`kvgym.envs.registration`; nothing else tells them apart.
"""
