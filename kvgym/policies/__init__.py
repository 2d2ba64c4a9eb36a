"""Policies: their interface, the routers', how they are run, and the contract that every one must pass.

``policy`` and ``routing`` are what authors implement, ``runner`` runs one, ``contract`` checks it.
May import :mod:`kvgym.kernels` and what is below it; may be imported from :mod:`kvgym.metrics` and above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.policies import contract, hyperparameters, policy, routing
else:
    __getattr__, __dir__ = lazy_names(__name__, {}, "contract hyperparameters policy routing")

__all__ = ["contract", "hyperparameters", "policy", "routing"]
