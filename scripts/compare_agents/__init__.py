"""Comparison of learned agents with schedulers and fixed knobs: the command ``scripts/compare_agents``.

:mod:`.tasks` and :mod:`.studies` list the contests of each task (:class:`.contests.Contest`: a scenario and its
contestants). :mod:`.contestants` are agents, tuned schedulers, fixed knobs, and agents with true lengths;
:mod:`.benchmark` runs them on the same requests, and :mod:`.running` distributes the runs over processes. :mod:`.store`
keeps the results in a JSON file; :mod:`.tables` and :mod:`.pages` make CSV files and a page from it.
Nothing here imports PyTorch.
"""
