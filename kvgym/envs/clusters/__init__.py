"""What environments of clusters have in common: episodes, steps, and vectors of them.

May import :mod:`kvgym.envs.scheduling`, with which they share arguments, seeds and saved states; may be imported from
:mod:`kvgym.envs.routing` and :mod:`kvgym.envs.scaling`.
"""
