"""Fleets in scenarios: groups of workers, and what comparisons of autoscalers run."""
