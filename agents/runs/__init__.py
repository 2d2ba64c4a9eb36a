"""Training runs: configurations, folders, checkpoints, limits, progress and curves."""
