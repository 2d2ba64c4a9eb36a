"""Learned agents against all that stands beside them: the tables of ``scripts/compare_agents``.

:mod:`.tasks` says on what (:class:`.cells.Cell`: a scenario, and who plays on it), :mod:`.entrants` who: schedulers
tuned at the cell's load, the best fixed knobs, agents, agents that know true lengths. :mod:`.bench` runs them on the
same requests, :mod:`.running` does so in several processes, :mod:`.store` keeps what was run in a JSON file, and
:mod:`.pages` makes tables of that file. Nothing here imports PyTorch.
"""
