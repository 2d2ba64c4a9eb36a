"""What the simulator records of a run: gaps between tokens, progress, samples, and the measured window."""
