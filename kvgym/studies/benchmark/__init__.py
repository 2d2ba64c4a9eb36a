"""The benchmark: frozen tasks, one score, and a table of entries.

``kvgym benchmark`` runs entries, :func:`~kvgym.studies.benchmark.environments.make_task` gives a task as an
environment, and docs/benchmark-suite.md says how to submit an entry.
"""
