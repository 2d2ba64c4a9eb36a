"""Clusters: several workers behind a router, in one order of events."""
