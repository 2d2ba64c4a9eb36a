"""Sweeps: a comparison at every point of a grid over fields of the scenario and hyperparameters of policies.

``fields`` says what can be swept, ``plan`` what is asked for, and ``sweep`` does it.
"""
