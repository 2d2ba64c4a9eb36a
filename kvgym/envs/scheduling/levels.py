"""Levels of the knobs of ``kvgym/Knobs-v0``."""

from __future__ import annotations

PROTECTION_LEVELS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
"""Protected fraction of memory per first knob."""

ADMISSION_CAPS = (0, 1, 2, 4, 8, 16, 64, 2**31 - 1)
"""Admissions per iteration per second knob."""

TOKEN_BUDGETS = (64, 128, 192, 256, 320, 384, 448, 512, 1024, 2**31 - 1)
"""Tokens per iteration per third knob; decodes count first, what is left goes to prefill chunks."""

QUANTA = (2**31 - 1, 1024, 512, 256, 128)
"""Output tokens after which a request may have to give way, per fourth knob; the first stands for never."""
