"""Predicted against measured: published batches of running engines, and what a server of one's own has served.

``published`` holds the measurements, ``engines`` predicts them, ``tables`` and ``figures`` make docs/validation.md of
it. ``served`` reads a server's log, ``replay`` simulates the same requests and compares, ``overhead_fit`` fits an
engine's overhead to it, ``results`` writes files, with the picture of ``distributions``.
May import :mod:`kvgym.report` and what is below it; may be imported from :mod:`kvgym.cli`.
"""
