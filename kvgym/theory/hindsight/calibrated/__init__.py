"""Bounds under batch times of any kind, with chunks, evictions and clusters."""
