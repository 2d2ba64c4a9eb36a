"""Sweeps: comparisons at every point of a grid over fields of the scenario and hyperparameters of policies.

``fields`` defines what can be swept, ``plan`` describes a sweep, and ``sweep`` runs it.
"""
