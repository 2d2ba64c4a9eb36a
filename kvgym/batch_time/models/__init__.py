"""Batch-time models, one per module."""
