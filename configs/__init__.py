"""Data of kvgym as YAML: hardware, scenarios, training (import name ``kvgym.configs``).

Contains no code: :mod:`kvgym.batch_time.deployments.load`, :mod:`kvgym.experiments.scenario` and
:mod:`kvgym.agents.runs.config` read the files as package data. It must import nothing, and needs no import.
"""

from __future__ import annotations

if __name__ != "kvgym.configs":
    raise ImportError("import this package as kvgym.configs, not from the repository's folder")
