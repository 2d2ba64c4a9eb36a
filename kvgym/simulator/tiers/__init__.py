"""KV memory below the GPU: units of the prefix cache that are written to it, found there and loaded back.

Where to find what: how the engine calls it in ``hook``, what it then does in ``kernel``, what it keeps and drops in
``store``, its settings in :mod:`kvgym.simulator.prefix.host_memory`.
"""
