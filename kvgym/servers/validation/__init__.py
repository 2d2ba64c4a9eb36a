"""Validation: predictions against published batches of running engines and against a server's own logs.

``published`` holds the measurements, ``engines`` predicts them. ``served`` reads a server's log, ``replay`` simulates
the same requests and compares, ``overhead_fit`` fits an engine's overhead to it, ``results`` writes files, with the
picture of ``distributions``.
"""
