"""Experiments: scenarios, comparisons of policies on equal requests, tuning, statistics, records of runs.

They run whatever is registered as a policy and know nothing of environments, agents or the command line.
May import :mod:`kvgym.theory` and what is below it; may be imported from :mod:`kvgym.report` and above.
"""

DEFAULT_SCENARIO = "a100-llama2-70b"
"""The scenario where none is named; it stands here so that naming it loads nothing."""
