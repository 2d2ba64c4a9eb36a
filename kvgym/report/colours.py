"""Colours of all figures and pictures; needs no plotting library."""

INK = "#1f2328"
"""Colour of text and axes."""

GRID = "#8c959f"

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080")
"""Okabe and Ito's palette, safe for colour-blind readers, without yellow and black, which are hard to see on light or
dark pages."""
