"""The scheduler ``ranked``: a score for every request, and the prefix of the ranking worth most for its duration.

:mod:`kvgym.baselines.ranked.clairvoyant` shows what the ranking reaches with known lengths.
"""

from kvgym.baselines.ranked.clairvoyant import Clairvoyant as Clairvoyant
from kvgym.baselines.ranked.scheduler import Ranked as Ranked

__all__ = ["Clairvoyant", "Ranked"]
