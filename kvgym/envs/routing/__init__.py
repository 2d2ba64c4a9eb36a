"""The environment that routes requests to the workers of a cluster, ``kvgym/Route-v0``.

A scheduler of the library runs on each worker; ``agents`` turns routers into agents and agents into routers. Shares
nothing with ``kvgym.envs.scheduling`` but what records and pickles environments. May be imported from above.
"""
