"""The flow-control paper, Sections 3 and 4."""
