"""Learned policies: training, evaluation and networks (import name ``kvgym.agents``)."""

from __future__ import annotations

if __name__ != "kvgym.agents":
    raise ImportError("import this package as kvgym.agents, not from the repository's folder")
