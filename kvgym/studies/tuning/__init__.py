"""Search for hyperparameters of policies."""
