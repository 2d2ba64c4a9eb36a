"""Random play of environments with random configurations, with checks of everything that must always hold.

``scripts/checks/random_play.py`` plays millions of steps, the tests a few thousand.
"""
