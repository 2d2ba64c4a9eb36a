"""Prefix cache: units of KV that several requests share, and those that finished requests leave for later ones.

``cache`` is the cache itself, ``plan`` what a request started within a decision finds, ``rules`` the rules for how long
the KV of a finished request is kept, ``pins`` what they do to the cache, and ``returns`` what they observe.
"""
