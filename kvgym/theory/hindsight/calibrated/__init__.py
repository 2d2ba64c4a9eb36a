"""Bounds under batch times of any kind, with chunks, evictions and clusters: no scheduler of the engine beats them."""
