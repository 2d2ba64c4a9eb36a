"""The highest rate at which targets are met, and the number of workers that a load needs.

:func:`~kvgym.studies.capacity.finding.find_capacity` searches for the highest rate, and
:func:`~kvgym.studies.capacity.provisioning.provision` for the smallest number of workers, by simulation. Both judge
runs in the same way (``verdict``) and search by bracketing and bisection (``search``). docs/capacity.md has the
definitions.
"""
