"""The experiments of each paper, a package per paper; the command is ``python scripts/reproduce``."""
