"""Up to which rate targets hold, and how many workers a load needs.

:func:`~kvgym.experiments.capacity.finding.find_capacity` searches the highest rate, and
:func:`~kvgym.experiments.capacity.provisioning.provision` the smallest number of workers, by runs. Both judge a run
alike (``witness``), and both search by bracketing and bisection (``search``). docs/capacity.md has the definitions.
"""
