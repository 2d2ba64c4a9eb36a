"""The colours of every figure and picture of the project; needs no plotting library."""

INK = "#1f2328"
"""Colour of text and axes."""

GRID = "#8c959f"

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080")
"""Okabe and Ito's palette, safe for colour-blind readers, without its yellow and black, which vanish on light and on
dark pages."""
