"""What the papers prove: fluid models, stability, thresholds and bounds, without a simulator."""
