"""Recorded results that a change of decisions must explain."""
