"""Calibration: operator tables fitted to measured profiles."""
