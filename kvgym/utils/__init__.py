"""Plumbing: checks, files, registries, specifications, seeds and lazy imports."""
