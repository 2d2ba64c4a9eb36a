"""Beginnings that requests share: synthetic prefixes, and how often a cache would hit."""
