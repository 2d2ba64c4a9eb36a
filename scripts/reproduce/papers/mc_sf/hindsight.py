"""Experiments on the hindsight optimum, in the order of the page."""

from __future__ import annotations

from papers.mc_sf import hindsight_adversary, hindsight_exact, hindsight_synthetic

EXPERIMENTS = (
    *hindsight_synthetic.EXPERIMENTS,
    *hindsight_exact.EXPERIMENTS,
    *hindsight_adversary.EXPERIMENTS,
)
