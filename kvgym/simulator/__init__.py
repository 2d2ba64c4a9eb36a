"""The compiled core: tables, queue, KV memory, decisions, batches, the loop, clusters.

Each module implements one part of a run; ``textbook`` is the same model in plain Python, for reading and
comparison.
May import :mod:`kvgym.workloads` and what is below it; may be imported from :mod:`kvgym.batch_time` and above.
"""
