"""Demonstrations: episodes of compiled policies as observations and actions of an environment."""
