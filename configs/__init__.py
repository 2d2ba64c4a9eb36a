"""Data of kvgym as YAML: hardware, scenarios, experiments, training (import name ``kvgym.configs``)."""

from __future__ import annotations

if __name__ != "kvgym.configs":
    raise ImportError("import this package as kvgym.configs, not from the repository's folder")
