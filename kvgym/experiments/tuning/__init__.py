"""Searches for hyperparameters of schedulers."""
