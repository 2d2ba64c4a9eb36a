"""The scheduler ``ranked``: a score for every request, and the batch that the ranking is worth most in.

:mod:`kvgym.baselines.ranked.clairvoyant` is what the ranking reaches where lengths are known.
"""

from kvgym.baselines.ranked.clairvoyant import Clairvoyant as Clairvoyant
from kvgym.baselines.ranked.scheduler import Ranked as Ranked

__all__ = ["Clairvoyant", "Ranked"]
