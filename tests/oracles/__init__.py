"""Independent plain implementations of schedulers and optima, from papers and pages, for comparison in tests."""
