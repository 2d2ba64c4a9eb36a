"""The environment that routes requests to the workers of a cluster, ``kvgym/Route-v0``.

A built-in scheduler runs on each worker; ``agents`` runs routers in the environment, and agents as routers. May
import :mod:`kvgym.envs.scheduling`, with which it shares arguments, seeds and names of reward terms, and
:mod:`kvgym.envs.agents`; may be imported from :mod:`kvgym.agents` and above.
"""
