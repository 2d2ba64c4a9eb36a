"""Experiments: scenarios, comparisons of policies on equal requests, tuning, statistics, records of runs.

They run what is registered as a policy and know nothing of environments, agents or the command line; plots and
reports are made from their results by :mod:`kvgym.report`. May be imported from there and from above.
"""
