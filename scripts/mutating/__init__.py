"""Mutation testing: change one small thing in a module and see whether its nearest tests notice.

``scripts/mutate.py`` runs it.
"""
