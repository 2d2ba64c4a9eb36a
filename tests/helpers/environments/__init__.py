"""Environments that tests make, and ways to play them."""
