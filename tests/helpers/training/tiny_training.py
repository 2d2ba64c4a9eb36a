"""A training run of two updates, for tests of the code around it."""

TINY = {
    "name": "tiny",
    "env": {"action": "knobs", "num_requests": 10, "queue_window": 2, "active_window": 2},
    "num_envs": 2,
    "network": {"hidden": [4]},
    "hyperparameters": {"n_steps": 8, "batch_size": 16, "n_epochs": 1},
    "total_steps": 16,
    "evaluation": {"interval": 16, "seeds": 1},
}
