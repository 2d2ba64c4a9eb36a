"""KV memory below the GPU: units of the prefix cache that are written to it, found there and loaded back.

Where to find what: what it does in ``kernel``, what it keeps and drops in ``store``, how the engine calls it in
:mod:`kvgym.simulator.prefix.tier_hook`, its settings in :mod:`kvgym.simulator.prefix.host_memory`.
"""
