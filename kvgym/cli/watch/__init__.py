"""Live pages: a run that follows a clock, or a training, shown in a browser on this machine.

``server`` serves one page and its state to this machine only; ``simulation`` and ``training`` are the sources of that
state. May import :mod:`kvgym.agents` and below; only :mod:`kvgym.cli` may import it.
"""
