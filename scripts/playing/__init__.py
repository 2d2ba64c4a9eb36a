"""Random play of environments over random configurations, with everything checked that must hold in each of them.

``scripts/random_play.py`` plays millions of steps, the tests some thousands.
"""
