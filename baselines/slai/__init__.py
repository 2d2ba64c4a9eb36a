"""SLAI, the SLO-aware scheduler."""

from kvgym.baselines.slai import scheduler

__all__ = ["scheduler"]
