"""Training with Stable-Baselines3: algorithms, networks, callbacks, vector environments."""
