"""Colours of all figures and pictures; needs no plotting library."""

INK = "#1f2328"
"""Colour of text and axes."""

GRID = "#8c959f"

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080")
"""Okabe and Ito's palette, safe for colour-blind readers, without yellow and black, which are hard to see on light or
dark pages."""

RAMP = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
"""Viridis from dark to light, for numbers; safe for colour-blind readers, and readable in grey."""
