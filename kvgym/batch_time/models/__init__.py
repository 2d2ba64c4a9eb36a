"""Batch-time models, one a module."""
