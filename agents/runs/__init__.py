"""Training runs: configurations, folders, checkpoints, limits and progress."""
