"""Data of kvgym as YAML: hardware, scenarios, training (import name ``kvgym.configs``).

Holds no code: :mod:`kvgym.batch_time.deployments.load`, :mod:`kvgym.experiments.scenario` and
:mod:`kvgym.agents.runs.config` read the files as package data. May import nothing, and need not be imported.
"""

from __future__ import annotations

if __name__ != "kvgym.configs":
    raise ImportError("import this package as kvgym.configs, not from the repository's folder")
