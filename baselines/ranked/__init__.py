"""The scheduler ``ranked``: a score for every request, and the batch that the ranking is worth most in."""

from kvgym.baselines.ranked.scheduler import Ranked as Ranked

__all__ = ["Ranked"]
