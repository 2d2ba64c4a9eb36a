"""Retention: how long the prefix cache keeps the KV of a finished request for the next turn of its session.

``rules`` has the rules by name, ``pins`` what they do to the cache, and ``returns`` what they observe.
"""
