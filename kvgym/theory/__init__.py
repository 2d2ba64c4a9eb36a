"""What the papers prove: fluid models, stability, thresholds and bounds, computed without running a simulation.

One module per subject; arguments are numbers, batch-time models, statistics of classes and tables of requests.
May import :mod:`kvgym.metrics` and what is below it; may be imported from :mod:`kvgym.baselines` and above.
"""
