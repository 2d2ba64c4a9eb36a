"""Prefix caches of scenarios: the memory below them, and notes where they find nothing."""
