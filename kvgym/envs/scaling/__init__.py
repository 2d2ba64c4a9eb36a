"""The environment that scales a fleet, ``kvgym/Scale-v0``.

A router and a built-in scheduler on each worker run between the actions; ``agents`` runs autoscalers in the
environment, and agents as autoscalers. May import :mod:`kvgym.envs.clusters` and :mod:`kvgym.envs.scheduling`; may be
imported from :mod:`kvgym.agents` and above.
"""
