"""The scheduler ``ranked``: it scores every request and runs the prefix of the ranking with the best worth.

:mod:`kvgym.baselines.ranked.clairvoyant` shows what the ranking reaches with known lengths.
"""

from kvgym.baselines.ranked.clairvoyant import Clairvoyant as Clairvoyant
from kvgym.baselines.ranked.scheduler import Ranked as Ranked

__all__ = ["Clairvoyant", "Ranked"]
