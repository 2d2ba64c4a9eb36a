"""Data of kvgym as YAML: hardware, scenarios, training (import name ``kvgym.configs``).

Holds no code: :mod:`kvgym.batch_time.hardware`, :mod:`kvgym.experiments.scenario` and :mod:`kvgym.agents.config` read
the files as package data. May import nothing; nobody needs to import it.
"""

from __future__ import annotations

if __name__ != "kvgym.configs":
    raise ImportError("import this package as kvgym.configs, not from the repository's folder")
