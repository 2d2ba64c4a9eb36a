"""Speculative decoding: drafts that a decode verifies, how many of them are right, and how many are proposed next."""
