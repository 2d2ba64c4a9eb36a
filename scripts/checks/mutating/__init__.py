"""Mutation testing: make one small change to a module and check that its nearest tests fail.

``scripts/checks/mutate.py`` runs it.
"""
